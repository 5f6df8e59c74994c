"""Row numbers to batches, in order or shuffled, inside tf.data: no Python runs per example."""

import tensorflow as tf


def row_batches(num_rows: int, batch_size: int, batch_of, seed: int | None = None) -> tf.data.Dataset:
    """A dataset of ``batch_of(rows)``, each for the numbers int64 [B] of some rows; the last may be smaller.

    Args:
        num_rows: N, at least 1.
        batch_size: B, at least 1.
        batch_of: function of row numbers to a batch, in TensorFlow ops.
        seed: rows are shuffled anew in each epoch; None keeps their order.

    Example:
        >>> [rows.numpy().tolist() for rows in row_batches(5, 2, lambda rows: rows)]
        [[0, 1], [2, 3], [4]]
    """
    if seed is None:
        return _in_order(num_rows, batch_size, batch_of)

    def shuffled(draw):
        def permuted(rows):
            # A permutation computed index by index: nothing of the dataset's length is held or filled.
            return batch_of(tf.random.experimental.index_shuffle(rows, draw, num_rows - 1))

        return _in_order(num_rows, batch_size, permuted)

    draws = tf.data.Dataset.random(seed=seed, rerandomize_each_iteration=True)
    dataset = draws.batch(2, drop_remainder=True).take(1).flat_map(shuffled)
    return dataset.apply(tf.data.experimental.assert_cardinality(_num_batches(num_rows, batch_size)))


def _in_order(num_rows, batch_size, batch_of):
    def batch(i):
        return batch_of(tf.range(i * batch_size, tf.minimum((i + 1) * batch_size, num_rows)))

    numbers = tf.data.Dataset.range(_num_batches(num_rows, batch_size))
    return numbers.map(batch, tf.data.AUTOTUNE, deterministic=True).prefetch(tf.data.AUTOTUNE)


def _num_batches(num_rows, batch_size) -> int:
    return -(-num_rows // batch_size)
