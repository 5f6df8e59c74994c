"""Sorting interactions by user and time in time that grows as their number."""

import collections
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import scipy.sparse

_PER_BLOCK = 1 << 16


def by_group(groups: np.ndarray, num_groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the members of each group stand, each group's in their order: a counting sort.

    Args:
        groups: [M] integers in [0, num_groups).
        num_groups: G.

    Returns:
        Positions [M] int64, group after group, and offsets [G + 1] int64: group g's positions are
        `positions[offsets[g]:offsets[g + 1]]`.

    Example:
        >>> positions, offsets = by_group(np.array([1, 0, 1]), 3)
        >>> positions.tolist(), offsets.tolist()
        ([1, 0, 2], [0, 1, 3, 3])
    """
    # As the rows of a sparse matrix with column m for member m: the conversion to rows is a counting sort.
    members = np.arange(len(groups), dtype=np.int32 if len(groups) < 2**31 else np.int64)
    ones = np.ones(len(groups), bool)
    matrix = scipy.sparse.coo_array((ones, (groups, members)), (num_groups, len(groups)))
    del members, ones
    matrix = matrix.tocsr()  # one form after the other: each is as large as the groups
    positions, offsets = matrix.indices, matrix.indptr.astype(np.int64)
    del matrix
    return positions.astype(np.int64), offsets


def sort_by_time(offsets: np.ndarray, times: np.ndarray, others: list[np.ndarray]):
    """Sorts each sequence by time, in place; equal times keep their order.

    Works through the arrays in blocks, so that they may be mapped from disk.

    Args:
        offsets: [U + 1], where each sequence starts.
        times: [M] numbers or datetime64.
        others: arrays [M] that are put in the same order.

    Example:
        >>> times, items = np.array([5, 3, 1]), np.array([7, 8, 9])
        >>> sort_by_time(np.array([0, 2, 3]), times, [items])
        >>> items.tolist()
        [8, 7, 9]
    """

    def sort(bounds):
        first, last = bounds
        block = slice(offsets[first], offsets[last])
        if not falls_inside(offsets[first : last + 1], times[block]):
            return
        owners = np.repeat(np.arange(last - first), np.diff(offsets[first : last + 1]))
        order = _order(owners, times[block])
        for array in (times, *others):
            array[block] = array[block][order]

    with ThreadPoolExecutor(pa.cpu_count()) as pool:  # NumPy sorts without the interpreter's lock
        collections.deque(pool.map(sort, _blocks(offsets)), maxlen=0)


def _order(owners: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Positions by owner and then by time, in their order where both are equal."""
    if times.dtype.kind in "mM":
        times = times.view(np.int64)
    elif times.itemsize < 8:  # of which a difference may be no number
        times = times.astype(np.float64 if times.dtype.kind == "f" else np.int64)
    time_bits = (int(times.max()) - int(times.min())).bit_length()
    position_bits = len(times).bit_length()
    fits = int(owners[-1]).bit_length() + time_bits + position_bits < 64
    if not fits or (times.dtype.kind == "f" and (times != np.floor(times)).any()):
        return np.lexsort((times, owners))
    # All three in one integer: sorting these takes a fifth of the time.
    keys = (owners << time_bits) | (times - times.min()).astype(np.int64)
    keys = (keys << position_bits) | np.arange(len(times))
    keys.sort()
    return keys & ((1 << position_bits) - 1)


def falls_inside(offsets: np.ndarray, times: np.ndarray) -> bool:
    """Whether time falls somewhere inside a sequence; between two it may jump back.

    Args:
        offsets: [U + 1], where each sequence starts; the first may be any number.
        times: [M] of these sequences.

    Example:
        >>> times = np.array([5, 6, 1])
        >>> falls_inside(np.array([0, 2, 3]), times), falls_inside(np.array([0, 3]), times)
        (False, True)
    """
    falls = times[1:] < times[:-1]
    starts = np.asarray(offsets) - offsets[0]
    falls[starts[(starts > 0) & (starts < len(times))] - 1] = False
    return bool(falls.any())


def _blocks(offsets):
    """Ranges of sequences that hold about `_PER_BLOCK` members, or one long sequence."""
    bounds = np.searchsorted(offsets, np.arange(0, offsets[-1], _PER_BLOCK))
    bounds = np.unique(np.append(bounds, len(offsets) - 1))
    return zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
