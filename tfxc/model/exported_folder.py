"""The folder of an export: written aside, and put in its place when it is whole."""

import contextlib
import ctypes
import fcntl
import os
import shutil

import tensorflow as tf

from tfxc.arguments import local_folder
from tfxc.model.names_file import NAMES_FILE

_WRITTEN, _REPLACED = "tfxc-export", "tfxc-replaced"  # all that exports keep in the folder they write in
_EXTRA = "assets.extra"  # where TensorFlow Serving looks for what users add, such as requests to warm up by
_EXPORTED = {"saved_model.pb", "fingerprint.pb", "variables", "assets", _EXTRA}  # all that they leave


@contextlib.contextmanager
def exported_folder(path):
    """Gives a folder to write, which takes its place under the path when it is whole.

    An earlier export there is exchanged for it in a moment; one that fails, or is killed, leaves it whole.
    What users put into its ``assets.extra`` is there in the new one, too.

    Raises:
        ValueError: if the path is no folder of this machine, a file or a folder of other things, or such a
            one is in the way beside it; while another export is written to the same path.
    """
    path = os.path.realpath(local_folder(path))  # a link would be exchanged in place of the folder
    if os.path.isfile(path):
        raise ValueError(f"A SavedModel is a folder, but {path} is a file: choose another path.")
    held = sorted(os.listdir(path)) if os.path.isdir(path) else []
    others = [name for name in held if name not in _EXPORTED]
    if others or (held and "saved_model.pb" not in held):
        first, *more = others or held
        raise ValueError(
            f"An export takes the place of an earlier one and of nothing else, but {path} holds {first!r}"
            f"{' and more' if more else ''}: name a new folder, such as {os.path.join(path, '1')}."
        )
    workplace = f"{path}.writing"
    _require_own(workplace)
    with _held_alone(workplace):
        _clear(workplace, path)  # what a killed one left
        try:
            yield os.path.join(workplace, _WRITTEN)
            _keep_extra(path, os.path.join(workplace, _WRITTEN))
            _replace_folder(workplace, path)
        finally:
            _clear(workplace, path)
            with contextlib.suppress(OSError):  # what others put there meanwhile is theirs
                os.rmdir(workplace)


@contextlib.contextmanager
def named_if_unwritten(path):
    """Where files of an export cannot be written, as on a full disk, raises OSError with its path."""
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        why = error.message.split("}} ")[-1] if isinstance(error, tf.errors.OpError) else error
        raise OSError(
            f"The export {path} could not be written; an earlier one is as it was. {why}"
        ) from error


def _require_own(workplace):
    """Raises ValueError where a folder to write in, which is deleted later, holds what no export left."""
    if not os.path.lexists(workplace):
        return
    is_folder = os.path.isdir(workplace) and not os.path.islink(workplace)
    others = sorted({*os.listdir(workplace)} - {_WRITTEN, _REPLACED}) if is_folder else []
    if others or not is_folder:
        found = f"holds {others[0]!r}, which no export left there" if others else "is there, and no folder"
        raise ValueError(f"An export is written in {workplace} first, but that {found}: move it elsewhere.")


@contextlib.contextmanager
def _held_alone(workplace):
    """Makes a folder to write in and holds it: two exports would mix their files. A kill lets go of it."""
    os.makedirs(workplace, exist_ok=True)
    handle = os.open(workplace, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ValueError(
            f"Another export writes in {workplace} at this moment: wait for it, or name another path. Where "
            "several processes train one model, let one of them export it."
        ) from None
    except OSError:  # a file system without locks
        pass
    try:
        yield
    finally:
        os.close(handle)


def _clear(workplace, path):
    """Empties a folder to write in; an export of before that is still in it gets its place back."""
    replaced = os.path.join(workplace, _REPLACED)
    if os.path.exists(replaced) and not os.path.exists(path):
        os.rename(replaced, path)
    for name in (_WRITTEN, _REPLACED):
        shutil.rmtree(os.path.join(workplace, name), ignore_errors=True)


def _keep_extra(old, new):
    """Copies the files that users added to an export into the next; names of classes are the model's own."""
    old, new = os.path.join(old, _EXTRA), os.path.join(new, _EXTRA)
    added = set(os.listdir(old)) - {NAMES_FILE} if os.path.isdir(old) else set()
    for name in added:
        os.makedirs(new, exist_ok=True)
        copy = shutil.copytree if os.path.isdir(os.path.join(old, name)) else shutil.copy2
        copy(os.path.join(old, name), os.path.join(new, name))


def _replace_folder(workplace, path):
    """Puts what is written in another's place; at no moment is there none, where the system can."""
    new = os.path.join(workplace, _WRITTEN)
    if os.path.exists(path) and not _exchange(new, path):
        os.rename(path, os.path.join(workplace, _REPLACED))
    if not os.path.exists(path):
        os.rename(new, path)


def _exchange(one, other):
    """Swaps the names of two folders in one step; False where the system or its file system cannot."""
    at_cwd, exchange = -100, 2
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except (OSError, AttributeError):
        return False
    return renameat2(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), exchange) == 0
