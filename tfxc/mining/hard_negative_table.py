"""The hard classes of every example, in memory-mapped files: a whole one is always on disk."""

import contextlib
import os
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfxc.atomic_write import WRITING, atomic_write
from tfxc.checked_file import DamagedFile, read_arrays, seal_array

_NAME = "hard-negatives-of-epoch-{:06d}.table"
_PATTERN = re.compile(r"hard-negatives-of-epoch-(\d{6})\.table")
_ROWS, _CLASSES = "rows", "classes"
_ZEROS = 1 << 24  # bytes written at once where the system cannot reserve space
NUM_CHECKED = 256  # examples that tell how much a search finds


class Queries(NamedTuple):
    """Effective queries float32 [N, E] of an epoch, on disk, and which examples have one, bool [N].

    ``checked``: by example id, the query [D] as the head takes it, for examples that tell the recall.
    """

    values: np.ndarray
    seen: np.ndarray
    checked: dict[int, np.ndarray]
    epoch: int


class HardNegativeTable:
    """Class ids [N, R], a row for each example, and the queries [N, query_dim] collected for the next table.

    A new table is written beside the old one and renamed when it is whole, before anything maps it, so a
    killed process leaves the old table, the new one or both. The name of a file holds the epoch of its
    queries. Disk space for queries is reserved before they are mapped: a full disk is an ``OSError`` at once,
    not a crash later. A table of another digest ``classes`` of the class names is refused.
    """

    def __init__(self, folder, shape, query_dim, num_classes, classes=None):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.shape = shape
        self.query_dim = query_dim
        self._checked_ids = np.linspace(0, shape[0] - 1, NUM_CHECKED).astype(np.int64)
        self.num_classes = num_classes
        self.classes = classes
        self.epoch = None  # of the queries from which the rows were searched
        self.in_use = None  # the rows int32 [N, R], which are not written any more, once there are some
        self.collecting = None  # the Queries that are being collected

    def resume(self, epoch):
        """Maps the newest table of queries up to an epoch; removes all others. ValueError for a wrong one."""
        for path in self.folder.glob(WRITING + _NAME.replace("{:06d}", "*")):
            path.unlink()
        matches = map(_PATTERN.fullmatch, os.listdir(self.folder))
        found = {int(match[1]) for match in matches if match}
        newest = max((own for own in found if own <= epoch), default=None)
        if newest is not None:
            found.remove(newest)
            self._check_whole(self._path(newest))
            self.swap(newest)
        for old in found:
            self._remove(old)

    def _check_whole(self, path):
        try:
            arrays, notes = read_arrays(path)
        except DamagedFile as error:
            raise ValueError(f"{error} Delete it, and the mining of hard negatives starts anew.") from error
        found = {name: (rows.dtype, rows.shape) for name, rows in arrays.items()}
        if found != {_ROWS: (np.int32, self.shape)}:
            raise ValueError(
                f"{path} holds {found}, but {_ROWS} int32 {self.shape} (examples, columns) is expected: the "
                "table is of other data or another sampler. Delete it, or name another directory."
            )
        classes = notes[_CLASSES]  # None if the model had no names
        if None not in (classes, self.classes) and classes != self.classes:
            raise ValueError(
                f"{path} holds ids of other classes: the model has other class names, or the same in another "
                "order. Delete it, and mining starts anew, or name another directory."
            )

    def mapped(self, epoch):
        """The rows int32 [N, R] that were written for the queries of an epoch, memory-mapped."""
        return np.memmap(self._path(epoch), np.int32, "r", shape=self.shape)

    def write(self, blocks, epoch):
        """Writes blocks int32 [n, R] of all rows, in order, or nothing: OSError without space."""
        with atomic_write(self._path(epoch)) as aside:
            with open(aside, "wb") as file:
                for rows in blocks:
                    file.write(np.ascontiguousarray(rows, np.int32))
            seal_array(aside, _ROWS, np.int32, self.shape, {_CLASSES: self.classes})

    def swap(self, epoch):
        """Replaces the table by the one that was written for the queries of an epoch, or by none (None)."""
        old, self.epoch = self.epoch, epoch
        self.in_use = None if epoch is None else self.mapped(epoch)
        if old not in (None, epoch):
            self._remove(old)

    def put_back(self, rows, epoch):
        """Replaces the table by rows that were in use before; removes it if they are None."""
        self.in_use = None
        if rows is not None:
            self.write([rows], epoch)
        self.swap(None if rows is None else epoch)

    def _path(self, epoch):
        return self.folder / _NAME.format(epoch)

    def _remove(self, epoch):
        # Windows keeps a file that a backup which is being written reads: the next ``resume`` removes it.
        with contextlib.suppress(FileNotFoundError, PermissionError):
            self._path(epoch).unlink()

    def start_collecting(self, epoch):
        """Has ``collect`` keep queries until ``finish_collecting``; OSError if the disk has no space."""
        shape = (self.shape[0], self.query_dim)
        # A file without a name frees its space when nothing maps it, also after a kill.
        with tempfile.TemporaryFile(dir=self.folder) as file:
            _reserve(file, 4 * shape[0] * shape[1])
            values = np.memmap(file, np.float32, "r+", shape=shape)
        self.collecting = Queries(values, np.zeros(self.shape[0], bool), {}, epoch)

    def finish_collecting(self):
        """The queries collected since ``start_collecting``; None without such a call."""
        queries, self.collecting = self.collecting, None
        return queries

    def collect(self, example_ids, query):
        """Keeps effective queries [B, E]; returns the places int32 [n] of those for ``collect_checked``."""
        if self.collecting is None:
            return np.zeros(0, np.int32)
        self._check(example_ids)
        self.collecting.values[example_ids] = query
        self.collecting.seen[example_ids] = True
        return np.flatnonzero(np.isin(example_ids, self._checked_ids)).astype(np.int32)

    def collect_checked(self, example_ids, query):
        """Keeps the queries [n, D], as the head takes them, of examples that tell the recall."""
        if self.collecting is not None:
            self.collecting.checked.update(zip(example_ids.tolist(), query, strict=True))

    def rows(self, example_ids):
        """The class ids int32 [B, R] of some examples; -1 where there are none."""
        self._check(example_ids)
        if self.in_use is None:
            return np.full((len(example_ids), self.shape[1]), -1, np.int32)
        rows = self.in_use[example_ids]
        if rows.size and not -1 <= rows.min() <= rows.max() < self.num_classes:
            wrong = rows[(rows < -1) | (rows >= self.num_classes)][0]
            raise ValueError(
                f"{self._path(self.epoch)} holds the class id {wrong}, outside [0, {self.num_classes}): the "
                "table is damaged, or of other classes. Delete it, and mining starts anew."
            )
        return rows

    def _check(self, example_ids):
        outside = example_ids[(example_ids < 0) | (example_ids >= self.shape[0])]
        if len(outside):
            raise ValueError(
                f"Example id {outside[0]} is outside [0, {self.shape[0]}): ids number the training examples "
                "from 0, and num_examples must be how many there are."
            )


def _reserve(file, size):
    """Reserves space on the disk: on a full disk, a write to a hole in a mapped file kills the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
        return
    for start in range(0, size, _ZEROS):
        file.write(bytes(min(_ZEROS, size - start)))
    file.flush()
