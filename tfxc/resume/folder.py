"""A folder of backups that a thread writes: the last two are kept, and damaged ones are skipped."""

import os
import re
import threading
import warnings
from pathlib import Path

import numpy as np
import tensorflow as tf

from tfxc.atomic_write import WRITING
from tfxc.background import lower_priority
from tfxc.checked_file import DamagedFile, index_checksum, map_arrays, read_arrays, write_arrays
from tfxc.resume.changes import changes_since, mostly_changed, with_changes

_NAME = "step-{:012d}.backup"
_PATTERN = re.compile(r"step-\d{12}\.backup")
_NUM_KEPT = 2
_MOST_CHANGES = 10


class BackupFolder:
    """Files ``step-000000001000.backup``; a thread writes one at a time. OSError for a folder of others.

    If less than half of the bytes changed since the last whole backup, a file holds the changes only. After
    ten such files comes a whole one again. The last two files are kept, and the last two whole ones.
    """

    def __init__(self, path):
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise PermissionError(f"Backups cannot be written to {self.path}: name a folder that can be.")
        for left in self.path.iterdir():  # a killed write leaves its file; others are the user's
            if _PATTERN.fullmatch(left.name.removeprefix(WRITING)) and left.name.startswith(WRITING):
                left.unlink()
        self.last_step = None
        self._bases = []  # the last two whole backups; changes are relative to the latter
        self._num_changes = _MOST_CHANGES  # backups relative to it; the first backup is whole
        self._thread = None
        self._error = None

    def newest(self):
        """Arrays and notes of the newest backup that is whole, or None; DamagedFile where none of them is."""
        damaged = []
        for path in reversed(self._files()):
            try:
                *found, base = self._read(path)
            except DamagedFile as error:
                damaged.append(path)
                warnings.warn(f"{error} The backup before it is used.", stacklevel=2)
                continue
            for path in damaged:  # under its name, it would count as newer than those to come
                path.rename(path.with_suffix(".damaged"))
            self._bases = [base]
            return tuple(found)
        if damaged:
            names = ", ".join(path.name for path in damaged)
            raise DamagedFile(f"No backup in {self.path} is whole: {names}. To start anew, delete them.")
        return None

    def _read(self, path):
        """Arrays, notes, and the whole backup that the file is relative to."""
        arrays, notes = read_arrays(path)
        if notes["base"] is None:
            return arrays, notes["own"], path
        base = self.path / notes["base"]
        if base == path:
            raise DamagedFile(f"{path} is damaged: it holds what changed since itself.")
        since = f"{path} holds what changed since {base.name}"
        if not base.exists():
            raise DamagedFile(f"{since}, which is gone.")
        if index_checksum(base) != notes["base_checksum"]:
            raise DamagedFile(f"{since}, but the file of that name is another, maybe of another training.")
        return with_changes(read_arrays(base)[0], arrays), notes["own"], base

    def _files(self):
        return sorted(path for path in self.path.iterdir() if _PATTERN.fullmatch(path.name))

    @property
    def busy(self):
        return self._thread is not None and self._thread.is_alive()

    def write(self, step, arrays, notes):
        """Starts to write a backup, once the one before it is written."""
        self.wait()
        # The thread is no daemon: the interpreter waits for it when a script ends.
        self._thread = threading.Thread(target=self._write, args=(step, arrays, notes), name="backup")
        self._thread.start()

    def wait(self):
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def take_error(self):
        """The OSError of a write that failed since the last call, or None."""
        error, self._error = self._error, None
        return error

    def _write(self, step, arrays, notes):
        lower_priority()
        path = self.path / _NAME.format(step)
        try:
            # If several batches make one step, a later backup may take the place of a base.
            changed = None if path in self._bases else self._changes(arrays)
            if changed is None:
                write_arrays(path, arrays, {"base": None, "own": notes})
                others = [own for own in self._bases if own != path]
                self._bases, self._num_changes = [*others[-1:], path], 0
            else:
                changes, base = changed
                write_arrays(path, changes, {**base, "own": notes})
                self._num_changes += 1
            self.last_step = step
            for old in self._files()[:-_NUM_KEPT]:
                if old not in self._bases:
                    old.unlink()
        except OSError as error:
            self._error = error

    def _changes(self, arrays):
        """What changed since the last base, and notes of that; None if a whole backup is due or no larger."""
        if self._num_changes == _MOST_CHANGES:
            return None
        try:
            path = self._bases[-1]
            if mostly_changed(map_arrays(path)[0], arrays):
                return None
            base, _ = read_arrays(path)
            notes = {"base": path.name, "base_checksum": index_checksum(path)}
        except (DamagedFile, FileNotFoundError):
            return None
        changes = changes_since(base, arrays)
        return (changes, notes) if 2 * _num_bytes(changes) < _num_bytes(arrays) else None


def _num_bytes(arrays):
    return sum(int(np.prod(array.shape)) * tf.as_dtype(array.dtype).size for array in arrays.values())
