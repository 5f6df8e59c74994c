"""Collects columns of interactions block by block and then sorts them, in memory or on disk."""

import os

import numpy as np

from tfxc.data.grouping import by_group, sort_by_time

_ROWS_PER_BLOCK = 1 << 22


class GroupedColumns:
    """Collects blocks of interactions in memory and sorts them by user and time at the end.

    With the largest number of rows, if known, no array has to grow. Unused room costs no memory. `shuffle` is
    the seed by which rows of equal times are shuffled, or None.
    """

    def __init__(self, num_rows: int | None = None, shuffle: int | None = None):
        self._shuffle = shuffle
        self._capacity = num_rows or 0
        self._arrays: dict[str, np.ndarray] = {}
        self._num_rows = 0

    def append(self, block: dict[str, np.ndarray]):
        """Adds arrays [M] by name: "users" (int32 in [0, U)), perhaps "times", and others."""
        start, self._num_rows = self._num_rows, self._num_rows + len(block["users"])
        if self._num_rows > self._capacity:
            self._capacity = 2 * self._num_rows
        for name, values in block.items():
            array = self._arrays.get(name)
            if array is None or len(array) < self._num_rows:
                self._arrays[name] = np.empty(self._capacity, values.dtype)
                if array is not None:
                    self._arrays[name][:start] = array[:start]
            self._arrays[name][start : self._num_rows] = values

    def grouped(self, num_users: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Returns offsets [U + 1] and all arrays but "users", sorted by user, then by "times" if given."""
        order, offsets = by_group(self._arrays.pop("users")[: self._num_rows], num_users)
        # One array after the other, so that each is freed before the next is made.
        arrays = {name: _taken(self._arrays.pop(name), order) for name in list(self._arrays)}
        _sort(offsets, arrays, self._shuffle)
        return offsets, arrays


def _taken(array, order) -> np.ndarray:
    """Returns the array in another order. NumPy would copy an order of int32 as int64 as a whole."""
    taken = np.empty(len(order), array.dtype)
    for start in range(0, len(order), _ROWS_PER_BLOCK):
        block = slice(start, start + _ROWS_PER_BLOCK)
        taken[block] = array[order[block]]
    return taken


class GroupedFiles:
    """Like `GroupedColumns`, for more interactions than memory holds: the arrays are memory-mapped.

    Blocks are first written to files of an existing folder, `<name>.npy` and `offsets.npy`. Then the rows
    are scattered to the places of their users, and each user's slice is sorted in place.
    """

    def __init__(self, folder: str, shuffle: int | None = None):
        self._folder, self._shuffle = folder, shuffle
        self._dtypes: dict[str, np.dtype] = {}
        self._num_rows = 0

    def append(self, block: dict[str, np.ndarray]):
        """Adds arrays, see `GroupedColumns.append`."""
        for name, values in block.items():
            self._dtypes[name] = values.dtype
            with open(self._unsorted(name), "ab") as file:
                values.tofile(file)
        self._num_rows += len(block["users"])

    def grouped(self, num_users: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Returns offsets and sorted arrays, see `GroupedColumns.grouped`."""
        counts = np.zeros(num_users, np.int64)
        for start in self._starts(num_users):
            counts += np.bincount(self._block("users", start, num_users), minlength=num_users)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        np.save(os.path.join(self._folder, "offsets.npy"), offsets)
        arrays: dict[str, np.ndarray] = {
            name: np.lib.format.open_memmap(
                os.path.join(self._folder, f"{name}.npy"), "w+", dtype, (self._num_rows,)
            )
            for name, dtype in self._dtypes.items()
            if name != "users"
        }
        self._scatter(offsets, arrays)
        for name in self._dtypes:
            os.unlink(self._unsorted(name))
        _sort(offsets, arrays, self._shuffle)
        return offsets, arrays

    def _scatter(self, offsets, arrays):
        num_users = len(offsets) - 1
        free = offsets[:-1].copy()  # the place of each user's next interaction
        for start in self._starts(num_users):
            order, starts = by_group(self._block("users", start, num_users), num_users)
            counts = np.diff(starts)
            where = np.repeat(free - starts[:-1], counts)
            where += np.arange(len(order))
            for name, array in arrays.items():
                array[where] = self._block(name, start, num_users)[order]
            free += counts

    def _starts(self, num_users):
        return range(0, self._num_rows, _rows_per_block(num_users))

    def _block(self, name, start, num_users) -> np.ndarray:
        dtype = self._dtypes[name]
        return np.fromfile(
            self._unsorted(name), dtype, _rows_per_block(num_users), offset=start * dtype.itemsize
        )

    def _unsorted(self, name):
        return os.path.join(self._folder, f"{name}.unsorted")


def _rows_per_block(num_users) -> int:
    return max(_ROWS_PER_BLOCK, num_users)  # each block costs a pass over all users


def _sort(offsets, arrays, shuffle):
    if "times" in arrays:
        others = [array for name, array in arrays.items() if name != "times"]
        sort_by_time(offsets, arrays["times"], others, shuffle)
