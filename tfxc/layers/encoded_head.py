"""The encoded head: a class vector is computed from what is known of the class."""

import json
import numbers
import os
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfxc._keras import keras, register
from tfxc._keras.layers import Untracked, found_again, inputs_read_by, is_made_of_layers, layers_of
from tfxc._keras.weights import add_weight, tf_variable, variables_of
from tfxc.arguments import lists_as_tensors
from tfxc.class_rows import ClassRows
from tfxc.ids import check_ids
from tfxc.layers.head import Head, of_filled_slots
from tfxc.losses.classification_loss import ClassificationLoss
from tfxc.ops.custom_gradient import kept_by_graph
from tfxc.require import require

_BLOCK_ROWS = 4096  # classes encoded at once for the cache
_FILE = "features.npz"
_BFLOAT16 = "_bfloat16"
_TEXTS, _ENDS = "_texts", "_ends"
_TUPLE = "__tuple__"


@register
class EncodedHead(Head):
    """A class vector computed from features of the class: two towers, with any sampler and loss.

    ``logit[n, i] = query[n] · (item_encoder(features[i]) + free[i])``. What is learnt of some classes so
    holds for all that are like them: rare ones, and new ones that nobody has clicked yet. ``free``, where it
    is asked for, is a vector of each class's own beside it, for what its features do not say.

    A training step encodes each distinct class among its labels and candidates once, and the gradients reach
    the item encoder. Take a sampler whose candidates the batch shares, ``shared=True`` or ``InBatch``: P + S
    classes a step, whatever L. (Without a sampler each step encodes all L: for some thousands.) All else
    reads a cache of class vectors: samplers' indices, ``evaluate``, ``predict``, ``export``. It is refreshed
    in blocks with the sampler (``tfxc.callbacks.SamplerRefresh``) and, where training made it out of date,
    before ``evaluate``, ``predict`` and ``export``, and where ``top_k``, ``score`` or ``class_vectors`` are
    called outside of a ``tf.function``, which cannot refresh it. Before you call one that does, and where the
    item encoder's weights were set by hand, or trained by another model that shares its layers, call
    ``refresh()``. As a plain layer it encodes all L.

    The features are data, no weights: a ``.keras`` file keeps them, a file of weights or a checkpoint does
    not. After ``load_weights`` the cache is made anew, of the features that the head has; where a
    ``tf.train.Checkpoint`` is restored into a head that has been in use, call ``refresh()``.

    Args:
        item_encoder: a Keras model, features of n classes -> [n, D], D the width of the queries.
        features: what is known of the L classes in id order: an array [L, ...] of numbers, ids or texts, a
            list of them, a dict or tuple of such, or a ``tf.data.Dataset`` of L elements. Or only the number
            L, for a head that gets its cache and features from a file.
        free_vectors: whether each class has a vector of its own beside the encoded one, from 0 on.

    Call arguments:
        query: float [..., D].

    Returns:
        Logits float32 [..., L].

    Raises:
        ValueError: for features of unequal numbers of rows, an item encoder of another width than the
            queries, or a step or refresh without features.

    Example:
        >>> item_encoder = keras.Sequential([keras.Input((3,)), keras.layers.Dense(16)])
        >>> head = EncodedHead(item_encoder, np.ones([1000, 3], np.float32))
        >>> head.build((None, 16))
        >>> head.refresh()
        >>> head.top_k(tf.ones([2, 16]), k=5).ids.shape
        TensorShape([2, 5])

    Reference:
        Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations", 2019.
    """

    def __init__(self, item_encoder: keras.Model, features, free_vectors: bool = False, **kwargs) -> None:
        given = None if isinstance(features, numbers.Integral) else _as_tensors(features)
        super().__init__(features if given is None else _num_rows(given), **kwargs)
        self.item_encoder = item_encoder
        self.free_vectors = bool(free_vectors)
        self._features = Untracked(given)  # Keras would wrap the dict
        # The features, as they are held, that the cache is known to be of.
        self._cached_of: Untracked | None = None
        self._compiled_encode = None

    @property
    def features(self):
        """The features as tensors [L, ...], nested as they were given; None if it has none.

        They may be set anew, all at once: what is read here is a copy of the nest. The next ``fit`` of an
        ``ExtremeClassifier`` trains with those. A step of another model, or a ``tf.function``, that was
        traced holds the old ones: compile or make it again.
        """
        return _plain(self._features.value)

    @features.setter
    def features(self, features):
        self._set_features(features)
        self.expire_cache()

    def _set_features(self, features):
        features = _as_tensors(features)
        if _num_rows(features) != self.num_classes:
            raise ValueError(f"Got features of {_num_rows(features)} classes for {self.num_classes}.")
        self._features = Untracked(features)
        self.forget_traced()

    def get_config(self):
        config = super().get_config()
        num_classes = config.pop("num_classes")
        item_encoder = keras.saving.serialize_keras_object(self.item_encoder)
        own = {"item_encoder": item_encoder, "features": num_classes, "free_vectors": self.free_vectors}
        return {**config, **own}

    @classmethod
    def from_config(cls, config):
        item_encoder = config["item_encoder"]
        if isinstance(item_encoder, dict):
            item_encoder = keras.saving.deserialize_keras_object(item_encoder)
        return cls(**{**config, "item_encoder": item_encoder})

    def shared_layers(self, encoder):
        places = enumerate(layers_of(encoder))
        theirs = {id(layer): (layer.name, place) for place, layer in places if variables_of(layer)}
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
                f"The item encoder shares {lost} with the encoder. A file keeps that only of layers of a "
                "functional or Sequential item encoder, not deeper, and of one name in the encoder: build it "
                "so, or save weights or a checkpoint."
            )
        return {own.name: theirs[id(own)] for own in direct}

    def sharing(self, encoder, places):
        layers = layers_of(encoder)
        theirs = {own: found_again(layers, *place) for own, place in places.items()}
        lost = [own for own, found in theirs.items() if not found]
        if lost:
            raise ValueError(
                f"The item encoder shares {lost} with the encoder, as {[places[own][0] for own in lost]}, "
                "and this encoder has no such layers: was its class changed since the model was saved?"
            )
        item_encoder = keras.models.clone_model(
            self.item_encoder,
            clone_function=lambda own: theirs[own.name][0] if own.name in theirs else own,
        )
        return type(self).from_config({**self.get_config(), "item_encoder": item_encoder})

    def save_assets(self, folder):
        """Keras calls this when it saves a model: writes the features."""
        if self.features is not None:
            parts = {str(i): part.numpy() for i, part in enumerate(tf.nest.flatten(self.features))}
            # Joined: NumPy's own strings all take the space of the longest, and lose NULs at the end.
            for name in [name for name, part in parts.items() if part.dtype == object]:
                texts = parts.pop(name)
                parts[name + _TEXTS] = np.frombuffer(b"".join(texts.flat), np.uint8)
                parts[name + _ENDS] = np.cumsum([len(text) for text in texts.flat]).reshape(texts.shape)
            # NumPy's files know no bfloat16: the same bits as integers, under a name that says so.
            halves = [name for name, part in parts.items() if part.dtype == tf.bfloat16.as_numpy_dtype]
            parts.update({name + _BFLOAT16: parts.pop(name).view(np.uint16) for name in halves})
            structure = json.dumps(_as_json(_structure(self.features)))
            np.savez(os.path.join(folder, _FILE), structure=structure, **parts)

    def load_assets(self, folder):
        """Keras calls this when it loads a model: reads the features."""
        path = os.path.join(folder, _FILE)
        if os.path.exists(path):
            with np.load(path) as parts:
                structure = _from_json(json.loads(str(parts["structure"])))

                def part_at(place):
                    name = str(place)
                    if name + _BFLOAT16 in parts:
                        return parts[name + _BFLOAT16].view(tf.bfloat16.as_numpy_dtype)
                    if name + _TEXTS in parts:
                        return _texts(parts[name + _TEXTS], parts[name + _ENDS])
                    return parts[name]  # so lie texts in files of before, too

                self._set_features(tf.nest.map_structure(part_at, structure))
                self._cached_of = self._features  # as the file says

    def build(self, input_shape):
        dim = input_shape[-1]
        self.cache = add_weight(self, "cache", (self.num_classes, dim), trainable=False)
        # Steps since the cache was made; it is none yet.
        options = {"dtype": "int64", "trainable": False, "aggregation": "only_first_replica"}
        self.steps_since = add_weight(self, "steps_since", (), "ones", **options)
        if self.free_vectors:
            self.free = add_weight(self, "free", (self.num_classes, dim))
        self.effective_dim = dim
        if self.features is not None:
            width = self._encoded(tf.range(1)).shape[-1]
            if width != dim:
                raise ValueError(
                    f"The item encoder gives vectors of width {width}, but the queries are of width {dim}: "
                    "their inner product is the logit. Give the two encoders the same last width."
                )
        super().build(input_shape)

    def encode(self, class_ids, training=False) -> tf.Tensor:
        """Class vectors float32 [n, D] of class ids [n] as they are now, with gradients.

        The cache counts as out of date from then on: whoever asks for them may train by them.
        """
        if self.built:
            tf_variable(self.steps_since).assign_add(1)
        return self._encoded(class_ids, training)

    def _encoded(self, class_ids, training=False):
        if self.features is None:
            raise ValueError(
                "This EncodedHead has its cache, but no features to encode: set head.features to those of "
                f"the {self.num_classes} classes. (Files of weights and checkpoints hold none.)"
            )
        # Of no class at all, BatchNorm would learn a mean of NaN: then class 0 is encoded, and left out.
        read = tf.pad(class_ids, [[0, tf.cast(tf.size(class_ids) == 0, tf.int32)]])
        read_by_it = inputs_read_by(self.item_encoder, self.features)
        features = tf.nest.map_structure(lambda part: tf.gather(part, read), read_by_it)
        with kept_by_graph():  # swish has a custom gradient
            encoded = self.item_encoder(features, training=training)
        vectors = tf.cast(encoded, tf.float32)[: tf.size(class_ids)]
        return vectors + tf.gather(tf_variable(self.free), class_ids) if self.free_vectors else vectors

    @property
    def cache_age(self):
        """How many training steps there were since the cache was made; at least 1 before it was.

        At least 1, too, if it is not known to be of the features: weights that are loaded bring a cache, and
        that may be of others.
        """
        if not self.built:
            return 1
        is_known = self.features is None or self._cached_of is self._features
        return max(int(tf_variable(self.steps_since).numpy()), 0 if is_known else 1)

    def expire_cache(self) -> None:
        """Says that the cache is out of date, though there was no training step.

        Without features it is all there is, and stays.
        """
        if self.built and self.features is not None and not int(tf_variable(self.steps_since).numpy()):
            tf_variable(self.steps_since).assign(1)

    def forget_traced(self):
        self._compiled_encode = None

    def load_own_variables(self, store):
        """Keras calls this when it loads weights."""
        super().load_own_variables(store)
        self.weights_restored()

    def weights_restored(self):
        self._cached_of = None
        self.expire_cache()  # graphs ask the variable alone
        self.forget_traced()

    def refresh(self) -> None:
        """Encodes all classes for the cache, in blocks."""
        features, steps = self._features, tf_variable(self.steps_since)
        before = int(steps.numpy())
        self._cache_vectors(np.arange(self.num_classes))
        # A thread may train or refresh meanwhile: steps that came after the first block still count.
        steps.assign(max(int(steps.numpy()) - before, 0))
        self._cached_of = features

    def _cache_vectors(self, class_ids):
        """Encodes classes for the cache, in blocks."""
        if self._compiled_encode is None:
            signature = [tf.TensorSpec([None], tf.int32)]
            encode = tf.function(self._encoded, input_signature=signature, autograph=False)
            self._compiled_encode = Untracked(encode)
        encode = self._compiled_encode.value
        for start in range(0, len(class_ids), _BLOCK_ROWS):
            ids = tf.constant(class_ids[start : start + _BLOCK_ROWS], tf.int32)
            tf_variable(self.cache).scatter_update(tf.IndexedSlices(encode(ids), ids))

    def require_fresh(self) -> list:
        """As of ``Head``."""
        if tf.executing_eagerly() or not self.built:
            return []
        return require(
            tf.equal(tf_variable(self.steps_since), 0),
            "The class vectors of this EncodedHead are out of date, and a graph (of a tf.function, or of a "
            "Keras model around this one) cannot compute them: call model.head.refresh() before you call it.",
        )

    def effective_query(self, query):
        return tf.cast(query, tf.float32)

    def all_logits(self, query) -> tf.Tensor:
        """As of ``Head``; all classes are encoded, with gradients, since a plain model refreshes no cache."""
        if self.features is None:
            return super().all_logits(query)
        vectors = self.encode(tf.range(self.num_classes), training=None)  # as the layer is called
        return tf.matmul(self.effective_query(query), vectors, transpose_b=True)

    def class_vectors_of(self, class_ids) -> tf.Tensor:
        """Class vectors [n, D] of the cache."""
        return tf.gather(tf_variable(self.cache), class_ids)

    def class_vectors(self, start: int, stop: int) -> tf.Tensor:
        """As of ``Head``; outside of a graph the cache is brought up to date first."""
        self._bring_up_to_date()
        return super().class_vectors(start, stop)

    def score(self, query, class_ids) -> tf.Tensor:
        """As of ``Head``, by the cache; outside of a graph it is brought up to date first."""
        self._bring_up_to_date()
        return super().score(query, class_ids)

    def cached_score(self, query, class_ids) -> tf.Tensor:
        """As of ``Head``: a step that brought the cache up to date would encode all classes."""
        return super().score(query, class_ids)

    def _bring_up_to_date(self):
        """Refreshes a cache that is old, or was never made, unless a graph is being traced."""
        if tf.executing_eagerly() and self.cache_age:
            self.refresh()

    def candidate_logits(self, query, labels, class_ids) -> tuple[tf.Tensor, tf.Tensor]:
        """As of ``Head``; each distinct class is encoded once, with gradients."""
        labels, class_ids = (check_ids(ids, self.num_classes, "class") for ids in (labels, class_ids))
        flat = tf.concat([tf.reshape(labels, [-1]), tf.reshape(class_ids, [-1])], 0)
        filled, where = of_filled_slots(flat)
        distinct, place = tf.unique(filled)
        # Empty slots read a row of zeros in front.
        vectors = tf.pad(self.encode(distinct, training=True), [[1, 0], [0, 0]])
        places = tf.scatter_nd(where, place + 1, tf.shape(flat, tf.int64))
        query, num_labels = self.effective_query(query), tf.size(labels)
        of_labels = tf.gather(vectors, tf.reshape(places[:num_labels], tf.shape(labels)))
        candidates = tf.gather(vectors, tf.reshape(places[num_labels:], tf.shape(class_ids)))
        products = "nd,sd->ns" if class_ids.shape.rank == 1 else "nd,nsd->ns"
        return tf.einsum("nd,npd->np", query, of_labels), tf.einsum(products, query, candidates)

    def training_losses(self, query, labels, loss: ClassificationLoss) -> tf.Tensor:
        """As of ``Head``; all classes are encoded as in training."""
        reduced, positives = self.reduce_classes(query, labels, loss, training=True)
        return loss.combine(reduced, positives, labels >= 0)

    def reduce_classes(
        self, query, labels, loss: ClassificationLoss, training: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """A loss's reduction over all classes [N] and its positives' logits [N, P]; encodes all L."""
        vectors = self.encode(tf.range(self.num_classes), training)
        logits = tf.matmul(self.effective_query(query), vectors, transpose_b=True)
        return loss.reduce_logits(logits, labels)

    def class_rows(self):
        return [ClassRows(self.cache)] + ([ClassRows(self.free)] if self.free_vectors else [])

    def config_for(self, old_ids):
        return {**self.get_config(), "features": len(old_ids)}

    def classes_changed(self, before: Head, old_ids: np.ndarray, given: Callable | None) -> None:
        """Takes over the features, and encodes the new classes.

        Raises:
            ValueError: if there are new classes, but no features of them.
        """
        if before.features is None:
            raise ValueError("The EncodedHead has no features of its classes: set head.features.")
        kept = tf.constant(np.maximum(old_ids, 0))
        features = tf.nest.map_structure(lambda part: tf.gather(part, kept), before.features)
        added = np.flatnonzero(old_ids < 0)
        if len(added):
            if given is None:
                raise ValueError(
                    "An EncodedHead computes the vectors of new classes: pass change_classes new_rows=, a "
                    "function of a list of names to their features, nested as those of the head are."
                )
            where, of_added = added[:, np.newaxis], _as_tensors(given(added))
            if _structure(of_added) != _structure(features) or _num_rows(of_added) != len(added):
                raise ValueError(
                    f"new_rows was asked for the features of {len(added)} classes as arrays, nested like "
                    f"{_structure(features)}, but returned {given(added)!r}."
                )
            _check_finite(of_added)
            features = tf.nest.map_structure(
                lambda part, own: tf.tensor_scatter_nd_update(part, where, tf.cast(own, part.dtype)),
                features,
                of_added,
            )
        is_known = before._cached_of is before._features
        self._set_features(features)  # the cache has the vectors of the classes that stay
        self._cache_vectors(added)
        self._cached_of = self._features if is_known else None


def _texts(joined, ends):
    """Texts that stand one after the other, by where each ends, as an array of the shape of ``ends``."""
    joined, flat = joined.tobytes(), ends.ravel().tolist()
    texts = np.empty(ends.shape, object)
    texts.flat = [joined[start:end] for start, end in zip([0, *flat[:-1]], flat, strict=True)]
    return texts


def _as_tensors(features):
    """Features as tensors [L, ...] in the memory of the host."""
    with tf.device("CPU"):
        if isinstance(features, tf.data.Dataset):
            try:
                blocks = list(features.batch(_BLOCK_ROWS))
            except tf.errors.InvalidArgumentError as error:
                raise ValueError(
                    "The elements of the dataset of features have different shapes; it needs one for each "
                    "class. If it is batched, pass features.unbatch()."
                ) from error
            if not blocks:
                raise ValueError("The dataset of features has no elements: it needs one for each class.")
            return tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *blocks)
        try:
            return _plain(tf.nest.map_structure(tf.convert_to_tensor, lists_as_tensors(features)))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"Features that came as {type(features).__name__} cannot be one array: {error} Pass arrays "
                "of numbers or texts, and of a data frame of both a dict of its columns: {name: "
                "frame[name].to_numpy() for name in frame}."
            ) from error


def _plain(nest):
    """A nest of dicts and lists of Python: Keras puts its own into the attributes of layers."""
    if isinstance(nest, dict):
        return {name: _plain(part) for name, part in nest.items()}
    return [_plain(part) for part in nest] if isinstance(nest, list) else nest


def _num_rows(features):
    sizes = {int(part.shape[0]) if part.shape.rank else 0 for part in tf.nest.flatten(features)}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(
            "The features must have one row for each class in all their parts, but have "
            f"{[tuple(part.shape) for part in tf.nest.flatten(features)]}."
        )
    return sizes.pop()


def _structure(features):
    """The nest of the features, with numbers for the parts."""
    num_parts = len(tf.nest.flatten(features))
    return tf.nest.pack_sequence_as(features, list(range(num_parts)))


def _as_json(structure):
    """A nest of numbers as JSON holds it, which has no tuples."""
    if isinstance(structure, dict):
        return {name: _as_json(part) for name, part in structure.items()}
    if isinstance(structure, list | tuple):
        parts = [_as_json(part) for part in structure]
        return {_TUPLE: parts} if isinstance(structure, tuple) else parts
    return structure


def _from_json(notes):
    """The nest of which ``_as_json`` made notes."""
    if isinstance(notes, list):
        return [_from_json(part) for part in notes]
    if not isinstance(notes, dict):
        return notes
    if set(notes) == {_TUPLE}:
        return tuple(_from_json(part) for part in notes[_TUPLE])
    return {name: _from_json(part) for name, part in notes.items()}


def _check_finite(features):
    """Raises ValueError for features of new classes that are not finite: their vectors would be NaN."""
    for part in tf.nest.flatten(features):
        if part.dtype.is_floating and not np.all(np.isfinite(tf.cast(part, tf.float32))):
            raise ValueError(f"new_rows returned features that are not finite: {part.numpy()!r}.")
