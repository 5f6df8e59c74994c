"""Hard negatives beside uniform ones, weighted so that together they stand for all classes."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfxc._keras import register
from tfxc._keras.weights import add_weight, constant, tf_variable
from tfxc.arguments import positive_int, real_number
from tfxc.ids import hits, is_among
from tfxc.samplers.sampler import Sampler, refuse_log_prob, refuse_options
from tfxc.samplers.step import Step

_ROOM_FOR_POSITIVES = 32


@register
class HardNegatives(Sampler):
    """The classes that score highest for an example, each once, and uniform draws from the others.

    With ``H`` the example's hard classes and ``n`` uniform draws from the ``L - |H|`` classes outside,
    the expected count of a class is 1 in ``H`` and ``n / (L - |H|)`` elsewhere: binary cross-entropy
    over the candidates is an unbiased estimate of the one over all classes, however stale ``H`` is.

    ``H`` is the example's row of a table on disk, which ``tfxc.callbacks.HardNegativeMining`` renews
    while training goes on. Batches carry example ids as the input "example_ids"
    (``tfxc.data.with_example_ids``). Slots without a hard class hold uniform draws too: all of them before
    the first table. ``SearchedHardNegatives`` needs no table.

    The example's positives are passed over: the next best class takes the slot. Losses in which a label is
    noise for the others (the softmax's "ranking" and "nce") are told of it by ``Draw.label_slots``. With
    "ranking" the class next to the hard ones is learnt somewhat too likely, since whether it is among them
    depends on the label; the less so the more draws there are.

    Args:
        num_hard: hard classes an example, in [1, L).
        num_uniform: uniform draws an example; a few for each hard one. With 0, an example that has hard
            classes gets no others, and the loss is no estimate of the full one: classes outside the table
            are not pushed down. For comparisons, or within a ``Mixture``.
        num_retrieved: columns of the table, at least num_hard; what is beyond num_hard takes the place of
            the example's positives, so leave room for as many as most examples have. Default: num_hard + 32.
        seed: int, see ``Sampler``.

    Raises:
        ValueError: for arguments outside their range, or without example ids.

    Example:
        >>> sampler = HardNegatives(2, 3, seed=1)
        >>> sampler.build((100, 8))
        >>> step = tfxc.samplers.Step(tf.zeros([4, 8]), tf.zeros([4, 1], tf.int32), example_ids=tf.range(4))
        >>> draw = sampler.sample(step)  # no table yet: 5 uniform draws
        >>> draw.ids.shape, round(float(tf.exp(draw.log_expected_count[0, 0])), 4)
        (TensorShape([4, 5]), 0.05)

    Reference:
        Mehta et al., "ASTRA: Accurate and Scalable ANNS-based Training of Extreme Classifiers", 2024.
    """

    def __init__(
        self,
        num_hard: int,
        num_uniform: int,
        *,
        num_retrieved: int | None = None,
        seed: int | None = None,
        **kwargs,
    ) -> None:
        num_hard = positive_int(num_hard, "num_hard")
        num_uniform = positive_int(num_uniform, "num_uniform", least=0)
        num_retrieved = num_hard + _ROOM_FOR_POSITIVES if num_retrieved is None else num_retrieved
        num_retrieved = positive_int(num_retrieved, "num_retrieved", least=num_hard)
        refuse_options(kwargs, ["shared"], type(self).__name__, "hard negatives are those of one example")
        super().__init__(num_hard + num_uniform, seed=seed, **kwargs)
        self.num_hard = num_hard
        self.num_uniform = num_uniform
        self.num_retrieved = self._most_retrieved = num_retrieved
        self.table: Any = None

    def get_config(self):
        config = super().get_config()
        del config["num_negatives"], config["shared"]
        own = {name: getattr(self, name) for name in ("num_hard", "num_uniform")}
        # As given, for there may be more classes once they change.
        return {**config, **own, "num_retrieved": self._most_retrieved}

    def build_index(self):
        if self.num_hard >= self.num_classes:
            raise ValueError(
                f"num_hard={self.num_hard} must be less than the {self.num_classes} classes: with as many, "
                "train without a sampler."
            )
        self.num_retrieved = min(self._most_retrieved, self.num_classes)
        self.num_active = add_weight(
            self, "num_active", (), constant(self.num_hard), dtype="int32", trainable=False
        )
        # Hard slots of the steps so far, and those of them that held a hard class.
        for name in ("slots_offered", "slots_filled"):
            options = {"dtype": "int64", "trainable": False, "aggregation": "sum"}
            setattr(self, name, add_weight(self, name, (), **options))

    def set_hard_fraction(self, fraction: float) -> None:
        """Sets the share, in [0, 1], of the hard slots in use; the others hold uniform draws."""
        fraction = real_number(fraction, "fraction")
        if not 0 <= fraction <= 1:
            raise ValueError(f"The fraction of hard negatives must be in [0, 1], but got {fraction}.")
        tf_variable(self.num_active).assign(round(fraction * self.num_hard))

    def take_filled_fraction(self) -> float:
        """The share of hard slots that held a hard class since this was last asked; NaN without a step."""
        offered, filled = (tf_variable(part) for part in (self.slots_offered, self.slots_filled))
        share = float(filled.numpy()) / offered.numpy() if offered.numpy() else float("nan")
        offered.assign(0)
        filled.assign(0)
        return share

    def retrieve(self, step: Step) -> tf.Tensor:
        """The classes that score highest for each query of a ``Step``, best first.

        Returns:
            Distinct class ids int32 [N, num_retrieved]; -1 where there is none.
        """
        if step.example_ids is None:
            raise ValueError(
                f"{type(self).__name__} reads a row for each example, but the batch has no example ids: add "
                'them as the input "example_ids" with tfxc.data.with_example_ids.'
            )
        ids = tf.numpy_function(self._look_up, [tf.cast(step.example_ids, tf.int64)], tf.int32)
        return tf.ensure_shape(ids, [None, self.num_retrieved])

    def _look_up(self, example_ids):
        if self.table is not None:
            return self.table.rows(example_ids)
        return np.full((len(example_ids), self.num_retrieved), -1, np.int32)

    def collect(self, step: Step) -> None:
        """Keeps the queries of a training step for the next table, where one is wanted."""
        tf.numpy_function(self._collect, [tf.cast(step.example_ids, tf.int64), step.query], [])

    def _collect(self, example_ids, query):
        if self.table is not None:
            self.table.collect(example_ids, query)

    def prepare(self, step: Step):
        """The step, its hard classes and the classes that are not drawn from, as of ``_split``."""
        return step, *self._split(self.retrieve(step), step.labels)

    def draw(self, given, seed):
        step, hard, passed = given
        self.collect(step)
        is_hard = hard >= 0
        tf_variable(self.slots_offered).assign_add(tf.size(is_hard, tf.int64))
        tf_variable(self.slots_filled).assign_add(tf.math.count_nonzero(is_hard))
        uniform = self._draw_outside(passed, seed)
        if self.num_uniform == 0:  # the few slots left would each stand for very many classes
            uniform = tf.where(tf.reduce_any(is_hard, 1, keepdims=True), -1, uniform)
        ids = tf.concat(
            [tf.where(is_hard, hard, uniform[:, : self.num_hard]), uniform[:, self.num_hard :]], 1
        )
        # An empty slot counts as a hard one: by the count of no draws, log 0, the loss would be NaN.
        is_certain = tf.pad(is_hard, [[0, 0], [0, self.num_uniform]]) | (ids < 0)
        return ids, tf.where(is_certain, 0.0, self._log_expected_count_outside(hard, passed))

    def log_expected_count(self, given, ids):
        _, hard, passed = given
        return tf.where(is_among(ids, passed), 0.0, self._log_expected_count_outside(hard, passed))

    def label_slots(self, given, labels):
        _, _, passed = given
        return tf.cast(is_among(labels, passed) & (labels >= 0), tf.float32)

    def log_prob(self, query, ids):
        refuse_log_prob(self, "its hard negatives are no draws")

    def _split(self, retrieved, labels):
        """Hard classes int32 [N, num_hard] and those not drawn from [N, R]; -1 marks empty slots.

        The second are the hard ones and the positives that rank among them: they too would have been hard.
        """
        valid, active = retrieved >= 0, tf_variable(self.num_active)
        is_negative = valid & (hits(retrieved, labels) < 0)
        rank = tf.cumsum(tf.cast(is_negative, tf.int32), axis=1)
        passed = valid & (rank <= active) & (active > 0)
        # The columns of the hard classes, in their order.
        order = tf.range(self.num_retrieved) + tf.where(passed & is_negative, 0, self.num_retrieved)
        columns = -tf.math.top_k(-order, self.num_hard).values
        hard = tf.gather(retrieved, columns % self.num_retrieved, batch_dims=1)
        return tf.where(columns < self.num_retrieved, hard, -1), tf.where(passed, retrieved, -1)

    def _num_outside(self, passed):
        """How many classes [N, 1] are not among those."""
        return self.num_classes - tf.reduce_sum(tf.cast(passed >= 0, tf.int64), 1, keepdims=True)

    def _draw_outside(self, passed, seed):
        """Class ids int32 [N, S], uniformly from those not in the sets [N, R]; -1 if there is none."""
        shape = [tf.shape(passed)[0], self.num_negatives]
        number = tf.random.stateless_uniform(shape, seed, None, None, tf.int64)
        num_outside = self._num_outside(passed)
        # From 64 bits: the bias of the modulo is below 1e-12.
        place = tf.cast(tf.math.floormod(number, tf.maximum(num_outside, 1)), tf.int32)
        # The n-th class outside is n + how many inside come before it.
        ordered = tf.sort(tf.where(passed >= 0, passed, tf.int32.max), axis=1)
        before = ordered - tf.range(self.num_retrieved)
        ids = place + tf.searchsorted(before, place, side="right")
        return tf.where(num_outside > 0, ids, -1)

    def _log_expected_count_outside(self, hard, passed):
        """Log of the expected count [N, 1] of a class that is not hard."""
        num_hard = tf.reduce_sum(tf.cast(hard >= 0, tf.int32), 1, keepdims=True)
        num_draws = self.num_negatives - num_hard
        if self.num_uniform == 0:
            num_draws = tf.where(num_hard > 0, 0, num_draws)
        num_outside = tf.maximum(self._num_outside(passed), 1)
        return tf.math.log(tf.cast(num_draws, tf.float32)) - tf.math.log(tf.cast(num_outside, tf.float32))
