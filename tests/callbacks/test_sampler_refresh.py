"""When the sampler is refreshed."""

import numpy as np
import pytest
import tensorflow as tf

import tfxc
from tfxc._keras import keras
from tfxc.callbacks import SamplerRefresh
from tfxc.layers import DenseHead
from tfxc.losses import SoftmaxCrossentropy
from tfxc.samplers import Uniform


class Recorder(Uniform):
    """A sampler that notes the training step of each refresh and what it was given."""

    def __init__(self, model_of, **options):
        super().__init__(2, seed=0, **options)
        self.model_of, self.steps = model_of, []

    def refresh(self, head):
        model = self.model_of()
        assert head is model.head
        self.steps.append(int(model.optimizer.iterations.numpy()))


def recorded(callback, epochs=3, num_steps=4, fits=1, **options):
    box = []
    sampler = Recorder(lambda: box[0])
    encoder = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    model = tfxc.ExtremeClassifier(encoder, DenseHead(5), sampler=sampler, k=1)
    box.append(model)
    model.compile("sgd", loss=SoftmaxCrossentropy(), **options)
    x, y = tf.zeros([num_steps, 2]), np.zeros(num_steps, int)
    for _ in range(fits):
        history = model.fit(x, y, batch_size=1, epochs=epochs, callbacks=[callback], verbose=0).history
    return sampler.steps, history


@pytest.mark.parametrize(
    ("callback", "steps"),
    [
        ({}, [0, 4, 8]),
        ({"every": 3}, [3, 6, 9, 12]),
        ({"every": 2, "growth": 2.0}, [2, 6]),
        ({"every": 2, "growth": 1.5}, [2, 5, 10]),
        ({"every": 100}, []),
    ],
)
def test_schedule(callback, steps):
    got, history = recorded(SamplerRefresh(**callback))
    assert got == steps
    seconds = history["refresh_seconds"]
    assert len(seconds) == 3 and all(second >= 0 for second in seconds)
    assert sum(second > 0 for second in seconds) == len(
        {step // 4 if callback == {} else (step - 1) // 4 for step in steps}
    )


def test_several_steps_an_execution_count_as_several():
    assert recorded(SamplerRefresh(every=4), steps_per_execution=2)[0] == [4, 8, 12]
    assert recorded(SamplerRefresh(every=3), steps_per_execution=2)[0] == [4, 6, 10, 12]


def test_the_count_goes_on_in_the_next_fit():
    assert recorded(SamplerRefresh(every=5), epochs=1, fits=3)[0] == [5, 10]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every must be"),
        ({"every": "step"}, "every must be"),
        ({"every": 2.5}, "every must be"),
        ({"every": 5, "growth": 0.5}, "growth must be at least 1"),
        ({"growth": 2.0}, "needs a number of steps"),
    ],
)
def test_arguments_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        SamplerRefresh(**options)


def test_a_model_without_a_sampler_is_refused():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="needs a model with a sampler"):
        model.fit(np.zeros((2, 2)), np.zeros((2, 1)), callbacks=[SamplerRefresh()], verbose=0)
