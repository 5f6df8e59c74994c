"""The encoded head: a class vector is computed from what is known of the class."""

import numbers
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfxc._keras import keras, register
from tfxc._keras.layers import (
    config_of,
    found_again,
    is_made_of_layers,
    kept_integers,
    kinds_of,
    layers_of,
    require_layer,
)
from tfxc._keras.weights import (
    add_counter,
    add_weight,
    how_weights_are_made,
    make_weights,
    tf_variable,
    variables_of,
)
from tfxc.class_rows import ClassRows
from tfxc.encoders.grad_cache import GradCache
from tfxc.ids import check_ids
from tfxc.layers.class_cache import ClassCache
from tfxc.layers.class_features import ClassFeatures, as_tensors, num_rows
from tfxc.layers.head import Head, initializer_of_bias, of_filled_slots, seen_by_loss, without_empty
from tfxc.losses.classification_loss import ClassificationLoss
from tfxc.ops.custom_gradient import kept_by_graph
from tfxc.ops.in_chunks import in_chunks
from tfxc.samplers.step import PoolCounts


@register
class EncodedHead(Head):
    """A class vector computed from features of the class: two towers, with any sampler and loss.

    ``logit[n, i] = query[n] · (item_encoder(features[i]) + free[i]) + bias``. What the item encoder learns of
    some classes holds for all that are like them: rare ones, and new ones that nobody has clicked yet.
    ``free`` is optional: a vector of each class's own, for what its features do not say. So is the bias.

    A training step encodes each distinct class among its labels and candidates once. Take a sampler whose
    candidates the batch shares, ``shared=True`` or ``InBatch``: a step then encodes P + S classes, whatever
    L. (Without a sampler, and as a plain layer, it encodes all L: for some thousands.)

    Everything else reads a cache of class vectors. The head computes it in blocks, with the sampler's index
    (``tfxc.callbacks.SamplerRefresh``) and, where training has made it out of date, before ``evaluate``,
    ``predict``, ``export``, ``top_k``, ``score`` and ``class_vectors``. Call ``freshen()`` before a
    ``tf.function`` that ranks or scores, and ``freshen(force=True)`` where the item encoder's weights were
    set by hand, trained in another model or restored by ``tf.train.Checkpoint``.

    The features are data, not weights: a ``.keras`` file keeps them, a file of weights or a checkpoint does
    not. After ``load_weights`` the head computes the cache from the features that it has.

    Args:
        item_encoder: a Keras model, features of n classes -> [n, D], D the width of the queries.
        features: what is known of the L classes in id order: an array [L, ...] of numbers, ids or texts, a
            list of them, a dict or tuple of such, or a ``tf.data.Dataset`` of L elements. Or only the number
            L, for a head that gets its cache and features from a file.
        free_vectors: whether each class has a vector of its own beside the encoded one; it starts at 0.
        use_bias: whether one learnt number is added to the logits of all classes. A softmax cancels it;
            ``BinaryCrossentropy`` and ``SquaredHinge`` learn little without (docs/benchmarks/combinations).
        bias_initializer: initializer of that number. For "which of L labels apply" start where no label is
            likely: ``Constant(log(labels per query / L))``.

    Call arguments:
        query: float [..., D]. The call returns logits float32 [..., L].

    Raises:
        ValueError: for features of unequal numbers of rows, an item encoder of another width than the
            queries, or a step or ``freshen`` without features.

    Example:
        >>> item_encoder = keras.Sequential([keras.Input((3,)), keras.layers.Dense(16)])
        >>> head = EncodedHead(item_encoder, np.ones([1000, 3], np.float32))
        >>> head.build((None, 16))
        >>> head.freshen()
        []
        >>> head.top_k(tf.ones([2, 16]), k=5).ids.shape
        TensorShape([2, 5])

    Reference:
        Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations", 2019.
    """

    def __init__(
        self,
        item_encoder: keras.Model,
        features,
        free_vectors: bool = False,
        *,
        use_bias: bool = False,
        bias_initializer="zeros",
        **kwargs,
    ) -> None:
        require_layer(item_encoder, "item_encoder")
        given = None if isinstance(features, numbers.Integral) else as_tensors(features)
        super().__init__(features if given is None else num_rows(given), **kwargs)
        self.item_encoder = item_encoder
        self.free_vectors, self.use_bias = bool(free_vectors), bool(use_bias)
        self.bias_initializer = initializer_of_bias(bias_initializer, use_bias)
        self._features = ClassFeatures(self.num_classes)
        if given is not None:
            self._features.set(given)
        self.class_cache = ClassCache(self._features, self._encoded)

    @property
    def features(self):
        """The features as tensors [L, ...], nested as they were given; None if the head has none.

        They can be set anew, all at once and in the same shapes: what is read here is a copy. Steps and
        functions that were traced read the new ones.
        """
        return self._features.tensors

    @features.setter
    def features(self, features):
        self._features.set(features)
        self.class_cache.expire()

    def get_config(self):
        config = super().get_config()
        num_classes = config.pop("num_classes")
        item_encoder = keras.saving.serialize_keras_object(self.item_encoder)
        own = config_of(self, "free_vectors", "use_bias", "bias_initializer")
        return {**config, "item_encoder": item_encoder, "features": num_classes, **own}

    @classmethod
    def from_config(cls, config):
        item_encoder = config["item_encoder"]
        if isinstance(item_encoder, dict):
            item_encoder = keras.saving.deserialize_keras_object(item_encoder)
        return cls(**{**config, "item_encoder": item_encoder})

    def get_build_config(self):
        """What Keras keeps to build the head and an item encoder that its first call builds."""
        if not self.built or self._features.variables is None:
            return super().get_build_config()
        kinds = kinds_of(self._features.rows(tf.range(1), self.item_encoder))
        return {**super().get_build_config(), **how_weights_are_made(self.item_encoder, kinds)}

    def build_from_config(self, config):
        """Keras calls this when it loads the head, whose features come later."""
        make_weights(self.item_encoder, config)
        super().build_from_config(config)

    def shared_layers(self, encoder):
        theirs = {
            id(layer): (layer.name, place)
            for place, layer in enumerate(layers_of(encoder))
            if variables_of(layer) or hasattr(layer, "save_assets")  # files keep vocabularies as assets
        }
        can_swap = is_made_of_layers(self.item_encoder)
        own_layers = layers_of(self.item_encoder)[1 if can_swap else 0 :]
        shared = [own for own in own_layers if id(own) in theirs]
        direct = [own for own in self.item_encoder.layers if id(own) in theirs] if can_swap else []
        kept = {id(layer) for own in direct for layer in layers_of(own)}
        names = [layer.name for layer in layers_of(encoder)]
        lost = [own.name for own in shared if id(own) not in kept]
        lost += [own.name for own in direct if names.count(theirs[id(own)][0]) > 1]
        if lost:
            raise ValueError(
                f"The item encoder shares {lost} with the encoder. A file tells that only of direct layers, "
                "with names of their own in the encoder, of a functional or Sequential item encoder that is "
                "in no GradCache: build it so, or save weights or a checkpoint."
            )
        return {own.name: theirs[id(own)] for own in direct}

    def share(self, encoder, places=None):
        """As of ``Head``: where a file tells of shared layers, a head whose item encoder has them."""
        if not places:
            return self
        theirs = {own: found_again(layers_of(encoder), *place) for own, place in places.items()}
        lost = [places[own][0] for own, found in theirs.items() if not found]
        if lost:
            raise ValueError(
                f"The item encoder shares {lost} with the encoder, but this encoder has no such layers: was "
                "its class changed since the model was saved?"
            )
        item_encoder = keras.models.clone_model(
            self.item_encoder, clone_function=lambda own: theirs[own.name][0] if own.name in theirs else own
        )
        return type(self).from_config({**self.get_config(), "item_encoder": item_encoder})

    def save_assets(self, folder):
        """Keras calls this when it saves a model: writes the features."""
        self._features.write(folder)

    def load_assets(self, folder):
        """Keras calls this when it loads a model: reads the features. The cache in the file is of them."""
        if self._features.read(folder):
            self.class_cache.is_known = True

    def save_own_variables(self, store):
        """Keras calls this when it saves weights: a file keeps no cache that may be of other features."""
        if self.class_cache.age:
            self.class_cache.expire()
        super().save_own_variables(store)

    def load_own_variables(self, store):
        """Keras calls this when it loads weights: the cache among them may be of other features."""
        super().load_own_variables(store)
        self.class_cache.expire()

    def _trackable_children(self, save_type="checkpoint", **kwargs):
        """TensorFlow asks this: a SavedModel of the layer reads the features, a checkpoint keeps none."""
        children = super()._trackable_children(save_type, **kwargs)
        if save_type == "savedmodel" and self._features.variables is not None:
            parts = tf.nest.flatten(self._features.variables)
            children = {**children, **{f"features_{place}": part for place, part in enumerate(parts)}}
        return children

    def build(self, input_shape):
        dim = input_shape[-1]
        self.effective_dim = dim + int(self.use_bias)
        self.cache = add_weight(self, "cache", (self.num_classes, self.effective_dim), trainable=False)
        # Training steps since the cache was computed. It starts at 1: there is no cache yet.
        self.steps_since = add_counter(self, "steps_since", "ones", "only_first_replica")
        self.class_cache.hold(self.cache, self.steps_since)
        if self.free_vectors:
            self.free = add_weight(self, "free", (self.num_classes, dim))
        if self.use_bias:
            self.bias = add_weight(self, "bias", (1,), self.bias_initializer)
        if self._features.variables is not None:
            width = self._encoded(tf.range(1)).shape[-1] - int(self.use_bias)
            if width != dim:
                raise ValueError(
                    f"The item encoder gives vectors of width {width}, but the queries are of width {dim}: "
                    "give the two encoders the same last width."
                )
        super().build(input_shape)

    def encode(self, class_ids, training=False) -> tf.Tensor:
        """Class vectors float32 [n, D] of class ids [n] by the present weights, with gradients.

        From then on the cache counts as out of date: the caller may train by these vectors.
        """
        self.class_cache.count_step()
        return self._encoded(class_ids, training)

    def _encoded(self, class_ids, training=False):
        if self._features.variables is None:
            raise ValueError(
                "This EncodedHead has no features to encode, only a cache: set head.features to those of the "
                f"{self.num_classes} classes. (Files of weights and checkpoints hold no features.)"
            )
        # From no class at all BatchNorm would learn a mean of NaN: class 0 is encoded then, and left out.
        read = tf.pad(class_ids, [[0, tf.cast(tf.size(class_ids) == 0, tf.int32)]])
        features = kept_integers(self.item_encoder, self._features.rows(read, self.item_encoder))
        with kept_by_graph():  # swish has a custom gradient
            encoded = self.item_encoder(features, training=training)
        vectors = tf.cast(encoded, tf.float32)[: tf.size(class_ids)]
        vectors = vectors + tf.gather(tf_variable(self.free), class_ids) if self.free_vectors else vectors
        if not self.use_bias:
            return vectors
        return tf.concat([vectors, tf.tile(tf_variable(self.bias)[tf.newaxis], [tf.size(class_ids), 1])], 1)

    def freshen(self, force=False):
        """As of ``Head``; encodes all classes, in blocks."""
        return self.class_cache.freshen(force) if self.built else []

    def effective_query(self, query):
        """As of ``Head``: queries, and 1 for the bias."""
        query = tf.cast(query, tf.float32)
        return tf.pad(query, [[0, 0], [0, 1]], constant_values=1.0) if self.use_bias else query

    def _all_logits(self, query):
        """As of ``Head``; encodes all classes, with gradients: a plain model brings no cache up to date."""
        if self._features.variables is None:
            return super()._all_logits(query)
        return self._encoded_logits(query, training=None)

    def _encoded_logits(self, query, training):
        """All logits [N, L], of classes that are encoded; training None: as the layer was called."""
        vectors = self.encode(tf.range(self.num_classes), training)
        return tf.matmul(self.effective_query(query), vectors, transpose_b=True)

    def class_vectors_of(self, class_ids) -> tf.Tensor:
        """Class vectors [n, D] of the cache."""
        return tf.gather(tf_variable(self.cache), class_ids)

    def class_vectors(self, start: int, stop: int) -> tf.Tensor:
        """As of ``Head``, by the cache, which it brings up to date outside of a graph."""
        if tf.executing_eagerly():
            self.freshen()
        return super().class_vectors(start, stop)

    def score(self, query, class_ids) -> tf.Tensor:
        """As of ``Head``, by the cache, which it brings up to date outside of a graph."""
        if tf.executing_eagerly():
            self.freshen()
        return super().score(query, class_ids)

    def candidates(self, query, labels, class_ids, log_expected_count, reduction):
        """As of ``Head``; a ``GradCache`` scores shared candidates for a chunk of the queries at a time."""
        if not isinstance(self.item_encoder, GradCache) or class_ids.shape.rank != 1:
            return super().candidates(query, labels, class_ids, log_expected_count, reduction)
        query = self.effective_query(query)
        of_labels, vectors = self._encode_both(labels, class_ids)

        def fold(query, labels, rows):
            counts = log_expected_count
            if isinstance(counts, PoolCounts):
                counts = counts.of(rows)
            elif counts.shape.rank == 2:  # of each query, or one for all
                counts = tf.gather(counts, rows % tf.shape(counts)[0])
            _, empty = without_empty(class_ids, counts)
            logits = _products(query, vectors)
            return [reduction.of(*seen_by_loss(self, logits, labels, class_ids, counts, empty))]

        given = query, labels, tf.range(tf.shape(query)[0])
        (folded,) = in_chunks(fold, given, [vectors], self.item_encoder.chunk_size)
        return _products(query, of_labels), folded

    def _score_both(self, query, labels, class_ids):
        """As of ``Head``; encodes each distinct class once, with gradients."""
        query = self.effective_query(query)
        return tuple(_products(query, vectors) for vectors in self._encode_both(labels, class_ids))

    def _encode_both(self, labels, class_ids):
        """Class vectors [N, P, D] of labels and [N, S, D] or [S, D] of class ids, each class encoded once."""
        labels, class_ids = (check_ids(ids, self.num_classes, "class") for ids in (labels, class_ids))
        flat = tf.concat([tf.reshape(labels, [-1]), tf.reshape(class_ids, [-1])], 0)
        filled, where = of_filled_slots(flat)
        distinct, place = tf.unique(filled)
        # Empty slots read a row of zeros in front.
        vectors = tf.pad(self.encode(distinct, training=True), [[1, 0], [0, 0]])
        places = tf.scatter_nd(where, place + 1, tf.shape(flat, tf.int64))
        num_labels = tf.size(labels)
        of_labels = tf.gather(vectors, tf.reshape(places[:num_labels], tf.shape(labels)))
        return of_labels, tf.gather(vectors, tf.reshape(places[num_labels:], tf.shape(class_ids)))

    def losses(self, query, labels, loss: ClassificationLoss, training: bool = False) -> tf.Tensor:
        logits = self._encoded_logits(query, training)
        return loss.combine(*loss.reduce_logits(logits, labels), labels >= 0)

    def reduce(self, query, labels, loss: ClassificationLoss) -> tuple[tf.Tensor, tf.Tensor]:
        """As of ``Head``; encodes all L classes."""
        return loss.reduce_logits(self._encoded_logits(query, False), labels)

    def class_rows(self):
        return [ClassRows(self.cache)] + ([ClassRows(self.free)] if self.free_vectors else [])

    def config_for(self, old_ids):
        return {**self.get_config(), "features": len(old_ids)}

    def classes_changed(self, before: Head, old_ids: np.ndarray, given: Callable | None) -> None:
        """Takes over the features, and encodes the new classes; ValueError without features of these."""
        if before.features is None:
            raise ValueError("The EncodedHead has no features of its classes: set head.features first.")
        self._features.set(before._features.of_other_classes(old_ids, given))
        self.class_cache.encode_rows(np.flatnonzero(old_ids < 0))  # it has the vectors of classes that stay
        self.class_cache.is_known = before.class_cache.is_known


def _products(query, vectors):
    """Inner products [N, S] of queries [N, D] with vectors [S, D] of all queries or [N, S, D] of each."""
    return tf.einsum("nd,sd->ns" if vectors.shape.rank == 2 else "nd,nsd->ns", query, vectors)
