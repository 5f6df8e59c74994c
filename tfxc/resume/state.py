"""The state of callbacks as plain values, which notes and arrays hold, and from which it is restored."""

import contextlib
import hashlib
import sys
import warnings
import zlib

import numpy as np
import tensorflow as tf

from tfxc._keras import keras

_NUMBERS = (bool, int, float, str, type(None))


class CallbackStates:
    """Takes and restores the states of a list of callbacks that are made but not called yet.

    The state of a callback is what its ``state_to_keep()`` gives or, if it has no such method, its plain
    attributes that training has changed. An attribute that neither training nor its start changes comes from
    the script, and is no state. An attribute that a backup holds is state, also of a callback that lives on
    and has had it since.
    """

    def __init__(self, callbacks):
        self._callbacks: dict = {}  # by the class and their number among those of the class
        for callback in callbacks:
            kind = type(callback).__name__
            number = sum(name.split()[0] == kind for name in self._callbacks)
            self._callbacks[f"{kind} {number}"] = callback
        self._learnt = {name: set() for name in self._callbacks}
        self._told = []
        self.note()

    def note(self):
        """Notes the attributes as they are: those that stay so are no state."""
        self._told.append({name: snapshot(plain_attributes(own)) for name, own in self._callbacks.items()})

    def taken(self, arrays):
        """The states as JSON holds them; ``arrays``, a dict, gets their arrays."""
        return {name: to_json(self._state(name), arrays) for name in self._callbacks}

    def _state(self, name):
        callback = self._callbacks[name]
        if hasattr(callback, "state_to_keep"):
            return callback.state_to_keep()
        attributes = plain_attributes(callback)
        changed = changed_attributes(attributes, *(told[name] for told in self._told))
        return changed | {key: value for key, value in attributes.items() if key in self._learnt[name]}

    def restore(self, notes, arrays):
        """Gives the callbacks the states of ``taken``; a callback without one begins anew, with a warning."""
        for name, callback in self._callbacks.items():
            if name not in notes:
                warnings.warn(f"The backup knows nothing of {name}: it starts anew.", stacklevel=2)
                continue
            state = from_json(notes[name], arrays)
            if hasattr(callback, "restore_state"):
                callback.restore_state(state)
            else:
                set_attributes(callback, state)
                self._learnt[name] |= state.keys()


def plain_attributes(owner):
    """The attributes that are numbers, strings, arrays, functions of modules, lists or dicts, but Keras's."""
    of_keras = {"params", *vars(keras.callbacks.Callback())}
    return {name: own for name, own in vars(owner).items() if name not in of_keras and _is_plain(own)}


def set_attributes(owner, values):
    for name, value in values.items():
        inner = getattr(owner, name, None)
        if isinstance(inner, dict) and type(inner) is not dict:  # a Counter or defaultdict stays one
            inner.clear()
            inner.update(value)
        else:
            setattr(owner, name, value)


def snapshot(attributes):
    """What ``changed_attributes`` compares with: notes of the values, and checksums of their arrays."""
    return {name: _fingerprint(value) for name, value in attributes.items()}


def changed_attributes(attributes, *snapshots):
    """The attributes that differ from a snapshot: an object has learnt these, others it was given."""
    return {
        name: value
        for name, value in attributes.items()
        if any(one.get(name) != _fingerprint(value) for one in snapshots)
    }


def _fingerprint(value):
    arrays: dict = {}
    return to_json(value, arrays), [
        (array.dtype.name, array.shape, zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8)))
        for array in arrays.values()
    ]


def digest_of(names):
    """A digest of names and their order; None if there are no names."""
    if names is None:
        return None
    digest = hashlib.sha256()
    for name in names:
        digest.update(str(name).encode(errors="surrogatepass") + b"\0")
    return digest.hexdigest()


def settings_of(owner):
    """The class of a part of a model, and its config's numbers and strings but seed, name and rate."""
    found = {"class": type(owner).__name__}
    with contextlib.suppress(NotImplementedError):  # by Keras, for users' classes with arguments
        config = owner.get_config()
        found |= {name: value for name, value in config.items() if isinstance(value, _NUMBERS)}
    return {name: value for name, value in found.items() if name not in ("seed", "name", "learning_rate")}


def _is_plain(value):
    if isinstance(value, dict):
        return all(isinstance(name, _NUMBERS) and _is_plain(item) for name, item in value.items())
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biuf" or value.dtype == tf.bfloat16.as_numpy_dtype
    # Keras's callbacks choose how to compare when they first do, and then turn the sign of min_delta.
    return isinstance(value, _NUMBERS) or _named(_name_of(value)) is value


def _name_of(value):
    return getattr(value, "__module__", "numpy"), getattr(value, "__name__", "")


def _named(name):
    """What a loaded module holds under a name; a file never makes a module load."""
    return getattr(sys.modules.get(name[0]), name[1], None)


def to_json(value, arrays):
    """A plain value as JSON holds it, or ValueError; ``arrays``, a dict, gets its arrays under new names."""
    if isinstance(value, dict):
        return {"dict": [[name, to_json(item, arrays)] for name, item in value.items()]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [to_json(item, arrays) for item in value]}
    if isinstance(value, np.ndarray | np.generic):
        name = f"value {len(arrays)}"
        # It is copied, unless it is mapped from a file that nobody writes any more.
        arrays[name] = value if isinstance(value, np.memmap) else np.array(value)
        return {"array" if isinstance(value, np.ndarray) else "scalar": name}
    if isinstance(value, _NUMBERS):
        return value
    if not _is_plain(value):
        raise ValueError(
            f"A backup keeps numbers, strings and arrays, and lists and dicts of them, but the state_to_keep "
            f"of a callback gives {value!r}: convert it there, and back in restore_state."
        )
    return {"function": _name_of(value)}


def from_json(notes, arrays):
    """The value from which ``to_json`` made notes and arrays."""
    if not isinstance(notes, dict):
        return notes
    ((kind, held),) = notes.items()
    if kind == "dict":
        return {name: from_json(item, arrays) for name, item in held}
    if kind in ("list", "tuple"):
        items = [from_json(item, arrays) for item in held]
        return items if kind == "list" else tuple(items)
    if kind == "function":
        return _named(held)
    value = np.array(arrays[held])
    return value if kind == "array" else value[()]
