"""The contract of a sampler: one question a step, one answer."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfxc._keras import keras
from tfxc._keras.weights import add_counter, add_weight, constant, tf_variable
from tfxc.arguments import positive_int, seed_or_drawn
from tfxc.class_rows import ClassRows
from tfxc.class_vectors import require_current
from tfxc.ids import check_ids
from tfxc.samplers.step import Draw, Question, Step
from tfxc.scored import Scored


class Sampler(keras.layers.Layer):
    """Draws S candidate classes a query, and knows how often every class was expected among them.

    A training step asks ``sample(Step) -> Draw``. A subclass defines:

    * ``draw(given, seed)``: candidate ids int32 [N, S] and their log expected counts float32 [N, S].
    * ``log_expected_count(given, ids)``: the log expected counts [N, P] of any class ids [N, P].
    * optionally ``prepare(step)``: what the two share as ``given``, computed once; by default the queries.

    These three change nothing: they write neither into ``given`` nor into a variable. A sampler that learns
    from the steps moves its state in ``observe(step)``, which ``sample`` calls once before it draws, or in
    ``learn(step, draw, scored)``, which a training step calls after it. A sampler that looks at the class
    vectors creates variables in ``build_index`` and assigns them in ``refresh(head)``. The other methods are
    ``label_slots``, and ``class_rows`` and ``classes_changed`` for other classes.

    A sampler that does not know its expected counts defines ``sample(step) -> Draw`` instead, as ``DNS``
    does. It has no place in a ``Mixture``, and no diagnostics.

    With ``shared=True`` one set of draws serves the whole batch: the methods above then see one query [1, D],
    the mean, with all labels in its row, and the base class turns the answers back. A sampler that draws S
    times with replacement from a distribution Q adds ``log_num_draws`` to ``log Q``.

    Random numbers come from (seed, replica, counter). Only ``next_seed`` moves the counter, which is saved
    with the model: the same seed gives the same draws, also after a restart.

    Args:
        num_negatives: S, the number of draws.
        shared: whether one set of S candidates serves the whole batch; else each query has its own.
        seed: int; by default taken from Python's ``random``, which ``keras.utils.set_random_seed`` seeds.

    Raises:
        ValueError: if num_negatives is not a positive integer or the seed not an integer of 64 bits; if the
            sampler is asked before it is built.

    Example:
        >>> class FirstHalf(Sampler):
        ...     def draw(self, given, seed):
        ...         shape = [tf.shape(given)[0], self.num_negatives]
        ...         ids = tf.random.stateless_uniform(shape, seed, 0, self.num_classes // 2, tf.int32)
        ...         return ids, self.log_expected_count(given, ids)
        ...
        ...     def log_expected_count(self, given, ids):
        ...         half = self.num_classes // 2
        ...         return self.log_num_draws + tf.where(ids < half, -tf.math.log(float(half)), float("-inf"))
        >>> sampler = FirstHalf(4, seed=1)
        >>> sampler.build((100, 8))
        >>> draw = sampler.sample(Step(tf.zeros([2, 8]), tf.zeros([2, 1], tf.int32)))
        >>> draw.ids.shape, bool(tf.reduce_all(draw.ids < 50))
        (TensorShape([2, 4]), True)
    """

    def __init__(
        self, num_negatives: int, *, shared: bool = False, seed: int | None = None, **kwargs
    ) -> None:
        super().__init__(**kwargs)
        self.num_negatives = positive_int(num_negatives, "num_negatives")
        self.shared = bool(shared)
        self.seed = seed_or_drawn(seed)
        self.stream = 0  # a Mixture numbers parts of the same seed, so that their draws differ
        self.supports_jit = False

    def get_config(self):
        own = {"num_negatives": self.num_negatives, "shared": self.shared, "seed": self.seed}
        return {**super().get_config(), **own}

    def build(self, input_shape):
        """Creates the index for ``input_shape = (L, D)``, D the width of the effective query."""
        self.num_classes, self.query_dim = (int(size) for size in input_shape)
        self.counter = add_counter(self, "counter", aggregation="only_first_replica")
        self.build_index()
        super().build(input_shape)

    def build_index(self) -> None:
        """Creates the variables of the index (of ``num_classes``, ``query_dim``), valid before a refresh."""

    def _add_weights(self, values: Mapping[str, np.ndarray]) -> None:
        """Adds weights that do not train, by name and first value."""
        for name, value in values.items():
            weight = add_weight(self, name, value.shape, constant(value), value.dtype.name, trainable=False)
            setattr(self, name, weight)

    def _assign_weights(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            tf_variable(getattr(self, name)).assign(value)

    def refresh(self, head) -> None:
        """Rebuilds the index from the head's class vectors; by default there is no index.

        ``SamplerRefresh`` calls it for a sampler that overrides it. A sampler that asks ``Step.score`` may
        override it to do nothing, so that a head brings the class vectors that it caches up to date.
        """

    def check_head(self, head) -> None:
        """Raises ValueError for a head of another number of classes or of vectors of another width."""
        require_current(head)  # as everybody does who builds an index
        built = self.num_classes, self.query_dim
        found = head.num_classes, head.class_vectors(0, 1).shape[1]
        if found != built:
            raise ValueError(
                f"{type(self).__name__} was built for {built[0]} classes with vectors of width {built[1]}, "
                f"but the head has {found[0]} of width {found[1]}: build it with {found}."
            )

    def class_rows(self) -> list[ClassRows]:
        """The weights with a row for each class, which ``change_classes`` moves by name; by default none."""
        return []

    def classes_changed(self, head, added: np.ndarray) -> None:
        """Makes the index fit the head of the changed model, by default by a refresh.

        ``class_rows`` and all weights of unchanged shape are in place by then. ``added`` int64 [n] are the
        ids of classes that were not there before, ascending.
        """
        self.refresh(head)

    def sample(self, step: Step) -> Draw:
        """The candidates of a training step, as a ``Draw``; its counts carry no gradient."""
        question = self.ask(step)
        self.observe(step.seen_by(self))
        ids, log_expected_count = question.draw()
        of_labels = question.log_expected_count(step.labels)
        counts = tf.nest.map_structure(tf.stop_gradient, log_expected_count)
        return Draw(ids, counts, tf.stop_gradient(of_labels), question.label_slots(step.labels))

    def ask(self, step: Step) -> Question:
        """The ``Question`` of a step, for more counts than those of a ``Draw``. It observes nothing."""
        return Question(self, step)

    def observe(self, step: Step) -> None:
        """Called once a training step, before its draw, with the ``Step`` as ``prepare`` sees it."""

    def learn(self, step: Step, draw: Draw, scored: Callable[[], tuple[Scored, Scored]]) -> None:
        """Called once a training step, after its ``Draw``, for a proposal that learns from scores.

        ``scored()`` returns ``Scored`` [N, P] of the labels and [N, S] of the candidates, without empty slots
        and candidates that equal a label. If a sampler calls it, the loss of the step is computed from these
        scores, too; else the head may take a path that never has them one by one.
        """

    def prepare(self, step: Step):
        """What ``draw`` and ``log_expected_count`` get as ``given``; by default the queries."""
        return step.query

    def draw(self, given, seed: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Candidates int32 [N, S] and the log expected count of each float32 [N, S].

        A draw that finds out what ``log_expected_count`` would compute again returns it as a third: the
        ``given`` that is used from then on.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define draw(given, seed).")

    def log_expected_count(self, given, ids: tf.Tensor) -> tf.Tensor:
        """Log expected counts float32 [N, P] of class ids int32 [N, P] in [0, L)."""
        raise ValueError(
            f"{type(self).__name__} does not know how often a class is expected among its candidates: it "
            "cannot be mixed, nor measured against the softmax. Define log_expected_count(given, ids), or "
            "sample(step) -> Draw."
        )

    def label_slots(self, given, labels: tf.Tensor) -> tf.Tensor | None:
        """``Draw.label_slots`` of labels int32 [N, P]; by default None, since no label is passed over."""

    @property
    def log_num_draws(self) -> tf.Tensor:
        """log S."""
        return tf.math.log(float(self.num_negatives))

    def log_prob(self, query, ids) -> tf.Tensor:
        """log Q(i | z) of S draws with replacement from Q; ValueError if they are not of one distribution.

        Effective queries float32 [N, D] and ids int32 [N, P], or [P] for all queries, give float32 [N, P];
        ids [P] of shared draws [P]. An id outside [-1, L) raises an InvalidArgumentError.
        """
        question = self.ask(Step(query, tf.zeros([tf.shape(query)[0], 0], tf.int32)))
        return question.log_expected_count(check_ids(ids, self.num_classes, "class")) - self.log_num_draws

    def next_seed(self) -> tf.Tensor:
        """[2] integers that no other draw of this sampler has seen."""
        replica = tf.distribute.get_replica_context()
        replica = 0 if replica is None else replica.replica_id_in_sync_group
        count = tf_variable(self.counter)
        if tf.DeviceSpec.from_string(count.device).job == "ps":
            # Several workers count at once: two that add and then read could get the same number.
            number = (_count_up_in_graph if tf.executing_eagerly() else _count_up)(count)
        else:
            count.assign_add(1)
            number = count.read_value()
        own = tf.cast(replica, tf.int64) * 2**32 + self.stream * 2**48
        return tf.stack([self.seed + own, number])


def _count_up(count):
    """Adds 1 to a variable and returns its value, in one op."""
    return tf.raw_ops.ResourceCountUpTo(resource=count.handle, limit=2**62, T=tf.int64) + 1


# Eagerly, the op does not reach a variable of another process.
_count_up_in_graph = tf.function(_count_up, autograph=False)


def no_log_prob(why):
    """The ``log_prob`` of a sampler that follows no one distribution."""

    def log_prob(self, query, ids):
        """Raises ValueError: ask for expected counts instead."""
        raise ValueError(
            f"{type(self).__name__} has no log_prob: {why}. Ask for expected counts: "
            "sampler.ask(tfxc.samplers.Step(query, labels)).log_expected_count(ids)."
        )

    return log_prob


def refuse_options(options, names, owner, why):
    """Raises ValueError for keyword arguments of ``Sampler`` that a subclass does not take."""
    for name in names:
        if name in options:
            raise ValueError(f"{owner} takes no {name}=: {why}.")


def knows_counts(sampler):
    """Whether a sampler says how often a class is expected among its candidates."""
    return type(sampler).log_expected_count is not Sampler.log_expected_count
