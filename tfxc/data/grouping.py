"""Sorts interactions by user and time, in linear time for the users."""

import collections
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import scipy.sparse

_PER_BLOCK = 1 << 16


def by_group(groups: np.ndarray, num_groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Sorts M members by their groups, integers [M] in [0, num_groups), in a stable counting sort.

    Returns positions [M] of the members, group after group, int32 if that suffices, and offsets
    [num_groups + 1] int64. The members of group g are at `positions[offsets[g]:offsets[g + 1]]`.
    """
    # Converting a sparse matrix with an entry (group, member) for each member to CSR is a counting sort.
    members = np.arange(len(groups), dtype=np.int32 if len(groups) < 2**31 else np.int64)
    ones = np.ones(len(groups), bool)
    matrix = scipy.sparse.coo_array((ones, (groups, members)), (num_groups, len(groups)))
    del members, ones
    matrix = matrix.tocsr()  # frees one form before the next: each is as large as the groups
    return matrix.indices, matrix.indptr.astype(np.int64)


def sort_by_time(
    offsets: np.ndarray, times: np.ndarray, others: list[np.ndarray], shuffle: int | None = None
):
    """Sorts each sequence by its times, numbers or datetime64 [M], and the other arrays [M] likewise.

    It sorts in place, in blocks, so that the arrays may be memory-mapped. Sequence u starts at `offsets[u]`
    [U + 1]. Members of equal times stay in their order; with a seed, `shuffle`, they come in a random one.
    """

    def sort(bounds):
        first, last = bounds
        block = slice(offsets[first], offsets[last])
        if shuffle is None and not decreases_inside(offsets[first : last + 1], times[block]):
            return
        owners = np.repeat(np.arange(last - first), np.diff(offsets[first : last + 1]))
        order = np.arange(len(owners))
        if shuffle is not None:
            order = np.random.default_rng([shuffle % 2**64, first]).permutation(order)
        order = order[np.argsort(times[block][order], kind="stable")]
        order = order[by_group(owners[order], last - first)[0]]
        for array in (times, *others):
            array[block] = array[block][order]

    with ThreadPoolExecutor(pa.cpu_count()) as pool:  # NumPy's sort releases Python's lock
        collections.deque(pool.map(sort, _blocks(offsets)), maxlen=0)


def decreases_inside(offsets: np.ndarray, times: np.ndarray) -> bool:
    """Whether time decreases anywhere inside a sequence. Between two sequences it may.

    The sequences start at offsets [U + 1] - offsets[0] among their times [M].
    """
    falls = times[1:] < times[:-1]
    starts = np.asarray(offsets) - offsets[0]
    falls[starts[(starts > 0) & (starts < len(times))] - 1] = False
    return bool(falls.any())


def _blocks(offsets):
    """Returns ranges of sequences that hold about `_PER_BLOCK` members, or one long sequence."""
    bounds = np.searchsorted(offsets, np.arange(0, offsets[-1], _PER_BLOCK))
    bounds = np.unique(np.append(bounds, len(offsets) - 1))
    return zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
