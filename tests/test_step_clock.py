import numpy as np
import pytest

from tfxc._keras import keras
from tfxc.step_clock import StepClock


class Model:
    def __init__(self, steps=0):
        self.optimizer = keras.optimizers.SGD()
        self.optimizer.iterations.assign(steps)


def rings(clock, model, steps, at_once=1):
    found = []
    for _ in range(steps // at_once):
        model.optimizer.iterations.assign_add(at_once)
        if clock.due():
            found.append(clock.now)
    return found


@pytest.mark.parametrize(
    ("arguments", "at_once", "want"),
    [
        ((4,), 1, [4, 8, 12, 16, 20]),
        ((3,), 2, [4, 6, 10, 12, 16, 18]),
        ((2, 2.0), 1, [2, 6, 14]),
        ((2, 1.5), 1, [2, 5, 10, 17]),
        (("epoch",), 1, []),
        ((50,), 1, []),
    ],
)
@pytest.mark.parametrize("resumed_at", [0, 6, 7, 13])
def test_it_rings_at_the_same_steps_wherever_training_resumes(arguments, at_once, want, resumed_at):
    model, clock = Model(), StepClock(*arguments)
    if at_once > 1 and resumed_at % at_once:
        pytest.skip("training stops between calls")
    clock.start(model)
    assert rings(clock, model, resumed_at, at_once) == [step for step in want if step <= resumed_at]
    again, clock = Model(resumed_at), StepClock(*arguments)
    clock.start(again)
    assert rings(clock, again, 20 - resumed_at, at_once) == [step for step in want if step > resumed_at]


def test_starting_again_changes_nothing():
    model, clock = Model(), StepClock(3)
    found = []
    for _ in range(5):  # epochs of two steps
        clock.start(model)
        found += rings(clock, model, 2)
    assert found == [3, 6, 9]
    assert clock.last == 9


@pytest.mark.parametrize("every", [0, -1, 2.5, "step", None, True])
def test_other_times_are_refused(every):
    assert type(StepClock(np.int64(3)).every) is int
    message = 'every must be "epoch" or a number of steps, which must be an integer'
    with pytest.raises(ValueError, match=message):
        StepClock(every)


def test_an_epoch_without_a_step_is_told_of(recwarn):
    model, clock = Model(), StepClock(3)
    clock.start(model)
    clock.stop()  # of an epoch without batches
    clock.start(model)
    rings(clock, model, 1)
    clock.stop()
    assert not recwarn
    clock.start(model)
    assert not clock.due()
    with pytest.warns(UserWarning, match="took no step in this epoch.*Train by that optimizer"):
        clock.stop()
