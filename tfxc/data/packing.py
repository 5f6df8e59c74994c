"""Lays short histories one behind the other into rows, so that a batch is hardly padded."""

import numpy as np
import tensorflow as tf

from tfxc.arguments import seed_int


def packed_rows(lengths: np.ndarray, max_length: int, seed: int | None):
    """Lays histories into rows of T places by first fit, the longest first, with a place between neighbours.

    Lengths are integers [W] in [1, T]. A seed decides which of the histories of one length come into which
    row. The time depends on the number of different lengths, hardly on that of histories. Returns the
    histories row by row, order [W], and splits [R + 1]: row r holds ``order[splits[r] : splits[r + 1]]``.

    Example:
        >>> order, splits = packed_rows(np.array([1, 3, 2, 1, 4]), max_length=4, seed=None)
        >>> [order[start:stop].tolist() for start, stop in zip(splits, splits[1:])]
        [[4], [1], [2, 0], [3]]
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

    The function gives int64 [B, T], the flat position of the item at each place, and bool [B, T], whether the
    place holds one. The items of window w are ``starts[w]`` up to ``stops[w] - 1``, since the last is only
    the target of the one before it. Padding is in front.
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
