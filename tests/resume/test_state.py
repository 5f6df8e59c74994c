from collections import Counter, defaultdict

import numpy as np
import pytest
import tensorflow as tf

from tfxc._keras import keras
from tfxc.resume import state


class Owner:
    def __init__(self, wait, best):
        half = tf.fill([2], best).numpy().astype(tf.bfloat16.as_numpy_dtype)
        self.wait, self.best, self.weights = wait, best, [np.full(2, best), np.float32(best), half]
        self.logs = {"loss": [1.5, float("inf")], 3: (None, True)}
        self.compare, self.seen, self.by = np.less, Counter(), defaultdict(list)


def test_plain_attributes_are_put_back():
    owner, other = Owner(2, 0.1), Owner(0, 0.5)
    owner.compare, owner.schedule = np.greater, lambda epoch: epoch
    owner.seen.update("aab")
    owner.by[1].append(2)
    arrays = {}
    notes = state.to_json(state.plain_attributes(owner), arrays)
    owner.weights[0][:] = 9  # what was taken is a copy
    state.set_attributes(other, state.from_json(notes, arrays))
    assert (other.wait, other.best, other.logs) == (owner.wait, owner.best, owner.logs)
    assert other.weights[0].tolist() == [0.1, 0.1] and other.weights[1] == np.float32(0.1)
    assert isinstance(other.weights[1], np.float32) and other.compare is np.greater
    assert other.weights[2].dtype == tf.bfloat16 and (other.weights[2] == owner.weights[2]).all()
    other.seen.update("a")  # a dict of another type stays one
    other.by[7].append(8)
    assert other.seen == {"a": 3, "b": 1} and other.by == {1: [2], 7: [8]}


def test_what_is_mapped_from_a_file_is_not_copied(tmp_path):
    mapped, arrays = np.memmap(tmp_path / "rows", np.int32, "w+", shape=4), {}
    state.to_json({"rows": mapped}, arrays)
    assert next(iter(arrays.values())) is mapped


@pytest.mark.parametrize("value", [{1}, b"raw", object()], ids=["set", "bytes", "object"])
def test_what_no_file_can_hold_is_refused(value):
    with pytest.raises(ValueError, match="state_to_keep of a callback gives .*convert it there"):
        state.to_json({"kept": [value]}, {})


def test_what_training_does_not_change_is_what_it_was_told():
    told = {"path": "a", "best": 1.0, "logs": [1], "weights": None, "flag": True, "table": np.ones(2)}
    begun = {**told, "flag": False}
    now = {**told, "best": 0.5, "logs": [1, 2], "weights": [np.zeros(2)]}
    found = state.changed_attributes(now, state.snapshot(told), state.snapshot(begun))
    assert sorted(found) == ["best", "flag", "logs", "weights"]


@pytest.mark.parametrize(
    "other",
    [
        np.array([[1, 2], [3, 5]], np.int32),
        np.array([1, 2, 3, 4], np.int32),
        np.array([[1, 2], [3, 4]], np.uint32),
        np.array([[1, 2], [3, 4]], np.int32).T,
        [1, 2],
        None,
    ],
    ids=["value", "shape", "type", "order", "list", "none"],
)
def test_another_array_is_a_change(other):
    table = np.array([[1, 2], [3, 4]], np.int32)
    weights = [tf.constant([0.5, 1.5], tf.bfloat16).numpy(), np.float32(2), np.zeros([0, 3])]
    told = state.snapshot({"table": table, "weights": weights})
    same = {"table": np.asfortranarray(table), "weights": [np.array(weights[0]), *weights[1:]]}
    assert state.changed_attributes(same, told) == {}
    assert list(state.changed_attributes({**same, "table": other}, told)) == ["table"]
    weights[0][1] = 1.25  # in place
    assert list(state.changed_attributes({"table": table, "weights": weights}, told)) == ["weights"]


class Counting(keras.callbacks.Callback):
    def __init__(self, patience):
        super().__init__()
        self.patience, self.table = patience, np.full(3, patience)
        self.seen, self.best = Counter(), np.zeros(2)


class Keeping(keras.callbacks.Callback):
    value = 0

    def state_to_keep(self):
        return {"value": self.value}

    def restore_state(self, state):
        self.value = state["value"]


def test_only_what_training_changed_is_restored():
    first, second, keeping = Counting(3), Counting(5), Keeping()
    states, arrays = state.CallbackStates([first, second, keeping]), {}
    states.note()
    first.seen["a"] += 2
    first.best[:], keeping.value = 7, 4
    notes = states.taken(arrays)
    first, second, keeping = Counting(30), Counting(50), Keeping()
    state.CallbackStates([first, second, keeping]).restore(notes, arrays)
    assert first.patience == 30 and second.patience == 50 and keeping.value == 4
    assert first.table.tolist() == [30] * 3
    assert type(first.seen) is Counter and first.seen == {"a": 2} and not second.seen
    np.testing.assert_array_equal(first.best, [7, 7])


def test_what_a_backup_holds_stays_a_state():
    callback = Counting(3)
    states = state.CallbackStates([callback])
    callback.best[:] = 7
    notes, arrays = states.taken(found := {}), found
    again = state.CallbackStates([callback])  # a notebook's cell runs again: the attribute does not change
    again.restore(notes, arrays)
    assert again.taken(found := {}) == notes and len(found) == 1


def test_a_callback_without_a_state_begins_anew():
    with pytest.warns(UserWarning, match="knows nothing of Keeping 0: it starts anew"):
        state.CallbackStates([Keeping()]).restore({}, {})
