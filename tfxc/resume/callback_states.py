"""The state of callbacks: what training has changed in them."""

import warnings

from tfxc._keras import keras
from tfxc.resume.state import (
    changed_attributes,
    from_json,
    plain_attributes,
    set_attributes,
    snapshot,
    to_json,
)


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
        self._told.append({name: snapshot(_attributes(own)) for name, own in self._callbacks.items()})

    def taken(self, arrays):
        """The states as JSON holds them; ``arrays``, a dict, gets their arrays."""
        return {name: to_json(self._state(name), arrays) for name in self._callbacks}

    def _state(self, name):
        callback = self._callbacks[name]
        if hasattr(callback, "state_to_keep"):
            return callback.state_to_keep()
        attributes = _attributes(callback)
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


def _attributes(callback):
    state = plain_attributes(callback)
    of_keras = {"params", *vars(keras.callbacks.Callback())}
    return {name: value for name, value in state.items() if name not in of_keras}
