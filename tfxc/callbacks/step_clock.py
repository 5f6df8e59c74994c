"""When something is due, by the training steps that the optimizer has counted."""

import math
import types
import warnings

from tfxc._keras import keras
from tfxc._keras.optimizers import steps_variable
from tfxc.arguments import positive_int

EPOCH = "epoch"


def steps_or_epoch(value, name):
    """Checks when something is due: "epoch", or a number of training steps, then as a Python int.

    Args:
        value: "epoch", or an integer of Python or NumPy.
        name: what the error calls it.

    Raises:
        ValueError: for anything else.

    Example:
        >>> steps_or_epoch(np.int64(3), "every"), steps_or_epoch("epoch", "every")
        (3, 'epoch')
    """
    if isinstance(value, str) and value == EPOCH:
        return value
    return positive_int(value, f'{name} must be "epoch" or a number of steps, which')


def ignore_batches(callback):
    """Tells Keras that a callback has no use for batches: with parameter servers it refuses those that have.

    Example:
        >>> callback = tfxc.callbacks.SamplerRefresh("epoch")  # calls it
        >>> callback.on_train_batch_end(0)
    """
    callback.on_train_batch_end = types.MethodType(keras.callbacks.Callback.on_train_batch_end, callback)


class StepClock:
    """Rings after every so many training steps of a model.

    Its time is the optimizer's ``iterations``: saved with the model and by ``BackupAndRestore``, so that a
    resumed training goes on counting, and right whatever ``steps_per_execution``.

    Args:
        every: steps from one time to the next; or "epoch", and it never rings.
        growth: factor, at least 1, by which the steps from one time to the next grow.

    Raises:
        ValueError: for an ``every`` that is neither "epoch" nor a positive integer.

    Example:
        >>> model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        >>> model.compile("sgd")
        >>> clock = StepClock(every=2)
        >>> clock.start(model)
        >>> for _ in range(3):
        ...     _ = model.optimizer.iterations.assign_add(1)
        ...     print(clock.now, clock.due())
        1 False
        2 True
        3 False
    """

    def __init__(self, every, growth=1.0):
        self.every = steps_or_epoch(every, "every")
        self.growth = growth

    def start(self, model):
        """Reads the time of the model; what was due earlier is past. To be called before each epoch."""
        self._model = model
        self._num_calls, self._num_batches = self._calls(), 0
        self.last = 0  # when it last was due, 0: never
        self._interval, self._next = self.every, self.every
        if self.every != EPOCH:
            self._pass(self.now)

    @property
    def now(self):
        """Training steps so far."""
        return int(self._model.optimizer.iterations.numpy())

    def due(self):
        """Whether, at the end of a batch, a time has come since it was last asked."""
        if self.every == EPOCH:
            return False
        self._num_batches += 1
        return self._pass(self.now)

    def stop(self):
        """Warns of a time that stood still. To be called after each epoch."""
        if self._num_batches and self._calls() == self._num_calls:
            warnings.warn(
                "The optimizer given to compile took no step in this epoch, so that what waits for steps "
                "never comes. Train by that optimizer: one of several is tfxc.optimizers.MultiOptimizer.",
                stacklevel=3,
            )

    def _calls(self):
        return int(steps_variable(self._model.optimizer).numpy())

    def _pass(self, now):
        """Sets the next time after now; returns whether there was one until now."""
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
