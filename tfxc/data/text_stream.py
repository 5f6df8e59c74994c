"""Cuts text into parallel streams for encoders that carry their state from batch to batch."""

import tensorflow as tf

from tfxc.arguments import positive_int
from tfxc.data.batching import row_batches
from tfxc.data.sequences import Sequences


def stream_dataset(sequences: Sequences, max_length: int, batch_size: int) -> tf.data.Dataset:
    """Returns batches for truncated backpropagation through time: `(items, labels)`, both [B, T] int32.

    All sequences are laid end to end and cut into B streams of equal length. **Row b of a batch continues row
    b of the previous batch**, so a recurrent encoder with `stateful=True` continues where it stopped. Every
    item but the very first is the target of exactly one position.

    `items` holds class ids + 1 and `labels` the next class ids. The streams end in less than a batch of
    padding, 0 and -1, so that all batches have one shape. Batches come in order.

    Args:
        sequences: text, one or several.
        max_length: T, at least 1, the number of steps that gradients reach back.
        batch_size: B, at least 1, the number of streams.

    Raises:
        ValueError: for other sizes, or fewer than 2 items.

    Example:
        >>> dataset = stream_dataset(Sequences.from_lists(["abcdef"]), max_length=2, batch_size=2)
        >>> for items, labels in dataset:
        ...     print(items.numpy().tolist(), labels.numpy().tolist())
        [[1, 2], [4, 5]] [[1, 2], [4, 5]]
        [[3, 0], [0, 0]] [[3, -1], [-1, -1]]
    """
    max_length, batch_size = positive_int(max_length, "max_length"), positive_int(batch_size, "batch_size")
    num_targets = len(sequences.items) - 1
    if num_targets < 1:
        raise ValueError("A stream needs 2 items, an input and its target.")
    length = -(-num_targets // batch_size)  # of a stream; the last streams may be shorter
    num_batches = -(-length // max_length)
    flat = tf.constant(sequences.items)

    def batch(number):
        column = number[0] * max_length + tf.range(max_length, dtype=tf.int64)
        where = length * tf.range(batch_size, dtype=tf.int64)[:, tf.newaxis] + column
        inside = (column < length) & (where < num_targets)
        where = tf.where(inside, where, 0)
        items = tf.where(inside, tf.gather(flat, where) + 1, 0)
        labels = tf.where(inside, tf.gather(flat, where + 1), -1)
        return tuple(tf.ensure_shape(part, [batch_size, max_length]) for part in (items, labels))

    return row_batches(num_batches, 1, batch)
