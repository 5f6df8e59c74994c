import collections

import numpy as np
import pytest

from tfxc._keras import keras
from tfxc.resume.callback_states import CallbackStates


class Counting(keras.callbacks.Callback):
    def __init__(self, patience):
        super().__init__()
        self.patience, self.table = patience, np.arange(3)
        self.seen, self.best = collections.Counter(), np.zeros(2)


class Keeping(keras.callbacks.Callback):
    value = 0

    def state_to_keep(self):
        return {"value": self.value}

    def restore_state(self, state):
        self.value = state["value"]


def test_only_what_training_changed_is_restored():
    first, second, keeping = Counting(3), Counting(5), Keeping()
    states, arrays = CallbackStates([first, second, keeping]), {}
    states.note()
    first.seen["a"] += 2
    first.best[:], keeping.value = 7, 4
    notes = states.taken(arrays)
    first, second, keeping = Counting(30), Counting(50), Keeping()
    CallbackStates([first, second, keeping]).restore(notes, arrays)
    assert first.patience == 30 and second.patience == 50 and keeping.value == 4
    assert type(first.seen) is collections.Counter and first.seen == {"a": 2} and not second.seen
    np.testing.assert_array_equal(first.best, [7, 7])


def test_what_a_backup_holds_stays_a_state():
    callback = Counting(3)
    states = CallbackStates([callback])
    callback.best[:] = 7
    notes, arrays = states.taken(found := {}), found
    again = CallbackStates([callback])  # a notebook's cell runs again: the attribute does not change
    again.restore(notes, arrays)
    assert again.taken(found := {}) == notes and len(found) == 1


def test_a_callback_without_a_state_begins_anew():
    with pytest.warns(UserWarning, match="knows nothing of Keeping 0: it starts anew"):
        CallbackStates([Keeping()]).restore({}, {})
