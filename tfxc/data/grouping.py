"""Groups interactions by user and sorts them by time, in linear time for the users, in memory or on disk."""

import collections
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import scipy.sparse

_PER_BLOCK = 1 << 16  # members
_ROWS_PER_BLOCK = 1 << 22


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

    # Blocks hold about `_PER_BLOCK` members, or one long sequence.
    starts = np.searchsorted(offsets, np.arange(0, offsets[-1], _PER_BLOCK))
    starts = np.unique(np.append(starts, len(offsets) - 1)).tolist()
    with ThreadPoolExecutor(pa.cpu_count()) as pool:  # NumPy's sort releases Python's lock
        collections.deque(pool.map(sort, zip(starts, starts[1:], strict=False)), maxlen=0)


def decreases_inside(offsets: np.ndarray, times: np.ndarray) -> bool:
    """Whether time decreases inside a sequence; they start at offsets [U + 1] - offsets[0] of times [M]."""
    falls = times[1:] < times[:-1]
    starts = np.asarray(offsets) - offsets[0]
    falls[starts[(starts > 0) & (starts < len(times))] - 1] = False
    return bool(falls.any())


class GroupedColumns:
    """Collects blocks of interactions in memory, and at the end sorts them as `sort_by_time` does."""

    def __init__(self, shuffle: int | None = None):
        self._shuffle = shuffle
        self._blocks: dict[str, list[np.ndarray]] = collections.defaultdict(list)

    def append(self, block: dict[str, np.ndarray]):
        """Adds arrays [M] by name: "users" (int32 in [0, U)), perhaps "times", and others."""
        for name, values in block.items():
            self._blocks[name].append(values)

    def grouped(self, num_users: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Returns offsets [U + 1] and all arrays but "users", sorted by user, then by "times" if given."""
        order, offsets = by_group(np.concatenate(self._blocks.pop("users")), num_users)
        # One array after the other, so that each is freed before the next is made.
        arrays = {name: _taken(np.concatenate(self._blocks.pop(name)), order) for name in list(self._blocks)}
        _sort(offsets, arrays, self._shuffle)
        return offsets, arrays


class GroupedFiles:
    """Like `GroupedColumns`, for more interactions than memory holds: the arrays are memory-mapped.

    Blocks are first written to files of an existing folder. Then the rows are scattered to the places of
    their users, and each user's slice is sorted in place.
    """

    def __init__(self, folder: str, shuffle: int | None = None):
        self._folder, self._shuffle = folder, shuffle
        self._dtypes: dict[str, np.dtype] = {}

    def append(self, block: dict[str, np.ndarray]):
        for name, values in block.items():
            self._dtypes[name] = values.dtype
            with open(self._path(name, "unsorted"), "ab") as file:
                values.tofile(file)

    def grouped(self, num_users: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        given = {
            name: np.memmap(self._path(name, "unsorted"), dtype, "r") for name, dtype in self._dtypes.items()
        }
        users = given.pop("users")
        blocks = _slices(len(users), max(_ROWS_PER_BLOCK, num_users))  # each costs a pass over all users
        counts = sum(np.bincount(users[block], minlength=num_users) for block in blocks)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        arrays: dict[str, np.ndarray] = {
            name: np.memmap(self._path(name, "sorted"), values.dtype, "w+", shape=values.shape)
            for name, values in given.items()
        }
        free = offsets[:-1].copy()  # the place of each user's next interaction
        for block in blocks:
            order, starts = by_group(users[block], num_users)
            where = np.repeat(free - starts[:-1], np.diff(starts)) + np.arange(len(order))
            for name, array in arrays.items():
                array[where] = given[name][block][order]
            free += np.diff(starts)
        del given, users  # so that no file is open
        for name in self._dtypes:
            os.unlink(self._path(name, "unsorted"))
        _sort(offsets, arrays, self._shuffle)
        return offsets, arrays

    def _path(self, name, suffix) -> str:
        return os.path.join(self._folder, f"{name}.{suffix}")


def _taken(array, order) -> np.ndarray:
    """Returns the array in another order. NumPy would copy an order of int32 as int64 as a whole."""
    taken = np.empty(len(order), array.dtype)
    for block in _slices(len(order), _ROWS_PER_BLOCK):
        taken[block] = array[order[block]]
    return taken


def _slices(size, step) -> list[slice]:
    return [slice(start, start + step) for start in range(0, size, step)]


def _sort(offsets, arrays, shuffle):
    if "times" in arrays:
        others = [array for name, array in arrays.items() if name != "times"]
        sort_by_time(offsets, arrays["times"], others, shuffle)
