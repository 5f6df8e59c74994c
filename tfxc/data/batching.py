"""Row numbers to batches, in order or shuffled, inside tf.data: no Python runs per example."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tfxc.arguments import positive_int, seed_int

# With the 4 of index_shuffle, a quarter of the pairs that share a batch, of a million rows, share the next.
_ROUNDS = 12


def in_any_order(step: tf.data.Dataset) -> bool:
    """Whether a dataset may give its elements in another order each time, for the sake of speed.

    Example:
        >>> numbers = tf.data.Dataset.range(3)
        >>> one_by_one = numbers.map(lambda i: i, num_parallel_calls=2)
        >>> as_they_come = numbers.map(lambda i: i, num_parallel_calls=2, deterministic=False)
        >>> in_any_order(one_by_one), in_any_order(as_they_come)
        (False, True)
    """
    return getattr(step, "_deterministic", None) == "false" or step.options().deterministic is False


class EpochOrder:
    """Which epoch's order a shuffled dataset gives when it is read next; each reading is one epoch more.

    Found as ``epoch_order`` on the dataset, for whoever goes on in the middle of a training.

    Example:
        >>> dataset = row_batches(100, 100, lambda rows: rows, seed=0)
        >>> first, second = (next(iter(dataset)).numpy() for _ in range(2))
        >>> dataset.epoch_order.next = 1
        >>> np.array_equal(next(iter(dataset)), second)
        True
    """

    def __init__(self):
        self.next = 0

    def take(self):
        """The number of the epoch that is read now."""
        self.next += 1
        return np.int64(self.next - 1)


def epoch_orders(dataset: tf.data.Dataset) -> list[EpochOrder]:
    """Those that a dataset reads, itself or what it is made of.

    Example:
        >>> dataset = row_batches(100, 10, lambda rows: rows, seed=0)
        >>> epoch_orders(dataset.map(lambda rows: rows + 1)) == [dataset.epoch_order]
        True
    """
    if hasattr(dataset, "epoch_order"):
        return [dataset.epoch_order]
    return [order for part in dataset._inputs() for order in epoch_orders(part)]


def row_batches(
    num_rows: int, batch_size: int, batch_of: Callable, seed: int | None = None
) -> tf.data.Dataset:
    """A dataset of ``batch_of(rows)``, each for the numbers int64 [B] of some rows; the last may be smaller.

    Args:
        num_rows: N, at least 1.
        batch_size: B, at least 1.
        batch_of: function of row numbers to a batch, in TensorFlow ops.
        seed: rows are shuffled anew in each epoch, in an order that seed and epoch decide; None keeps theirs.

    Raises:
        ValueError: for a batch_size below 1, or a seed that is no integer of 64 bits.

    Example:
        >>> [rows.numpy().tolist() for rows in row_batches(5, 2, lambda rows: rows)]
        [[0, 1], [2, 3], [4]]
    """
    batch_size = positive_int(batch_size, "batch_size")
    if seed is None:
        return _in_order(num_rows, batch_size, batch_of)

    seed, order = seed_int(seed), EpochOrder()

    def shuffled(_):
        epoch = tf.ensure_shape(tf.numpy_function(order.take, [], tf.int64), [])
        draw = tf.stack([tf.constant(seed, tf.int64), epoch])
        # Random bits: of a key the permutation reads the lowest ones only, in which two seeds may agree.
        key = tf.random.stateless_uniform([3], draw, None, None, tf.int64, "philox")
        last = tf.constant(num_rows - 1, tf.int64)

        def permuted(rows):
            # A permutation computed index by index: nothing of the dataset's length is held or filled.
            rows = tf.raw_ops.RandomIndexShuffle(index=rows, seed=key, max_index=last, rounds=_ROUNDS)
            return batch_of(rows)

        return _in_order(num_rows, batch_size, permuted)

    dataset = tf.data.Dataset.range(1).flat_map(shuffled)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(_num_batches(num_rows, batch_size)))
    dataset.epoch_order = order
    return dataset


def _in_order(num_rows, batch_size, batch_of):
    def batch(i):
        return batch_of(tf.range(i * batch_size, tf.minimum((i + 1) * batch_size, num_rows)))

    numbers = tf.data.Dataset.range(_num_batches(num_rows, batch_size))
    return numbers.map(batch, tf.data.AUTOTUNE, deterministic=True).prefetch(tf.data.AUTOTUNE)


def _num_batches(num_rows, batch_size) -> int:
    return -(-num_rows // batch_size)
