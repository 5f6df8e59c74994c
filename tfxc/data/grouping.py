"""Sorting interactions by user and time in time that grows as their number."""

import numpy as np
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
    matrix = scipy.sparse.coo_array(
        (np.ones(len(groups), bool), (groups, members)), (num_groups, len(groups))
    )
    rows = matrix.tocsr()
    return rows.indices.astype(np.int64), rows.indptr.astype(np.int64)


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
    for first, last in _blocks(offsets):
        block = slice(offsets[first], offsets[last])
        if not falls_inside(offsets[first : last + 1], times[block]):
            continue
        # Small integers: NumPy sorts 16 bits by radix.
        owner = np.arange(last - first, dtype=np.min_scalar_type(last - first))
        order = np.lexsort((times[block], np.repeat(owner, np.diff(offsets[first : last + 1]))))
        for array in (times, *others):
            array[block] = array[block][order]


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
