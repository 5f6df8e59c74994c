"""Hard negatives and uniform ones, weighted so that together they stand for all classes."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfxc._keras import register
from tfxc._keras.weights import add_counter, add_weight, constant, tf_variable
from tfxc.arguments import number_in, positive_int
from tfxc.ids import hits, is_among
from tfxc.samplers.sampler import Sampler, no_log_prob, refuse_options
from tfxc.samplers.step import Step

_ROOM_FOR_POSITIVES = 32


class HardAndUniform(Sampler):
    """The classes that score highest for an example, each once, and uniform draws from the others.

    A subclass finds the classes that score highest in ``retrieve(step)``, which changes nothing.
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

    def get_config(self):
        config = super().get_config()
        del config["num_negatives"], config["shared"]
        own = {name: getattr(self, name) for name in ("num_hard", "num_uniform")}
        # num_retrieved as given: the number of classes, which limits it, may change.
        return {**config, **own, "num_retrieved": self._most_retrieved}

    def build_index(self):
        if self.num_hard >= self.num_classes:
            raise ValueError(
                f"num_hard={self.num_hard} must be less than the {self.num_classes} classes: with as many, "
                "train without a sampler."
            )
        self.num_retrieved = min(self._most_retrieved, self.num_classes)
        active = constant(self.num_hard)
        self.num_active = add_weight(self, "num_active", (), active, "int32", trainable=False)

    def set_hard_fraction(self, fraction: float) -> None:
        """Sets the share in [0, 1] of the hard slots that hard classes fill; the others get uniform draws."""
        fraction = number_in(fraction, "fraction", "[0, 1]")
        tf_variable(self.num_active).assign(round(fraction * self.num_hard))

    def retrieve(self, step: Step) -> tf.Tensor:
        """The classes that score highest for each query: distinct int32 [N, num_retrieved], -1 for none."""
        raise NotImplementedError(f"{type(self).__name__} does not define retrieve(step).")

    def prepare(self, step: Step):
        """The hard classes, and the classes that uniform draws leave out, as of ``_split``."""
        retrieved = self.retrieve(step)
        if step.approximate and step.score is not None:  # an index found them by what only comes near
            scores = tf.where(retrieved >= 0, step.score(retrieved), float("-inf"))
            order = tf.argsort(scores, axis=1, direction="DESCENDING", stable=True)
            retrieved = tf.gather(retrieved, order, batch_dims=1)
        return self._split(retrieved, step.labels)

    def draw(self, given, seed):
        hard, passed = given
        is_hard = hard >= 0
        uniform = self._draw_outside(passed, seed)
        if self.num_uniform == 0:  # draws in the few slots left would each stand for very many classes
            uniform = tf.where(tf.reduce_any(is_hard, 1, keepdims=True), -1, uniform)
        first = tf.where(is_hard, hard, uniform[:, : self.num_hard])
        ids = tf.concat([first, uniform[:, self.num_hard :]], 1)
        # An empty slot gets the count of a hard class: that of no draws is log 0, which makes the loss NaN.
        is_certain = tf.pad(is_hard, [[0, 0], [0, self.num_uniform]]) | (ids < 0)
        return ids, tf.where(is_certain, 0.0, self._log_expected_count_outside(hard, passed))

    def log_expected_count(self, given, ids):
        hard, passed = given
        return tf.where(is_among(ids, passed), 0.0, self._log_expected_count_outside(hard, passed))

    def label_slots(self, given, labels):
        _, passed = given
        return tf.cast(is_among(labels, passed) & (labels >= 0), tf.float32)

    log_prob = no_log_prob("its hard negatives are not drawn")

    def _split(self, retrieved, labels):
        """Hard classes int32 [N, num_hard], and the classes [N, R] left out of draws; -1 marks empty slots.

        Left out are the hard classes and the positives that rank among them, since they would be hard too.
        """
        valid, active = retrieved >= 0, tf_variable(self.num_active).read_value()
        is_negative = _is_negative(retrieved, labels)
        rank = tf.cumsum(tf.cast(is_negative, tf.int32), axis=1)
        passed = valid & (rank <= active) & (active > 0)
        # The columns of the hard classes, best first.
        order = tf.range(self.num_retrieved) + tf.where(passed & is_negative, 0, self.num_retrieved)
        columns = -tf.math.top_k(-order, self.num_hard).values
        hard = tf.gather(retrieved, columns % self.num_retrieved, batch_dims=1)
        return tf.where(columns < self.num_retrieved, hard, -1), tf.where(passed, retrieved, -1)

    def _num_outside(self, passed):
        """The number of classes [N, 1] that are not passed over."""
        return self.num_classes - tf.reduce_sum(tf.cast(passed >= 0, tf.int64), 1, keepdims=True)

    def _draw_outside(self, passed, seed):
        """Class ids int32 [N, S], drawn uniformly from all but the passed ones [N, R]; -1 if none is left."""
        shape = [tf.shape(passed)[0], self.num_negatives]
        number = tf.random.stateless_uniform(shape, seed, None, None, tf.int64)
        num_outside = self._num_outside(passed)
        # With 64 bits the bias of the modulo is below 1e-12.
        place = tf.cast(tf.math.floormod(number, tf.maximum(num_outside, 1)), tf.int32)
        # The n-th class outside has the id n plus the number of classes inside that come before it.
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


def _is_negative(retrieved, labels):
    """Whether ids [N, R] are classes, and not labels of their example."""
    return (retrieved >= 0) & (hits(retrieved, labels) < 0)


@register
class HardNegatives(HardAndUniform):
    """The classes that score highest for an example, each once, and uniform draws from the others.

    With ``H`` the example's hard classes and ``n`` uniform draws from the ``L - |H|`` classes outside,
    the expected count of a class is 1 in ``H`` and ``n / (L - |H|)`` elsewhere: binary cross-entropy
    over the candidates is an unbiased estimate of the one over all classes, however stale ``H`` is.

    ``H`` is the example's row of a table on disk, which ``tfxc.callbacks.HardNegativeMining`` renews
    while training goes on. Batches carry example ids as the input "example_ids"
    (``tfxc.data.with_example_ids``). Slots without a hard class hold uniform draws too; before the first
    table these are all slots. ``SearchedHardNegatives`` needs no table.

    The sampler passes over the example's positives: the next best class takes the slot. ``Draw.label_slots``
    tells it to losses in which a label is noise for the others (the softmax's "ranking" and "nce"). With
    "ranking" the model gives somewhat too much probability to the class that ranks next after the hard ones.

    Args:
        num_hard: hard classes an example, in [1, L).
        num_uniform: uniform draws an example; eight for each hard one in the paper. With 0, an example that
            has hard classes gets no others, and the loss does not estimate the full one: nothing pushes down
            classes outside the table (docs/benchmarks/tagging.md).
        num_retrieved: columns of the table, at least num_hard; by default num_hard + 32. Those beyond
            num_hard take the place of the example's positives.
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

    table: Any = None

    def build_index(self):
        super().build_index()
        # The hard slots of the steps so far, and how many of them held a hard class.
        self.slots_offered = add_counter(self, "slots_offered")
        self.slots_filled = add_counter(self, "slots_filled")

    def take_filled_fraction(self) -> float:
        """The share of hard slots that held a hard class since the last call; NaN without a step."""
        offered, filled = tf_variable(self.slots_offered), tf_variable(self.slots_filled)
        share = float(filled.numpy()) / offered.numpy() if offered.numpy() else float("nan")
        offered.assign(0)
        filled.assign(0)
        return share

    def retrieve(self, step):
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

    def observe(self, step):
        """Hands the queries to the table, if it wants them for the next one, and counts filled hard slots."""
        example_ids = tf.cast(step.example_ids, tf.int64)
        places = tf.numpy_function(self._collect, [example_ids, step.query], tf.int32)
        if step.encoder_query is not None:
            checked = tf.cast(tf.gather(step.encoder_query, places), tf.float32)
            tf.numpy_function(self._collect_checked, [tf.gather(example_ids, places), checked], [])
        is_negative = _is_negative(self.retrieve(step), step.labels)
        num_filled = tf.math.count_nonzero(is_negative, 1)
        num_filled = tf.minimum(num_filled, tf.cast(tf_variable(self.num_active), tf.int64))
        tf_variable(self.slots_filled).assign_add(tf.reduce_sum(num_filled))
        num_offered = self.num_hard * tf.shape(is_negative, tf.int64)[0]
        tf_variable(self.slots_offered).assign_add(num_offered)

    def _collect(self, example_ids, query):
        if self.table is None:
            return np.zeros(0, np.int32)
        return self.table.collect(example_ids, query)

    def _collect_checked(self, example_ids, query):
        if self.table is not None:
            self.table.collect_checked(example_ids, query)
