"""Turns sequences into batches for `fit` and `evaluate`.

Input ids are class id + 1, and 0 is padding: an encoder's Embedding has L + 1 rows, and a head tied to it
takes `row_offset=1`. Padding is on the left, so the last position always holds the newest item. No Python
runs per example; for memory-mapped arrays, one call of Python reads a batch.
"""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from tfxc.arguments import one_of, positive_int, seed_int
from tfxc.data.batching import row_batches
from tfxc.data.sequences import Column, Sequences, require_sequences


def sequence_training_dataset(
    sequences: Sequences,
    max_length: int,
    batch_size: int,
    windows: str = "last",
    seed: int | None = 0,
    packed: bool = False,
) -> tf.data.Dataset:
    """Returns batches for next-item training: `(items, labels)`, both [B, T] int32.

    Position t of a row reads the items up to t and predicts item t + 1: `items` holds class ids + 1 (0 is
    padding), `labels` the next class ids (-1 if there is none, which masks the position). With further
    columns the inputs are `{"items": [B, T], <column>: [B, T], ...}`: categories are fed as id + 1, with 0
    for padding or a missing value, numbers as they are. Longer sequences are cut into consecutive
    windows from their end, so that an item is the target of at most one position. The last batch may be
    smaller. The dataset knows its number of batches.

    ``packed=True`` saves an encoder the padding of short histories: it lays them one behind the other, with a
    0 (and the label -1) between neighbours, for encoders that begin anew behind each 0, as those of
    ``tfxc.encoders`` do. For as many histories in a step as B padded rows hold, divide ``batch_size`` by
    ``T / (mean + 1)``, with their mean number of targets. All epochs have the same rows, in another order.

    Args:
        sequences: training sequences. Those with fewer than 2 items hold no target and are left out.
        max_length: T, at least 1.
        batch_size: B, at least 1.
        windows: `"last"` keeps each sequence's newest window, `"all"` every window (text, long sequences).
        seed: decides the order of the rows, which changes with each epoch. None keeps the order of the
            sequences, for held-out text.
        packed: whether rows hold as many histories as fit; without a seed the longest come first.

    Raises:
        ValueError: for other arguments, or if no sequence has 2 items.

    Example:
        >>> sequences = Sequences.from_lists([[*"abcd"], [*"b"], [*"ba"]])
        >>> dataset = sequence_training_dataset(sequences, 2, batch_size=8, windows="all", seed=None)
        >>> items, labels = next(iter(dataset))
        >>> items.numpy().tolist(), labels.numpy().tolist()
        ([[0, 1], [2, 3], [0, 2]], [[-1, 1], [2, 3], [-1, 0]])
        >>> items, labels = next(iter(sequence_training_dataset(sequences, 5, 8, seed=None, packed=True)))
        >>> items.numpy().tolist(), labels.numpy().tolist()
        ([[2, 0, 1, 2, 3]], [[0, -1, 1, 2, 3]])
    """
    require_sequences(sequences)
    max_length, batch_size = positive_int(max_length, "max_length"), positive_int(batch_size, "batch_size")
    windows = one_of(windows, "windows", ("last", "all"))
    starts, stops = _windows(sequences, max_length, windows == "all")
    if not len(starts):
        raise ValueError("No sequence has 2 items, which training needs: an input and its target.")
    if packed:
        num_rows, place = packed_places(starts, stops, max_length, seed)
    else:
        num_rows, place = len(starts), _places(starts, stops, max_length)
    batch = _gatherer(_reader(sequences.items), place, max_length, sequences.columns)
    return row_batches(num_rows, batch_size, batch, seed)


def sequence_evaluation_dataset(
    sequences: Sequences, max_length: int, batch_size: int, exclude_seen: bool = False
) -> tf.data.Dataset:
    """Returns batches with one target per sequence, its last item, in the order of the sequences.

    Yields `(items, labels)`, both [B, T] int32: `items` holds the last T items of the history as class ids +
    1 (0 is padding), `labels` is -1 except at the last position, which holds the target. With `exclude_seen`
    the inputs are `{"items": [B, T], "exclude": [B, X]}`, where "exclude" holds the class ids of the
    **whole** history, padded with -1, which are not to be ranked. A target that was seen before stays.
    Further columns are inputs, too, as in training.

    Args:
        sequences: the validation or test part of a split.
        max_length, batch_size: T and B, at least 1.
        exclude_seen: whether to exclude the history from ranking.

    Raises:
        ValueError: for other sizes, if there is no sequence, or one with fewer than 2 items (a history and a
            target).

    Example:
        >>> sequences = Sequences.from_lists([[*"abcd"], [*"aba"]])
        >>> dataset = sequence_evaluation_dataset(sequences, 2, batch_size=8, exclude_seen=True)
        >>> inputs, labels = next(iter(dataset))
        >>> inputs["items"].numpy().tolist(), labels.numpy().tolist()
        ([[2, 3], [1, 2]], [[-1, 3], [-1, 0]])
        >>> inputs["exclude"].numpy().tolist()
        [[0, 1, 2], [-1, -1, 1]]
    """
    require_sequences(sequences)
    max_length, batch_size = positive_int(max_length, "max_length"), positive_int(batch_size, "batch_size")
    if not len(sequences):
        raise ValueError("There is no sequence to evaluate on: pass at least one of 2 items.")
    num_short = int((sequences.lengths < 2).sum())
    if num_short:
        raise ValueError(
            f"{num_short} of {len(sequences)} sequences have fewer than 2 items, a history and a target: "
            f"leave them out with sequences.select(sequences.lengths >= 2)."
        )
    items_at = _reader(sequences.items)
    starts, stops = map(tf.constant, (sequences.offsets[:-1], sequences.offsets[1:]))
    batch = _gatherer(items_at, _places(starts, stops, max_length), max_length, sequences.columns)
    history = _gatherer(items_at, _places(starts, stops, None), None, {})

    def example(rows):
        inputs, labels = batch(rows)
        target = labels[:, -1:]
        labels = tf.concat([tf.fill(tf.shape(labels[:, 1:]), -1), target], axis=1)
        labels = tf.ensure_shape(labels, [None, max_length])
        if not exclude_seen:
            return inputs, labels
        seen = history(rows)[0] - 1
        inputs = inputs if isinstance(inputs, dict) else {"items": inputs}
        return {**inputs, "exclude": tf.where(seen == target, -1, seen)}, labels

    return row_batches(len(sequences), batch_size, example)


def stream_dataset(sequences: Sequences, max_length: int, batch_size: int) -> tf.data.Dataset:
    """Returns batches for truncated backpropagation through time: `(items, labels)`, both [B, T] int32.

    All sequences are laid end to end and cut into B streams of equal length. **Row b of a batch continues row
    b of the previous batch**, so a recurrent encoder with `stateful=True` continues where it stopped. Every
    item but the very first is the target of exactly one position. `items` holds class ids + 1 and `labels`
    the next class ids. The streams end in less than a batch of padding, 0 and -1. Batches come in order.

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
    require_sequences(sequences)
    max_length, batch_size = positive_int(max_length, "max_length"), positive_int(batch_size, "batch_size")
    num_targets = len(sequences.items) - 1
    if num_targets < 1:
        raise ValueError("A stream needs 2 items, an input and its target.")
    length = -(-num_targets // batch_size)  # of a stream; the last streams may be shorter
    num_batches = -(-length // max_length)

    def place(number):
        column = number[0] * max_length + tf.range(max_length, dtype=tf.int64)
        where = length * tf.range(batch_size, dtype=tf.int64)[:, tf.newaxis] + column
        inside = (column < length) & (where < num_targets)
        where = tf.ensure_shape(tf.where(inside, where, 0), [batch_size, max_length])
        return where, inside

    items_at = _reader(np.asarray(sequences.items))  # in memory: a batch then has a shape before it is read
    return row_batches(num_batches, 1, _gatherer(items_at, place, max_length, {}))


def _windows(sequences: Sequences, max_length: int, every: bool):
    """Returns flat positions [start, stop) of windows of at most T + 1 items. The first is only input."""
    lengths = sequences.lengths
    num_windows = -(-np.maximum(lengths - 1, 0) // max_length)
    if not every:
        num_windows = np.minimum(num_windows, 1)
    owner = np.repeat(np.arange(len(sequences)), num_windows)
    before = np.cumsum(num_windows) - num_windows
    # The number of windows of the same sequence that come after this one.
    from_end = (num_windows + before)[owner] - 1 - np.arange(len(owner))
    stops = sequences.offsets[1:][owner] - from_end * max_length
    starts = np.maximum(stops - max_length - 1, sequences.offsets[:-1][owner])
    return starts, stops


def packed_rows(lengths: np.ndarray, max_length: int, seed: int | None):
    """Lays histories into rows of T places by first fit, the longest first, with a place between neighbours.

    Lengths are integers [W] in [1, T]. A seed decides which of the histories of one length come into which
    row. The time depends on the number of different lengths, hardly on that of histories. Returns the
    histories row by row, order [W], and splits [R + 1]: row r holds ``order[splits[r] : splits[r + 1]]``.
    """
    order = np.arange(len(lengths))
    if seed is not None:
        order = np.random.default_rng(seed_int(seed) % 2**64).permutation(order)
    order = order[np.argsort(-lengths[order], kind="stable")]
    left = np.bincount(lengths)  # of each length, the histories that no row holds yet
    stops = np.cumsum(left[::-1])[::-1]  # the histories of a length stand in order up to here
    rows, sizes = [], []
    while left.any():
        room, row = max_length + 1, np.zeros_like(left)
        for length in np.flatnonzero(left)[::-1]:
            row[length] = min(left[length], room // (length + 1))
            room -= row[length] * (length + 1)
        held = np.flatnonzero(row)[::-1]
        times = int((left[held] // row[held]).min())  # as many rows hold the same lengths
        firsts = stops - left
        parts = [order[firsts[n] : firsts[n] + times * row[n]].reshape(times, -1) for n in held]
        rows.append(np.concatenate(parts, axis=1).ravel())
        sizes.append(np.full(times, row.sum()))
        left -= times * row
    return np.concatenate(rows), np.concatenate([[0], *sizes]).cumsum()


def packed_places(starts: np.ndarray, stops: np.ndarray, max_length: int, seed: int | None):
    """Returns the number of packed rows, and a function from row numbers [B] to what stands in them.

    The function is as that of `_places`. The items of window w are ``starts[w]`` up to ``stops[w] - 1``: the
    last is only the target of the one before it.
    """
    order, splits = packed_rows(stops - starts - 1, max_length, seed)
    windows = tf.RaggedTensor.from_row_splits(np.stack([starts, stops], 1)[order], splits)

    def place(rows):
        start, stop = tf.unstack(tf.gather(windows, rows).to_tensor(), axis=2)
        ends = tf.cumsum(stop - start, axis=1)  # counted from the end of the row, with the place before each
        behind = tf.range(max_length - 1, -1, -1, dtype=tf.int64)
        behind = tf.broadcast_to(behind, [tf.size(rows), max_length])
        which = tf.minimum(tf.searchsorted(ends, behind, side="right"), tf.shape(ends)[1] - 1)
        last = stop - 2 + ends - (stop - start)
        where = tf.gather(last, which, batch_dims=1) - behind
        return where, where >= tf.gather(start, which, batch_dims=1)

    return len(splits) - 1, place


def _places(starts, stops, max_length: int | None):
    """Returns a function from window numbers [B] to flat positions of items, and which are the window's.

    Both are [B, T]; without `max_length`, T is the length of the batch's longest window.
    """
    starts, stops = tf.constant(starts), tf.constant(stops)

    def place(rows):
        start, stop = tf.gather(starts, rows)[:, None], tf.gather(stops, rows)[:, None]
        length = tf.reduce_max(stop - start) - 1 if max_length is None else max_length
        where = stop - 1 - tf.range(length, 0, -1, dtype=tf.int64)
        return where, where >= start

    return place


def _gatherer(items_at, place, max_length: int | None, columns: Mapping[str, Column]):
    """Returns a function from row numbers [B] to inputs, with columns a dict, and next class ids, [B, T]."""
    readers = {name: _reader(column.values) for name, column in columns.items()}

    def gather(rows):
        where, inside = place(rows)
        where = tf.maximum(where, 0)
        shape = [None, max_length]
        items = tf.ensure_shape(tf.where(inside, items_at(where) + 1, 0), shape)
        labels = tf.ensure_shape(tf.where(inside, items_at(where + 1), -1), shape)
        if not columns:
            return items, labels
        inputs = {"items": items}
        for name, column in columns.items():
            values = readers[name](where)
            values = values if column.vocabulary is None else values + 1
            inputs[name] = tf.ensure_shape(tf.where(inside, values, tf.zeros([], values.dtype)), shape)
        return inputs, labels

    return gather


def _reader(values: np.ndarray):
    """Returns a function from positions to the values there, of an array in memory or a mapped one."""
    if not isinstance(values, np.memmap):
        flat = tf.constant(values)
        return lambda where: tf.gather(flat, where)
    return lambda where: tf.numpy_function(lambda at: values[at], [where], values.dtype, stateful=False)
