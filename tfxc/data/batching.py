"""Turns row numbers into batches, in order or shuffled, inside tf.data. No Python runs per example."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops.dataset_ops import UnaryUnchangedStructureDataset

from tfxc.arguments import positive_int, seed_int

# With 4 rounds, the default, a quarter of the pairs of a million rows that share a batch share the next.
_ROUNDS = 12


def in_any_order(step: tf.data.Dataset) -> bool:
    """Whether a dataset may yield its elements in another order each time, for speed."""
    return getattr(step, "_deterministic", None) == "false" or step.options().deterministic is False


class EpochOrder:
    """The number of the epoch whose order a shuffled dataset uses next. Each reading is one more epoch.

    The dataset holds it as ``epoch_order``, so that a resumed training can set it.
    """

    def __init__(self):
        self.next = 0

    def take(self):
        """Returns the number of the epoch that is read now."""
        self.next += 1
        return np.int64(self.next - 1)


def epoch_orders(dataset: tf.data.Dataset) -> list[EpochOrder]:
    """Returns every ``EpochOrder`` of a dataset and of the datasets that it is made of."""
    if hasattr(dataset, "epoch_order"):
        return [dataset.epoch_order]
    return [order for part in dataset._inputs() for order in epoch_orders(part)]


def row_batches(
    num_rows: int, batch_size: int, batch_of: Callable, seed: int | None = None
) -> tf.data.Dataset:
    """Returns a dataset of ``batch_of(rows)`` for batches of row numbers int64 [B]. The last may be smaller.

    Args:
        num_rows: N, at least 1.
        batch_size: B, at least 1.
        batch_of: function from row numbers to a batch, in TensorFlow ops.
        seed: decides, with the number of the epoch, the order of the rows; None keeps the given order.

    Raises:
        ValueError: for numbers below 1, or a seed that is not an integer of 64 bits.

    Example:
        >>> [rows.numpy().tolist() for rows in row_batches(5, 2, lambda rows: rows)]
        [[0, 1], [2, 3], [4]]
    """
    num_rows, batch_size = positive_int(num_rows, "num_rows"), positive_int(batch_size, "batch_size")
    # The thread that tunes a pipeline may let the end of fit wait, up to as long again as fit took.
    options = tf.data.Options()
    options.autotune.enabled = False
    if seed is None:
        return _in_order(num_rows, batch_size, batch_of).with_options(options)

    seed, order = seed_int(seed), EpochOrder()

    def shuffled(_):
        epoch = tf.ensure_shape(tf.numpy_function(order.take, [], tf.int64), [])
        draw = tf.stack([tf.constant(seed, tf.int64), epoch])
        # The key must be random bits: the permutation reads its lowest bits, in which two seeds may agree.
        key = tf.random.stateless_uniform([3], draw, None, None, tf.int64, "philox")
        last = tf.constant(num_rows - 1, tf.int64)

        def permuted(rows):
            # RandomIndexShuffle permutes index by index, without a buffer of the dataset's length.
            rows = tf.raw_ops.RandomIndexShuffle(index=rows, seed=key, max_index=last, rounds=_ROUNDS)
            return batch_of(rows)

        return _in_order(num_rows, batch_size, permuted)

    dataset = tf.data.Dataset.range(1).flat_map(shuffled)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(-(-num_rows // batch_size)))
    dataset = dataset.with_options(options)
    dataset.epoch_order = order
    return dataset


def _in_order(num_rows, batch_size, batch_of):
    def batch(start):
        return batch_of(tf.range(start, tf.minimum(start + batch_size, num_rows)))

    starts = tf.data.Dataset.range(0, num_rows, batch_size)
    return starts.map(batch, tf.data.AUTOTUNE, deterministic=True).prefetch(tf.data.AUTOTUNE)


class WithCardinality(UnaryUnchangedStructureDataset):
    """A dataset with the cardinality of another, which Keras takes for the length of all epochs."""

    def __init__(self, dataset: tf.data.Dataset, whole: tf.data.Dataset):
        super().__init__(dataset, dataset._variant_tensor)
        self._whole = whole

    def cardinality(self):
        return self._whole.cardinality()
