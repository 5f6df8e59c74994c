"""Collects columns of interactions block by block and then sorts them, in memory or on disk."""

import os
from collections import defaultdict

import numpy as np

from tfxc.data.grouping import by_group, sort_by_time

_ROWS_PER_BLOCK = 1 << 22


class GroupedColumns:
    """Collects blocks of interactions in memory and sorts them by user and time at the end.

    `shuffle` is the seed by which rows of equal times are shuffled, or None.
    """

    def __init__(self, shuffle: int | None = None):
        self._shuffle = shuffle
        self._blocks: dict[str, list[np.ndarray]] = defaultdict(list)

    def append(self, block: dict[str, np.ndarray]):
        """Adds arrays [M] by name: "users" (int32 in [0, U)), perhaps "times", and others."""
        for name, values in block.items():
            self._blocks[name].append(values)

    def grouped(self, num_users: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Returns offsets [U + 1] and all arrays but "users", sorted by user, then by "times" if given."""
        order, offsets = by_group(self._joined("users"), num_users)
        # One array after the other, so that each is freed before the next is made.
        arrays = {name: _taken(self._joined(name), order) for name in list(self._blocks)}
        _sort(offsets, arrays, self._shuffle)
        return offsets, arrays

    def _joined(self, name) -> np.ndarray:
        return np.concatenate(self._blocks.pop(name))


def _taken(array, order) -> np.ndarray:
    """Returns the array in another order. NumPy would copy an order of int32 as int64 as a whole."""
    taken = np.empty(len(order), array.dtype)
    for block in _slices(len(order), _ROWS_PER_BLOCK):
        taken[block] = array[order[block]]
    return taken


class GroupedFiles:
    """Like `GroupedColumns`, for more interactions than memory holds: the arrays are memory-mapped.

    Blocks are first written to files of an existing folder. Then the rows are scattered to the places of
    their users, and each user's slice is sorted in place.
    """

    def __init__(self, folder: str, shuffle: int | None = None):
        self._folder, self._shuffle = folder, shuffle
        self._dtypes: dict[str, np.dtype] = {}

    def append(self, block: dict[str, np.ndarray]):
        """Adds arrays, see `GroupedColumns.append`."""
        for name, values in block.items():
            self._dtypes[name] = values.dtype
            with open(self._path(name, "unsorted"), "ab") as file:
                values.tofile(file)

    def grouped(self, num_users: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Returns offsets and sorted arrays, see `GroupedColumns.grouped`."""
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


def _slices(size, step) -> list[slice]:
    return [slice(start, start + step) for start in range(0, size, step)]


def _sort(offsets, arrays, shuffle):
    if "times" in arrays:
        others = [array for name, array in arrays.items() if name != "times"]
        sort_by_time(offsets, arrays["times"], others, shuffle)
