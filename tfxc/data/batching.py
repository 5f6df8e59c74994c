"""Turns row numbers into batches, in order or shuffled, inside tf.data, and numbers examples."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops.dataset_ops import UnaryUnchangedStructureDataset

from tfxc.arguments import lists_as_tensors, positive_int, seed_int

# With 4 rounds, the default, a quarter of the pairs of a million rows that share a batch share the next.
_ROUNDS = 12
_IDS = "example_ids"


def in_any_order(step: tf.data.Dataset) -> bool:
    """Whether a dataset may yield its elements in another order each time."""
    return getattr(step, "_deterministic", None) == "false" or step.options().deterministic is False


class EpochOrder:
    """The number of the epoch whose order a dataset uses next, its ``epoch_order``: resuming fit sets it."""

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


def with_example_ids(data):
    """Adds an input "example_ids": the number of each example, from 0.

    ``ExtremeClassifier`` passes it to samplers that keep something for each example (``HardNegatives``), and
    not to the encoder. Ids must stay the same over the epochs, so number a ``tf.data`` pipeline before it is
    shuffled. ``classification_dataset(example_ids=True)`` numbers its own points.

    Args:
        data: inputs as for ``fit``, an array [N, ...] or a dict of arrays; or a ``tf.data.Dataset`` of single
            examples ``(x, y)`` or ``(x, y, sample_weight)``, not yet shuffled, repeated or batched.

    Returns:
        A dict of arrays, or the dataset with a dict as x. An input without a name is called "inputs".

    Raises:
        ValueError: for arrays of different lengths, inputs that already have ids, or a dataset that is
            shuffled, repeated, not deterministic, or of x alone.

    Example:
        >>> with_example_ids(np.zeros([3, 2]))["example_ids"].tolist()
        [0, 1, 2]
        >>> examples = tf.data.Dataset.from_tensor_slices((tf.zeros([3, 2]), [7, 8, 9]))
        >>> x, y = next(iter(with_example_ids(examples).shuffle(3, seed=0).batch(3)))
        >>> bool(tf.reduce_all(y == tf.cast(x["example_ids"], tf.int32) + 7))
        True
    """
    if isinstance(data, tf.data.Dataset):
        _refuse_shuffled(data)
        if not isinstance(data.element_spec, tuple):
            raise ValueError(f"Examples must be (x, y) or (x, y, sample_weight), not {data.element_spec}.")
        return data.enumerate().map(
            lambda number, example: (_numbered(example[0], number), *example[1:]), tf.data.AUTOTUNE
        )
    data = lists_as_tensors(data)
    shapes = [tuple(getattr(part, "shape", ())) for part in tf.nest.flatten(data)]
    if len({shape[:1] for shape in shapes}) != 1 or not shapes[0]:
        raise ValueError(f"All inputs must be arrays of one length N, but have the shapes {shapes}.")
    return _numbered(data, np.arange(shapes[0][0]))


def _numbered(inputs, number):
    inputs = inputs if isinstance(inputs, dict) else {"inputs": inputs}
    if _IDS in inputs:
        raise ValueError(f"The inputs already have {_IDS!r}: number them once.")
    return {**inputs, _IDS: number}


def _refuse_shuffled(dataset):
    steps = [dataset]
    while steps:
        step = steps.pop()
        kind = type(step).__name__
        if hasattr(step, "epoch_order"):
            raise ValueError(
                "A shuffled pipeline of tfxc.data has another order in each epoch, so examples would get "
                "other ids: make it with seed=None, and shuffle what with_example_ids returns."
            )
        if "Shuffle" in kind or "Repeat" in kind or in_any_order(step):
            raise ValueError(
                "After shuffle, repeat or deterministic=False, an example would get another id in each "
                "epoch: call with_example_ids first, on a dataset in order."
            )
        steps.extend(step._inputs())
