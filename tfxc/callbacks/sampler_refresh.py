"""When a sampler's index is rebuilt from the head."""

import time

from tfxc._keras import keras


class SamplerRefresh(keras.callbacks.Callback):
    """Rebuilds the sampler's index from the class vectors: every epoch, every n steps, or ever more rarely.

    The seconds spent are shown in the logs of the epoch as ``refresh_seconds``.

    Args:
        every: "epoch" (at the start of each), or a number of training steps.
        growth: factor, at least 1, by which the number of steps grows after each refresh; class vectors
            move less and less. Only with a number of steps.

    Raises:
        ValueError: for arguments outside their range, or a model without a sampler.

    Example:
        >>> callback = SamplerRefresh()  # model.fit(..., callbacks=[callback])
        >>> callback = SamplerRefresh(every=50, growth=1.5)  # after 50, 125, 238, ... steps

    Reference:
        Chen et al., "Adaptive Sampled Softmax with Inverted Multi-Index", 2025 (every epoch); Daghaghi et
        al., "A Tale of Two Efficient and Informative Negative Sampling Distributions", 2021 (growing).
    """

    def __init__(self, every="epoch", growth=1.0):
        super().__init__()
        per_epoch = every == "epoch"
        if not per_epoch and (not isinstance(every, int) or every < 1):
            raise ValueError(f'every must be "epoch" or a positive number of steps, but got {every!r}.')
        if growth < 1 or (per_epoch and growth != 1):
            raise ValueError(f"growth must be at least 1, and needs a number of steps; got {growth}.")
        self.every = every
        self.growth = growth
        self._interval = None if per_epoch else float(every)
        self._step, self._last_batch = 0, -1
        self._next = self._interval
        self._seconds = 0.0

    def on_train_begin(self, logs=None):
        if getattr(self.model, "sampler", None) is None:
            raise ValueError(
                "SamplerRefresh needs a model with a sampler: ExtremeClassifier(..., sampler=...)."
            )

    def on_epoch_begin(self, epoch, logs=None):
        self._seconds = 0.0
        self._last_batch = -1
        if self.every == "epoch":
            self._refresh()

    def on_train_batch_end(self, batch, logs=None):
        if self.every == "epoch":
            return
        self._step += batch - self._last_batch  # more than 1 with steps_per_execution
        self._last_batch = batch
        if self._step >= self._next:
            self._refresh()
            self._interval *= self.growth
            self._next += self._interval

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            logs["refresh_seconds"] = self._seconds

    def _refresh(self):
        if not self.model.sampler.built:
            return  # fitted to a generator, an encoder is built by its first batch: no class vectors yet
        start = time.perf_counter()
        self.model.sampler.refresh(self.model.head)
        self.model.sampler.refreshed_at = int(self.model.optimizer.iterations.numpy())
        self._seconds += time.perf_counter() - start
