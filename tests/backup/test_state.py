"""Plain values, there and back."""

import numpy as np

from tfxc.backup.state import from_json, plain_attributes, set_attributes, to_json


class Clock:
    def __init__(self, time):
        self.time = time
        self.model = object()


class Owner:
    def __init__(self, wait, best, clock):
        self.wait, self.best, self.weights = wait, best, [np.full(2, best), np.float32(best)]
        self.logs = {"loss": [1.5, float("inf")], 3: (None, True)}
        self.compare, self.clock = np.less, clock


def test_plain_attributes_are_put_back():
    owner, other = Owner(2, 0.1, Clock(7)), Owner(0, 0.5, Clock(0))
    owner.compare, owner.schedule = np.greater, lambda epoch: epoch
    clock, model, arrays = other.clock, other.clock.model, {}
    notes = to_json(plain_attributes(owner, Clock), arrays)
    owner.weights[0][:] = 9  # what was taken is a copy
    set_attributes(other, from_json(notes, arrays), Clock)
    assert (other.wait, other.best, other.logs) == (owner.wait, owner.best, owner.logs)
    assert other.weights[0].tolist() == [0.1, 0.1] and other.weights[1] == np.float32(0.1)
    assert isinstance(other.weights[1], np.float32) and other.compare is np.greater
    assert other.clock is clock and clock.time == 7 and clock.model is model


def test_what_is_mapped_from_a_file_is_not_copied(tmp_path):
    mapped, arrays = np.memmap(tmp_path / "rows", np.int32, "w+", shape=4), {}
    to_json({"rows": mapped}, arrays)
    assert next(iter(arrays.values())) is mapped
