"""When the connections of sparse heads move."""

import math
import time

from tfxc._keras import keras


class SparseEvolution(keras.callbacks.Callback):
    """Moves the weakest connections of sparse heads while they train (sparse evolutionary training).

    Shown in the logs of the epoch: ``moved_connections``, ``dropped_magnitude`` (mean |weight| of what was
    dropped) and ``rewire_seconds``. Which inputs grow depends on the head's seed and on how often it was
    rewired, both saved with it.

    Args:
        fraction: share of each class's connections that moves, in (0, 1].
        every: "epoch" (at the end of each), or a number of training steps.
        stop_after: None, or the last epoch (with every="epoch") or step at which connections move; the
            last ones need time to train. Steps are the optimizer's: a resumed training goes on counting.
        schedule: "constant", or "cosine": the fraction falls to 0 at ``stop_after``.

    Raises:
        ValueError: for arguments outside their range, or a model without a sparse head.

    Example:
        >>> callback = SparseEvolution(0.1, every=1000)  # model.fit(..., callbacks=[callback])

    Reference:
        Mocanu et al., "Scalable Training of Artificial Neural Networks with Adaptive Sparse Connectivity
        Inspired by Network Science", 2018; Evci et al., "Rigging the Lottery: Making All Tickets Winners",
        2020 (the cosine).
    """

    def __init__(self, fraction=0.1, every=1000, stop_after=None, schedule="constant"):
        super().__init__()
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction must be in (0, 1], but got {fraction}.")
        if every != "epoch" and (not isinstance(every, int) or every < 1):
            raise ValueError(f'every must be "epoch" or a positive number of steps, but got {every!r}.')
        if schedule not in ("constant", "cosine") or (schedule == "cosine" and stop_after is None):
            raise ValueError(f'schedule must be "constant", or "cosine" with stop_after; got {schedule!r}.')
        if stop_after is not None and stop_after < 1:
            raise ValueError(f"stop_after must be at least 1, but got {stop_after}.")
        self.fraction = fraction
        self.every = every
        self.stop_after = stop_after
        self.schedule = schedule
        self._last_batch = -1

    def on_train_begin(self, logs=None):
        if not self._heads():
            raise ValueError("SparseEvolution needs a model with a sparse head: UniformSparseHead.")
        self._step = int(self.model.optimizer.iterations.numpy())  # not 0 where training resumes

    def on_epoch_begin(self, epoch, logs=None):
        self._last_batch = -1
        self._logs = {"moved_connections": 0, "dropped_magnitude": 0.0, "rewire_seconds": 0.0}

    def on_train_batch_end(self, batch, logs=None):
        before = self._step
        self._step += batch - self._last_batch  # more than 1 with steps_per_execution
        self._last_batch = batch
        if self.every != "epoch" and self._step // self.every > before // self.every:
            self._rewire(self._step)

    def on_epoch_end(self, epoch, logs=None):
        if self.every == "epoch":
            self._rewire(epoch + 1)
        if logs is not None:
            logs.update(self._logs)

    def _heads(self):
        layers = [getattr(self.model, "head", None), *self.model.layers]
        return list({id(layer): layer for layer in layers if hasattr(layer, "rewire")}.values())

    def _rewire(self, now):
        if self.stop_after is not None and now > self.stop_after:
            return
        fraction = self.fraction
        if self.schedule == "cosine":
            fraction *= (1 + math.cos(math.pi * now / self.stop_after)) / 2
        start = time.perf_counter()
        for head in self._heads():
            moved = head.rewire(fraction, self.model.optimizer)
            self._logs["moved_connections"] += moved["moved"]
            self._logs["dropped_magnitude"] = moved["dropped_magnitude"]
        self._logs["rewire_seconds"] += time.perf_counter() - start
