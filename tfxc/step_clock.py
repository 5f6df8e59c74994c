"""When a callback is due, counted in the training steps of the optimizer."""

import math
import warnings

from tfxc._keras import keras
from tfxc._keras.optimizers import steps_variable
from tfxc.arguments import positive_int

EPOCH = "epoch"


def steps_or_epoch(value, name):
    """Returns "epoch", or an integer as a Python int: when something is due; else a ValueError names it."""
    if isinstance(value, str) and value == EPOCH:
        return value
    return positive_int(value, f'{name} must be "epoch" or a number of steps, which')


class StepClock:
    """Rings after every so many training steps of a model; never, if ``every`` is "epoch".

    It reads the optimizer's ``iterations``, which are saved with the model and by ``BackupAndRestore``: a
    resumed training goes on counting, and the count is right for any ``steps_per_execution``. The steps from
    one ring to the next grow by the factor ``growth``, at least 1.
    """

    def __init__(self, every, growth=1.0):
        self.every = steps_or_epoch(every, "every")
        self.growth = growth

    def start(self, model):
        """Reads the steps of the model; earlier rings are past. To be called before each epoch."""
        self._model = model
        self._num_calls, self._num_batches = self._calls(), 0
        self.last = 0  # the step of the last ring; 0 if there was none
        self._interval, self._next = self.every, self.every
        if self.every != EPOCH:
            self._pass(self.now)

    @property
    def now(self):
        return int(self._model.optimizer.iterations.numpy())

    def due(self):
        """Whether, at the end of a batch, the clock has rung since the last call."""
        if self.every == EPOCH:
            return False
        self._num_batches += 1
        return self._pass(self.now)

    def stop(self):
        """Warns if the optimizer took no step in the epoch. To be called after each epoch."""
        if self._num_batches and self._calls() == self._num_calls:
            warnings.warn(
                "The optimizer given to compile took no step in this epoch, so a callback that counts steps "
                "never acts. Train by that optimizer; one that holds several is "
                "tfxc.optimizers.MultiOptimizer.",
                stacklevel=3,
            )

    def _calls(self):
        return int(steps_variable(self._model.optimizer).numpy())

    def _pass(self, now):
        """Sets the next ring after now; returns whether there was one until now."""
        if now < self._next:
            return False
        if self.growth == 1:
            self.last = now // self.every * self.every
            self._next = self.last + self.every
        while self._next <= now:
            self.last = math.ceil(self._next)
            self._interval *= self.growth
            self._next += self._interval
        return True


class StepCallback(keras.callbacks.Callback):
    """A callback that acts in ``on_step_due`` when its ``StepClock`` rings.

    With a clock of epochs it has no hook for batches: in a cluster Keras refuses those that override one.
    """

    def __init__(self, clock):
        super().__init__()
        self._clock = clock

    @property
    def on_train_batch_end(self):
        return super().on_train_batch_end if self._clock.every == EPOCH else self._on_batch_end

    def _on_batch_end(self, batch, logs=None):
        if self._clock.due():
            self.on_step_due(logs)

    def on_step_due(self, logs=None):
        """Called after the training step at which the clock rings."""
