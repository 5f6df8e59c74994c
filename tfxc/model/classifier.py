"""The model: an encoder, a head, and which classes a step scores."""

from collections.abc import Collection
from typing import Any

import tensorflow as tf

from tfxc._keras import keras, register
from tfxc._keras.layers import Untracked, forget_layer, kinds_of, no_autocast, require_layer
from tfxc._keras.training import (
    LogsOfAllReplicas,
    Mean,
    StartsAtBatch,
    adopt_own_loss_and_metrics,
    drop_compiled_metrics,
    forget_compile,
)
from tfxc.arguments import positive_int, require_count
from tfxc.cluster.place import place
from tfxc.layers.head import Head
from tfxc.model import checks
from tfxc.model.batch import BatchMixin
from tfxc.model.fit import (
    bound_arguments,
    clean_ranking,
    joined_by_callbacks,
    require_ready,
    with_own_callbacks,
)
from tfxc.model.fresh_cache import FreshMixin, with_fresh_cache
from tfxc.model.inputs import (
    as_tensor,
    encoded,
    first_examples,
    last_position,
    query_width,
    ranking_inputs,
    refuse_raw_names,
    split_inputs,
)
from tfxc.model.saving import SavingMixin
from tfxc.model.step import build_parts, check_kinds, check_loss, require_sampler
from tfxc.samplers.sampler import Sampler
from tfxc.serving.export import ServingMixin

_NO_BATCH = "x holds no example: the data end before the first batch."


@register
class ExtremeClassifier(
    BatchMixin, FreshMixin, SavingMixin, ServingMixin, StartsAtBatch, LogsOfAllReplicas, keras.Model
):
    """A Keras model with 100 thousand to 10 million classes, trained, evaluated and served on one machine.

    A training step scores the positives and the sampler's candidates (or, without a sampler, all classes);
    ``evaluate`` gives the exact loss over all classes and the ranking metrics, ``predict`` the best ``k``
    classes. All classes are streamed in blocks: nothing holds a ``[B, L]`` tensor.

    Inputs: the encoder's. A dict may carry the reserved keys ``"exclude"``: class ids [B, X] padded with -1,
    or in a batch of a data set [1, X] for all of it, that ``evaluate`` and ``predict`` do not rank; and
    ``"example_ids"``, integers [B] ([B, T] for sequences), for samplers that read them.

    Labels: class ids [B] or [B, P] padded with -1; for an encoder that gives [B, T, D], [B, T] or
    [B, T, P], where -1 also masks a position. RaggedTensor and SparseTensor (ids as values) too.
    Sample weights: [B], for sequences also [B, T].

    Args:
        encoder: a Keras model, inputs -> queries [B, D] or [B, T, D].
        head: a ``tfxc.layers`` head.
        sampler: None for all classes, or a ``tfxc.samplers`` sampler.
        k: how many classes ``predict`` returns, at least 1; all of them if there are fewer.
        class_names: None or the L raw names of the classes, in id order; kept with the saved model. Bytes are
            taken as UTF-8. Or a ``tfxc.data.GrowingVocabulary`` of capacity L, for training on names.

    Returns:
        From ``predict``: ``{"ids": int32 [B, k], "scores": float32 [B, k]}``, best first; id -1 where fewer
        than k classes are left. A sequence answers by the query of its last unmasked position.

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
        require_layer(encoder, "encoder")
        check_kinds(head, sampler)
        k = positive_int(k, "k")
        head, sampler = place(head, sampler)
        self.encoder = encoder
        self.head = head
        self.sampler: Sampler | Any = sampler  # Any: code that asks the sampler knows that there is one
        self.k = k
        self._trained_with = Untracked(None)  # the sampler of the traced step
        self._built_on = Untracked(None)  # the kinds of inputs, of an encoder that does not tell them
        self.loss_tracker = Mean(name="loss")
        self._share_tied = Untracked(Mean(name="tied"))
        self.supports_jit = False
        # Encoder and head cast for themselves: ids and times, cast earlier, would lose digits.
        no_autocast(self)
        query_dim = query_width(encoder)
        if query_dim is not None:
            self._build_parts(query_dim)
        self._name_classes(class_names)

    def __setattr__(self, name, value):
        before = vars(self).get(name)
        if before is not None and before is not value:
            if name in ("encoder", "head"):
                raise ValueError(
                    f"The {name} of a model cannot be exchanged: optimizer and traced steps are made for it. "
                    "Make another model, ExtremeClassifier(encoder, head, ...), and compile that."
                )
            if name == "sampler":
                forget_layer(self, before)
                _, value = place(self.head, value)
        super().__setattr__(name, value)

    @property
    def metrics(self):
        """All metrics, the loss first: the order in which Keras returns results."""
        return [self.loss_tracker, *(metric for metric in super().metrics if metric is not self.loss_tracker)]

    def _build_parts(self, query_dim):
        check_kinds(self.head, self.sampler)  # the sampler may be a new one
        self.head.share(self.encoder)
        build_parts(self.head, self.sampler, query_dim)
        self.built = True

    def compile(self, optimizer="rmsprop", loss=None, metrics=None, weighted_metrics=None, **kwargs):
        """As Keras's ``compile``; the loss is one of ``tfxc.losses``, the metrics of ``tfxc.metrics``."""
        checks.refuse_consumed(self)
        check_loss(self.head, loss)
        require_sampler(loss, self.sampler)
        checks.warn_of_poor_draws(self.head, loss, self.sampler)
        checks.warn_of_biases(self.head, loss, self.sampler)
        options = checks.compile_options(kwargs)
        num_classes = self.head.num_classes
        plain = checks.ranking_metrics(metrics, "metrics", num_classes)
        weighted = checks.ranking_metrics(weighted_metrics, "weighted_metrics", num_classes)
        ranking = {"metrics": plain or None, "weighted_metrics": weighted or None}
        drop_compiled_metrics(self)
        super().compile(optimizer=optimizer, loss=loss, **ranking, **options)
        self._forget_computed()
        try:
            checks.refuse_optimizer(self.optimizer, self.distribute_strategy)
        except ValueError:
            forget_compile(self)
            raise
        adopt_own_loss_and_metrics(self)
        self.classification_loss = loss
        self._num_ranked = max([self.k] + [metric.k for metric in plain + weighted])

    def summary(self, *args, **kwargs):
        """As Keras's ``summary``, and a line about the head's memory."""
        super().summary(*args, **kwargs)
        (kwargs.get("print_fn") or print)(self.head.describe())

    def fit(self, x=None, *args, **kwargs):
        """As Keras's ``fit``; ``class_weight`` is refused. An error begins with what is wrong.

        A sampler with an index gets a ``SamplerRefresh``, unless the callbacks have one. A ``FitCallback``,
        such as ``BackupAndRestore``, surrounds the call and may change its arguments.
        """
        arguments = bound_arguments(super().fit, x, *args, **kwargs)
        require_ready(self, arguments)
        arguments["callbacks"] = with_own_callbacks(self, arguments["callbacks"])
        with joined_by_callbacks(self, arguments):
            super().fit(**arguments)
        history = self.history  # also where the context of a callback ends an error
        if history.epoch and all("/" in name for name in history.history):  # of callbacks alone
            raise ValueError(_NO_BATCH)
        return history

    def evaluate(self, x=None, y=None, *args, **kwargs):
        """As Keras's ``evaluate``. An error begins with what is wrong."""
        self._freshen(x)
        with clean_ranking(), self._warned_of_ties():
            results = self._with_fresh_cache(super().evaluate, x, y, *args, **kwargs)
        # Within fit it may be a generator of a former epoch, which is no reason to stop.
        if isinstance(results, list | dict) and not results and "_use_cached_eval_dataset" not in kwargs:
            raise ValueError(_NO_BATCH)
        return results

    def predict(self, x, *args, **kwargs):
        """As Keras's ``predict``. An error begins with what is wrong."""
        self._freshen(x)
        with clean_ranking():
            try:
                return self._with_fresh_cache(super().predict, x, *args, **kwargs)
            except UnboundLocalError as error:  # of Keras 3, where a data set ends before its first batch
                if "batch_outputs" not in str(error):
                    raise
                raise ValueError(_NO_BATCH) from error

    def _with_fresh_cache(self, method, *args, **kwargs):
        arguments = bound_arguments(method, *args, **kwargs)
        arguments["callbacks"] = with_fresh_cache(arguments.get("callbacks"), self.head)
        return method(**arguments)

    def _build_on(self, x):
        """Builds a model by its first examples if only its encoder's output tells the width of queries."""
        first = None if self.built else first_examples(x)
        if first is not None:
            with self.distribute_strategy.scope():
                self._encoded(split_inputs(first, self.encoder)[0], training=False)

    def call(self, inputs, training=None):
        with tf.control_dependencies([] if training else self._freshen(inputs)):
            return self._best(inputs, training)

    def _best(self, inputs, training=False):
        """The k best classes of encoder inputs, among which ``exclude`` may stand."""
        inputs, reserved = split_inputs(inputs, self.encoder)
        k = min(self.k, self.head.num_classes)
        return self._rank(inputs, k, reserved.get("exclude"), training=training)

    def rank(
        self,
        inputs,
        k: int | tf.Tensor,
        exclude=None,
        allow=None,
        training: bool = False,
        attributes=None,
        **where,
    ) -> dict[str, tf.Tensor]:
        """The k best classes of encoder inputs, ``{"ids": [B, k], "scores": [B, k]}``, in one graph.

        Args:
            inputs: the encoder's, also as lists; in a dict of them ``exclude`` may stand instead.
            k: an int in [1, L] or an int32 scalar tensor.
            exclude, allow: None or class ids, see ``Head.top_k``.
            training: whether the encoder runs as in training.
            attributes, **where: as of ``Head.top_k``.

        Raises:
            ValueError: for another k, if ``exclude`` comes twice, or as ``Head.top_k``.
        """
        require_count(k, "k", self.head.num_classes)
        given = ranking_inputs(inputs, self.encoder, exclude, allow, attributes, where)
        inputs, exclude, allow, where = given
        fresh = self._freshen(inputs)
        if not self.built:
            return self._rank(inputs, k, exclude, allow, training, attributes, where)
        if self._ranking is None:
            self._ranking = Untracked(tf.function(self._rank, reduce_retracing=True, autograph=False))
        with clean_ranking(), tf.control_dependencies(fresh):
            return self._ranking.value(inputs, as_tensor(k), exclude, allow, training, attributes, where)

    def _rank(self, inputs, k, exclude=None, allow=None, training=False, attributes=None, where=()):
        query = self.queries(inputs, training)
        scores, ids = self.head.top_k(query, k, exclude, allow, attributes=attributes, **dict(where))
        return {"ids": ids, "scores": scores}

    def queries(self, inputs, training: bool = False) -> tf.Tensor:
        """The encoder's queries [B, D]; of a sequence, the query of its last unmasked position."""
        return last_position(self._encoded(inputs, training))

    def _encoded(self, inputs, training):
        """The encoder's output; the first call builds head and sampler."""
        checks.refuse_consumed(self)
        if self.vocabulary is not None:
            refuse_raw_names(inputs)
        query = encoded(self.encoder, inputs, training)
        if not (self.built and self.head.built):  # tf-keras calls a model built before its first call
            self._built_on = Untracked(kinds_of(inputs))
        if query.shape[-1] is None and not self.head.built:
            raise ValueError(
                f"The encoder gives {query.shape} here, whose width is not known: call the model on one "
                "batch first, or have the encoder call set_shape."
            )
        self._build_parts(query.shape[-1])
        return query
