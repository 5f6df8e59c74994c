"""Files and folders that appear under their name only when all of them is on the disk."""

import contextlib
import ctypes
import itertools
import os
import shutil

from tfxc.arguments import local_path

WRITING, REPLACED = "writing-", "replaced-"  # how names begin before, and after, their place is taken
# Windows opens no folder, and writes only those files through that are open for writing.
_OPENS_FOLDERS = hasattr(os, "O_DIRECTORY")


@contextlib.contextmanager
def atomic_write(path):
    """Gives a path beside ``path``. The file or folder written there takes the place of ``path`` at the end.

    A write that fails, or is killed, leaves an earlier file or folder as it was. A symbolic link stays, and
    what it points to is replaced. A new file has the mode of the earlier one. An OSError of a full disk or a
    folder that cannot be written names ``path``. Raises ValueError for a path that is not of this machine.
    """
    target = os.path.realpath(local_path(path))
    # Renaming works within one disk, so the new file lies in the target's folder. It keeps the suffix of the
    # given path, which may tell the writer the format.
    aside = os.path.join(os.path.dirname(target), WRITING + os.path.basename(path))
    recover(target)
    _remove(aside)
    try:
        yield aside
        put_in_place(aside, target)
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        why = f"{os.strerror(error.errno)} (an earlier file is as it was)"  # HDF5's own has five lines
        raise OSError(error.errno, why, os.fspath(path)) from error
    finally:
        _remove(aside)


def put_in_place(aside, path):
    """Writes a file or folder through to the disk, then renames it to ``path``, on the same disk.

    Where the system can exchange two folders, there is no moment without a folder at ``path``; elsewhere
    ``recover`` puts the old one back after a kill.
    """
    sync(aside)
    if os.path.isdir(aside) and os.path.isdir(path):
        if not _exchange(aside, path):
            os.rename(path, _replaced(path))
            os.rename(aside, path)
    else:
        with contextlib.suppress(OSError):  # there is no earlier file, or the disk keeps no modes
            shutil.copymode(path, aside)
        os.replace(aside, path)
    sync_entry(os.path.dirname(path) or ".")  # the new name must last, too
    _remove(_replaced(path))
    _remove(aside)  # after an exchange, the old folder


def recover(path):
    """Undoes, or completes, a ``put_in_place`` of a folder that was killed between its two renames."""
    if os.path.lexists(_replaced(path)):
        if os.path.lexists(path):
            _remove(_replaced(path))
        else:
            os.rename(_replaced(path), path)


def sync(path):
    """Waits until a file, or a folder and all that it holds, is on the disk."""
    sync_entry(path)
    for folder, *inside in os.walk(path):
        for name in itertools.chain(*inside):
            sync_entry(os.path.join(folder, name))


def sync_entry(path):
    """Waits until a file is on the disk, and the list of names in a folder where a system offers that."""
    if not _OPENS_FOLDERS and os.path.isdir(path):
        return
    handle = os.open(path, os.O_RDONLY if _OPENS_FOLDERS else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _replaced(path):
    return os.path.join(os.path.dirname(path), REPLACED + os.path.basename(path))


def _remove(path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


def _exchange(one, other):
    """Exchanges the names of two folders in one step; False where the system or file system cannot."""
    at_cwd, exchange = -100, 2
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except (OSError, AttributeError, TypeError):  # the last on Windows, whose libraries all have names
        return False
    return renameat2(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), exchange) == 0
