from collections import Counter, defaultdict

import numpy as np
import pytest
import tensorflow as tf

from tfxc.resume import state


class Owner:
    def __init__(self, wait, best):
        self.wait, self.best, self.weights = wait, best, [np.full(2, best), np.float32(best)]
        self.logs = {"loss": [1.5, float("inf")], 3: (None, True)}
        self.compare = np.less


def test_plain_attributes_are_put_back():
    owner, other = Owner(2, 0.1), Owner(0, 0.5)
    owner.compare, owner.schedule = np.greater, lambda epoch: epoch
    arrays = {}
    notes = state.to_json(state.plain_attributes(owner), arrays)
    owner.weights[0][:] = 9  # what was taken is a copy
    state.set_attributes(other, state.from_json(notes, arrays))
    assert (other.wait, other.best, other.logs) == (owner.wait, owner.best, owner.logs)
    assert other.weights[0].tolist() == [0.1, 0.1] and other.weights[1] == np.float32(0.1)
    assert isinstance(other.weights[1], np.float32) and other.compare is np.greater


def test_what_is_mapped_from_a_file_is_not_copied(tmp_path):
    mapped, arrays = np.memmap(tmp_path / "rows", np.int32, "w+", shape=4), {}
    state.to_json({"rows": mapped}, arrays)
    assert next(iter(arrays.values())) is mapped


def test_a_dict_of_another_type_stays_one():
    class Owner:
        def __init__(self):
            self.seen, self.by = Counter(), defaultdict(list)

    owner, other, arrays = Owner(), Owner(), {}
    owner.seen.update("aab")
    owner.by[1].append(2)
    state.set_attributes(other, state.from_json(state.to_json(state.plain_attributes(owner), arrays), arrays))
    other.seen.update("a")
    other.by[7].append(8)
    assert other.seen == {"a": 3, "b": 1} and other.by == {1: [2], 7: [8]}


def test_bfloat16_is_plain():
    weights, arrays = [tf.constant([0.5, 1.5], tf.bfloat16).numpy()], {}
    owner = Owner(0, 0.5)
    owner.weights = weights
    again = state.from_json(state.to_json(state.plain_attributes(owner), arrays), arrays)["weights"]
    assert again[0].dtype == weights[0].dtype and again[0].tolist() == [0.5, 1.5]


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
