"""The folder of an export: written aside, and put in its place when it is whole."""

import contextlib
import os
import shutil

import tensorflow as tf

from tfxc.arguments import local_path
from tfxc.atomic_write import put_in_place, recover
from tfxc.serving.class_names import NAMES_FILE

try:
    import fcntl
except ImportError:  # Windows, which locks no folders
    fcntl = None  # type: ignore[assignment]

_WRITTEN = "tfxc-export"  # the only name that exports use in the folder they write in
RECORD_FILE = "tfxc.json"  # what an export tells of itself
EXTRA = "assets.extra"  # where TensorFlow Serving looks for files of users, such as requests to warm up by
_EXPORTED = {"saved_model.pb", "fingerprint.pb", "variables", "assets", EXTRA}  # all names in an export


@contextlib.contextmanager
def exported_folder(path):
    """Gives a folder to write, which takes its place under the path when it is whole.

    A write that fails, or is killed, leaves an earlier export whole. Files that users put into its
    ``assets.extra`` are copied into the new one. Raises ValueError if other things are under the path or
    beside it, and while another export is written there.
    """
    path = os.path.realpath(local_path(path))  # or a link, not the folder it names, would be exchanged
    _require_replaceable(path)
    workplace = f"{path}.writing"
    _require_own(workplace)
    aside = os.path.join(workplace, _WRITTEN)
    with _locked(workplace):
        recover(path)
        shutil.rmtree(aside, ignore_errors=True)  # a killed export leaves it
        try:
            yield aside
            _keep_extra(path, aside)
            put_in_place(aside, path)
        finally:
            recover(path)
            shutil.rmtree(aside, ignore_errors=True)
            with contextlib.suppress(OSError):  # others may have put files there meanwhile
                os.rmdir(workplace)


@contextlib.contextmanager
def named_if_unwritten(path):
    """Raises OSError with the path if files of an export cannot be written, as on a full disk."""
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        why = error.message.split("}} ")[-1] if isinstance(error, tf.errors.OpError) else error
        raise OSError(f"The export {path} could not be written; an earlier one is whole. {why}") from error


def _require_replaceable(path):
    """Raises ValueError unless a path is free, or holds an earlier export."""
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


def _require_own(workplace):
    """Raises ValueError if a folder to write in, which is deleted later, holds anything but an export."""
    if not os.path.lexists(workplace):
        return
    is_folder = os.path.isdir(workplace) and not os.path.islink(workplace)
    others = sorted({*os.listdir(workplace)} - {_WRITTEN}) if is_folder else []
    if others or not is_folder:
        found = f"that folder holds {others[0]!r}, which no export left there" if others else "is no folder"
        raise ValueError(f"An export is written in {workplace} first, but {found}: move it elsewhere.")


@contextlib.contextmanager
def _locked(workplace):
    """Makes a folder to write in and locks it: two exports would mix their files. A kill unlocks it."""
    os.makedirs(workplace, exist_ok=True)
    if fcntl is None:
        yield
        return
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


def _keep_extra(old, new):
    """Copies the files that users added to an export into the next; names of classes are the model's own."""
    old, new = os.path.join(old, EXTRA), os.path.join(new, EXTRA)
    added = set(os.listdir(old)) - {NAMES_FILE, RECORD_FILE} if os.path.isdir(old) else set()
    for name in added:
        os.makedirs(new, exist_ok=True)
        copy = shutil.copytree if os.path.isdir(os.path.join(old, name)) else shutil.copy2
        copy(os.path.join(old, name), os.path.join(new, name))
