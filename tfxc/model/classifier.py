"""The model: an encoder, a head, and which classes a step scores."""

import contextlib
import inspect
import os
import warnings
from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from tfxc._keras import keras, register, unpack_x_y_sample_weight
from tfxc._keras.layers import Untracked, forget_layer, inputs_read_by, no_autocast
from tfxc._keras.training import (
    LogsOfAllReplicas,
    Mean,
    StartsAtBatch,
    adopt_own_loss_and_metrics,
    drop_compiled_metrics,
    forget_compile,
    metrics_not_compiled,
    updated_metrics,
)
from tfxc.arguments import lists_as_tensors, positive_int, require_count
from tfxc.callbacks.sampler_refresh import warn_without_refresh
from tfxc.fit_callback import FitCallback
from tfxc.ids import PADDING, padded_ids
from tfxc.labels import as_array, labelled_queries
from tfxc.layers.class_cache import cache_of, expire_class_vectors
from tfxc.layers.head import Head
from tfxc.model.checks import (
    compile_options,
    ranking_metrics,
    refuse_class_weight,
    refuse_consumed,
    refuse_optimizer,
    require_finite,
    require_finite_inputs,
    require_finite_step,
)
from tfxc.model.fit import clean_errors, fit_arguments, require_ready, with_own_callbacks
from tfxc.model.fresh_cache import expire_averaged, with_fresh_cache
from tfxc.model.inputs import (
    as_tensor,
    check_queries,
    first_examples,
    first_input,
    flatten_reserved,
    last_position,
    query_width,
    split_inputs,
)
from tfxc.model.on_servers import check_parts
from tfxc.model.saving import SavingMixin
from tfxc.model.step import build_parts, check_kinds, check_loss, example_losses, require_sampler
from tfxc.ops.custom_gradient import kept_by_graph
from tfxc.samplers.sampler import Sampler
from tfxc.search.inverted_index import InvertedIndex
from tfxc.serving.class_names import kept_names, names_array
from tfxc.serving.export import export_classifier, export_item_encoder


@register
class ExtremeClassifier(SavingMixin, StartsAtBatch, LogsOfAllReplicas, keras.Model):
    """A Keras model with 100 thousand to 10 million classes, trained, evaluated and served on one machine.

    A training step scores the positives and the sampler's candidates (or, without a sampler, all classes);
    ``evaluate`` gives the exact loss over all classes and the ranking metrics, ``predict`` the best ``k``
    classes. All classes are streamed in blocks: nothing holds a ``[B, L]`` tensor.

    Inputs: the encoder's. A dict may carry the reserved keys ``"exclude"``: class ids [B, X], or in a batch
    of a data set [1, X] for all of it, padded with -1, that ``evaluate`` and ``predict`` do not rank (items
    already seen); and "example_ids", ids of the training examples [B] ([B, T] for sequences), for samplers
    that read them.

    Labels: class ids [B] or [B, P] padded with -1; for an encoder that gives [B, T, D], [B, T] or
    [B, T, P], where -1 also masks a position. RaggedTensor and SparseTensor (ids as values) too.
    Sample weights: [B], for sequences also [B, T].

    Args:
        encoder: a Keras model, inputs -> queries [B, D] or [B, T, D].
        head: a ``tfxc.layers`` head.
        sampler: None for all classes, or a ``tfxc.samplers`` sampler.
        k: how many classes ``predict`` returns, at least 1; all of them where there are fewer.
        class_names: None or the L raw names of the classes, in id order; kept with the saved model. Bytes are
            taken as UTF-8.

    Returns:
        From ``predict``: ``{"ids": int32 [B, k], "scores": float32 [B, k]}``, best first. For sequence
        queries that of the last unmasked position. Where fewer than k classes are left, id -1.

    Raises:
        ValueError: for arguments that do not fit together.

    Example:
        >>> encoder = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16)])
        >>> model = ExtremeClassifier(encoder, head=tfxc.layers.DenseHead(1000), k=5,
        ...                           sampler=tfxc.samplers.Uniform(20))
        >>> model.compile(tfxc.optimizers.LazyAdam(1e-3), loss=tfxc.losses.SoftmaxCrossentropy(),
        ...               metrics=[tfxc.metrics.RecallAtK(5)])
        >>> history = model.fit(tf.random.normal([32, 8]), tf.range(32), verbose=0)
        >>> model.predict(tf.random.normal([2, 8]), verbose=0)["ids"].shape
        (2, 5)

    Reference:
        Jean et al., "On Using Very Large Target Vocabulary for Neural Machine Translation", 2015.
    """

    def __init__(
        self,
        encoder: keras.Model,
        head: Head,
        sampler: Sampler | None = None,
        k: int = 10,
        class_names: Collection | None = None,
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        if not callable(encoder) or isinstance(encoder, type):
            raise ValueError(f"encoder must be a Keras model, inputs -> queries [B, D], but got {encoder!r}.")
        check_kinds(head, sampler)
        k = positive_int(k, "k")
        if class_names is not None and len(names_array(class_names, "class_names")) != head.num_classes:
            raise ValueError(f"Got {len(class_names)} class_names for a head of {head.num_classes} classes.")
        check_parts(head, sampler)
        self.encoder = encoder
        self.head = head
        self.sampler: Sampler | Any = sampler  # None, but whoever asks it knows that there is one
        self.k = k
        self._ranking: Any = None
        self._traced_with = k, head.num_probes
        self._trained_with = Untracked(None)  # the sampler of the traced step
        self._names = Untracked(kept_names(class_names))  # Keras would walk through ten million strings
        self.loss_tracker = Mean(name="loss")
        self.supports_jit = False
        # Encoder and head cast for themselves: ids and times, cast before, would lose digits.
        no_autocast(self)
        query_dim = query_width(encoder)
        if query_dim is not None:
            self._build_parts(query_dim)
            self.built = True

    def __setattr__(self, name, value):
        before = vars(self).get(name)
        if before is not None and before is not value:
            if name in ("encoder", "head"):
                raise ValueError(
                    f"The {name} of a model cannot be exchanged: its optimizer and its steps are made for "
                    "the one it has. Make a model of the new one, ExtremeClassifier(encoder, head, sampler, "
                    "k, class_names), and compile it."
                )
            if name == "sampler":
                forget_layer(self, before)
        super().__setattr__(name, value)

    @property
    def metrics(self):
        """All metrics, the loss first: the order in which Keras returns results."""
        return [self.loss_tracker, *(metric for metric in super().metrics if metric is not self.loss_tracker)]

    @property
    def class_names(self) -> Sequence[str] | Any:
        """The raw names of the classes in id order, or None.

        They may be ten million, so no config holds them: ``copy.deepcopy(model)`` has them,
        ``keras.models.clone_model(model)`` does not.
        """
        return self._names.value

    def _build_parts(self, query_dim):
        check_kinds(self.head, self.sampler)  # the sampler may be a new one
        self.head.tie(self.encoder)
        build_parts(self.head, self.sampler, query_dim)

    def compile(self, optimizer="rmsprop", loss=None, metrics=None, weighted_metrics=None, **kwargs):
        """As Keras's ``compile``; the loss is one of ``tfxc.losses``, the metrics of ``tfxc.metrics``."""
        refuse_consumed(self)
        check_loss(self.head, loss)
        require_sampler(loss, self.sampler)
        options = compile_options(kwargs)
        num_classes = self.head.num_classes
        plain = ranking_metrics(metrics, "metrics", num_classes)
        weighted = ranking_metrics(weighted_metrics, "weighted_metrics", num_classes)
        ranking = {"metrics": plain or None, "weighted_metrics": weighted or None}
        drop_compiled_metrics(self)
        super().compile(optimizer=optimizer, loss=loss, **ranking, **options)
        # What was traced, and class vectors that are cached, are by what layers had adapted to.
        self._ranking = None
        expire_class_vectors(self.head)
        try:
            refuse_optimizer(self.optimizer)
        except ValueError:
            forget_compile(self)
            raise
        adopt_own_loss_and_metrics(self)
        self.classification_loss = loss
        self._num_ranked = max([self.k] + [metric.k for metric in plain + weighted])

    def summary(self, *args, **kwargs):
        """As Keras's, and a line about the head's memory."""
        super().summary(*args, **kwargs)
        (kwargs.get("print_fn") or print)(self.head.describe())

    def fit(self, x=None, *args, **kwargs):
        """As Keras's ``fit``; ``class_weight`` is refused. An id outside its range is named first.

        Where the sampler has an index and no ``SamplerRefresh`` is among the callbacks, one is added:
        ``SamplerRefresh("auto")``, with parameter servers ``SamplerRefresh("epoch")``. With a
        ``BackupAndRestore`` among them it goes on where the newest backup stands.
        """
        arguments = fit_arguments(super().fit, x, *args, **kwargs)
        require_ready(self, arguments)
        arguments["callbacks"] = with_own_callbacks(self, arguments["callbacks"])
        with clean_errors(), contextlib.ExitStack() as stack:
            for callback in arguments["callbacks"]:
                if isinstance(callback, FitCallback):
                    stack.enter_context(callback.during_fit(self, arguments))
            return super().fit(**arguments)

    def evaluate(self, x=None, y=None, *args, **kwargs):
        """As Keras's ``evaluate``. An id outside its range is named first."""
        y = as_array(y)
        self._freshen(x)
        with clean_errors():
            return self._with_fresh_cache(super().evaluate, x, y, *args, **kwargs)

    def predict(self, x, *args, **kwargs):
        """As Keras's ``predict``. An id outside its range is named first."""
        self._freshen(x)
        with clean_errors():
            return self._with_fresh_cache(super().predict, x, *args, **kwargs)

    def _with_fresh_cache(self, method, *args, **kwargs):
        """Calls a method of Keras's that takes callbacks."""
        given = inspect.signature(method).bind(*args, **kwargs)
        given.arguments["callbacks"] = with_fresh_cache(given.arguments.get("callbacks"), self.head)
        return method(*given.args, **given.kwargs)

    def make_train_function(self, force=False):
        """As Keras's, which calls it before it trains. A traced step keeps to its sampler."""
        require_sampler(self.classification_loss, self.sampler)
        if self.sampler is not self._trained_with.value:
            self._trained_with, force = Untracked(self.sampler), True
        return super().make_train_function(force)

    def train_on_batch(self, x, y=None, sample_weight=None, class_weight=None, *args, **kwargs):
        """As Keras's ``train_on_batch``; ``class_weight`` is refused."""
        refuse_class_weight(class_weight)
        warn_without_refresh(self.sampler)
        with clean_errors():
            return super().train_on_batch(x, as_array(y), sample_weight, None, *args, **kwargs)

    def predict_on_batch(self, x):
        """As Keras's ``predict_on_batch``."""
        self._freshen(x)
        with clean_errors():
            return super().predict_on_batch(x)

    def test_on_batch(self, x, y=None, *args, **kwargs):
        """As Keras's ``test_on_batch``."""
        self._freshen(x)
        with clean_errors():
            return super().test_on_batch(x, as_array(y), *args, **kwargs)

    def _freshen(self, x=None):
        """Brings traced functions and cached class vectors up to date; in a graph, what to wait for."""
        refuse_consumed(self)
        if not tf.executing_eagerly():
            return self.head.freshen()
        numbers_of_graphs = self.k, self.head.num_probes
        if numbers_of_graphs != self._traced_with:
            self._traced_with = numbers_of_graphs
            self._ranking = self.predict_function = self.test_function = None
        if not self.built and x is not None and cache_of(self.head) is not None:
            self._build_on(x)
            if not self.built:
                raise ValueError(
                    f"{type(self.head).__name__} computes its class vectors before they are read, but the "
                    "model is not built, and a generator is not read to build it: call the model on one "
                    "batch first, or start the encoder with a keras.Input."
                )
        return self.head.freshen()

    def _build_on(self, x):
        """Builds a model by its first examples, if only the output of its encoder tells the width of queries.

        The first step builds on data of a generator, which cannot be read twice.
        """
        first = None if self.built else first_examples(x)
        if first is not None:
            with self.distribute_strategy.scope():
                self._encoded(split_inputs(first, self.encoder)[0], training=False)
            self.built = True

    def call(self, inputs, training=None):
        with tf.control_dependencies([] if training else self._freshen(inputs)):
            return self._best(inputs, training)

    def _best(self, inputs, training=False):
        """The k best of encoder inputs, with which ``exclude`` may stand."""
        inputs, reserved = split_inputs(inputs, self.encoder)
        k = min(self.k, self.head.num_classes)
        return self._rank(inputs, k, reserved.get("exclude"), training=training)

    def rank(
        self, inputs, k: int | tf.Tensor, exclude=None, allow=None, training: bool = False
    ) -> dict[str, tf.Tensor]:
        """The k best classes, ``{"ids": [B, k], "scores": [B, k]}``, of encoder inputs; in one graph.

        Args:
            inputs: the encoder's, also as lists; in a dict of them ``exclude`` may stand instead.
            k: an int in [1, L] or an int32 scalar tensor.
            exclude, allow: None or class ids, see ``Head.top_k``.
            training: whether the encoder runs as in training.

        Raises:
            ValueError: for another k, or where ``exclude`` comes twice.
        """
        require_count(k, "k", self.head.num_classes)
        inputs = lists_as_tensors(inputs)
        inputs, reserved = split_inputs(inputs, self.encoder)
        own = reserved.get("exclude")
        if own is not None and exclude is not None:
            raise ValueError(
                "rank got exclude both among the inputs and beside them: join them as exclude=, class ids "
                "[B, X] padded with -1."
            )
        exclude = own if exclude is None else exclude
        fresh = self._freshen(inputs)
        if not self.built:
            return self._rank(inputs, k, exclude, allow, training)
        if self._ranking is None:
            self._ranking = Untracked(tf.function(self._rank, reduce_retracing=True, autograph=False))
        inputs = tf.nest.map_structure(as_tensor, inputs)
        # Whose rank a graph that was traced for several shapes does not know.
        k, exclude, allow = as_tensor(k), padded_ids(exclude, "exclude"), padded_ids(allow, "allow")
        with clean_errors(), tf.control_dependencies(fresh):
            return self._ranking.value(inputs, k, exclude, allow, training)

    def _rank(self, inputs, k, exclude=None, allow=None, training=False):
        scores, ids = self.head.top_k(self.queries(inputs, training), k, exclude, allow)
        return {"ids": ids, "scores": scores}

    def queries(self, inputs, training: bool = False) -> tf.Tensor:
        """The encoder's queries [B, D] of its inputs; of sequences, that of the last unmasked position."""
        return last_position(self._encoded(inputs, training))

    def _encoded(self, inputs, training):
        """The encoder's output; the first one builds head and sampler."""
        refuse_consumed(self)
        with kept_by_graph():  # swish has a custom gradient
            query = check_queries(self.encoder(inputs_read_by(self.encoder, inputs), training=training))
        if query.shape[-1] is None and not self.head.built:
            raise ValueError(
                f"The encoder gives {query.shape} here, whose width is not known: call the model on one "
                "batch first, or let the encoder set_shape."
            )
        self._build_parts(query.shape[-1])
        return query

    def _examples(self, x, y, sample_weight, training):
        """Queries [N, D], labels [N, P], weights [N] or None, and what stands under the reserved keys."""
        if y is None:
            raise ValueError("ExtremeClassifier needs labels: fit(x, y) with integer class ids.")
        inputs, reserved = split_inputs(x, self.encoder)
        # Moving averages see a batch before its loss is known.
        if training and getattr(self.encoder, "non_trainable_weights", ()):
            inputs = require_finite_inputs(inputs, self.optimizer)
        query = self._encoded(inputs, training)
        num_classes = self.head.num_classes
        of_batch = query
        query, labels, sample_weight, where = labelled_queries(query, y, num_classes, sample_weight)
        return query, labels, sample_weight, flatten_reserved(reserved, of_batch, where, num_classes)

    def examples(self, x, y) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
        """A batch as heads and samplers see it, without dropout and its like.

        Returns:
            Queries float [N, D], labels int32 [N, P] padded with -1, and the examples' ids [N] or None.
        """
        query, labels, _, reserved = self._examples(x, y, None, training=False)
        return query, labels, reserved.get("example_ids")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """The training loss of a batch: over sampled classes where there is a sampler, else over all.

        What a subclass adds to it counts in training: ``evaluate`` gives the exact loss over all classes, as
        ``test_step`` computes it.
        """
        query, labels, sample_weight, reserved = self._examples(x, y, sample_weight, training)
        if training:
            query = require_finite(query, "query", self.optimizer)
        example_ids, loss = reserved.get("example_ids"), self.classification_loss
        losses = example_losses(self.head, loss, query, labels, self.sampler, example_ids, training)
        return loss.reduce(losses, sample_weight)

    def train_step(self, data):
        with kept_by_graph():
            return self._step(*unpack_x_y_sample_weight(data))

    def _step(self, x, y, sample_weight):
        examples = first_input(x)
        # At the end of data of unknown length Keras begins a step without data, which must not draw either.
        given = tf.nest.flatten(examples, expand_composites=True)[:1]
        with tf.control_dependencies(given), tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, sample_weight=sample_weight, training=True)
            replicas = tf.distribute.get_strategy().num_replicas_in_sync
            extras = [tf.cast(tf.reduce_sum(extra), loss.dtype) / replicas for extra in self.losses]
            # With reduction "none", whose gradient is that of the sum, a penalty still counts once.
            total = tf.add_n([tf.reduce_sum(self.classification_loss.share(loss)), *extras])
        self._track(loss, examples)
        variables = self.trainable_variables
        if not variables:
            warnings.warn(
                "The model has no trainable weights, so that nothing is trained: set trainable = True where "
                "layers are to train, and compile again.",
                stacklevel=2,
            )
            return self.training_logs()
        gradients = tape.gradient(total, variables)
        with tf.control_dependencies(require_finite_step(total, gradients, variables, self)):
            self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return self.training_logs()

    def training_logs(self) -> dict[str, Any]:
        """The loss and what layers measure; ranking metrics are of evaluations."""
        logs = {}
        for metric in metrics_not_compiled(self):
            result = metric.result()
            logs.update(result if isinstance(result, dict) else {metric.name: result})
        return logs

    def test_step(self, data):
        x, y, sample_weight = unpack_x_y_sample_weight(data)
        query, labels, sample_weight, reserved = self._examples(x, y, sample_weight, training=False)
        loss, exclude = self.classification_loss, reserved.get("exclude")
        num_classes = min(self._num_ranked, self.head.num_classes)
        losses, ids = self.head.losses_and_best(query, labels, loss, num_classes, exclude)
        # A metric may rank more than there are: the rest are empty slots.
        ids = tf.pad(ids, [[0, 0], [0, self._num_ranked - num_classes]], constant_values=PADDING)
        self._track(loss.reduce(losses, sample_weight), query)
        return updated_metrics(self, x, labels, ids, sample_weight)

    def _track(self, value, examples):
        """Shows the loss of a batch, or a replica's share of it, by the number of its examples."""
        value = self.classification_loss.across_replicas(value)
        self.loss_tracker.update_state(value, tf.shape(examples)[0])

    def predict_step(self, data):
        x, _, _ = unpack_x_y_sample_weight(data)
        return self._best(x)  # by class vectors of when predict began, though a thread may train

    def export(
        self,
        path: str | os.PathLike[str],
        index: InvertedIndex | None = None,
        strings: bool | str | Sequence[str] = False,
    ) -> None:
        """Writes a SavedModel of TensorFlow's own ops; ``k``, ``exclude`` and ``allow`` are optional inputs.

        See ``tfxc.serving.export.export_classifier``.
        """
        expire_averaged(self)
        self._freshen()
        export_classifier(self, path, index, strings)

    def export_item_encoder(self, path: str | os.PathLike[str]) -> None:
        """Writes the item encoder of an ``EncodedHead``: features in, class vectors out.

        See ``tfxc.serving.export.export_item_encoder``.
        """
        export_item_encoder(self.head, path)
