"""When a sampler's index is rebuilt from the head."""

import math
import time
import warnings
from typing import Literal

from tfxc._keras.weights import tf_variable
from tfxc.arguments import real_number
from tfxc.layers.class_cache import cache_of
from tfxc.samplers import DNS, Sampler
from tfxc.samplers.has_index import has_index
from tfxc.step_clock import EPOCH, StepCallback, StepClock

AUTO = "auto"
_FIRST_STEPS = 100


class SamplerRefresh(StepCallback):
    """Rebuilds the sampler's index from the class vectors: every epoch, every n steps, or ever more rarely.

    If the head caches class vectors (``tfxc.layers.EncodedHead``), it brings them up to date first, also for
    ``DNS``, which scores its draws by them.

    ``ExtremeClassifier.fit`` adds ``SamplerRefresh("auto")``, in a cluster
    ``SamplerRefresh("epoch")``, if none is among the callbacks and the sampler has an index or the head a
    cache. With a model without a sampler the callback warns and does nothing.

    Steps are the optimizer's, so a resumed training goes on counting. With another model or a new optimizer
    all begins anew. If a sampler takes the place of another between two calls of ``fit``, the callback
    refreshes it before its first step. The logs of an epoch get ``sampler/refresh_seconds``, the time that it
    took; ``sampler/index_age``, the steps since the last refresh of a sampler with an index; and
    ``head/cache_age``, the steps since a head computed the class vectors that it caches.

    Args:
        every: "epoch" (at the start of each); or "auto": when training starts, after 100, 300, 700, ...
            steps, and at the start of an epoch if 100 or more steps passed since the last refresh; or a
            number of training steps. Until this number is reached, the end of an epoch refreshes too if the
            number of steps passed a power of two in it.
        growth: factor, at least 1, by which the number of steps grows after each refresh, since class
            vectors move less and less. Only with a number of steps.

    Raises:
        ValueError: for arguments outside their range.

    Example:
        >>> callback = SamplerRefresh()  # model.fit(..., callbacks=[callback])
        >>> callback = SamplerRefresh(every=50, growth=1.5)  # after 50, 125, 238, ... steps

    Reference:
        Chen et al., "Adaptive Sampled Softmax with Inverted Multi-Index", 2025 (every epoch); Daghaghi et
        al., "A Tale of Two Efficient and Informative Negative Sampling Distributions", 2021 (growing).
    """

    def __init__(self, every: int | Literal["epoch", "auto"] = "epoch", growth: float = 1.0) -> None:
        self.growth = real_number(growth, "growth")
        super().__init__(StepClock(_FIRST_STEPS, 2.0) if every == AUTO else StepClock(every, self.growth))
        if not 1 <= self.growth < math.inf or (every in (EPOCH, AUTO) and self.growth != 1):
            raise ValueError(f"growth must be at least 1, and needs a number of steps; got {growth}.")
        self.every = every
        self._optimizer = self._sampler = self._last_step = None
        self._is_exchanged = self._has_warned = False

    def on_train_begin(self, logs=None):
        sampler = getattr(self.model, "sampler", None)
        is_other = self._optimizer is not self.model.optimizer  # each model has its own
        self._is_exchanged = not is_other and self._sampler is not sampler
        if is_other or self._is_exchanged:
            self._optimizer, self._sampler, self._last_step = self.model.optimizer, sampler, None
        self._has_sampler = sampler is not None
        if not self._has_sampler and not self._has_warned:
            self._has_warned = True
            warnings.warn("SamplerRefresh does nothing: the model has no sampler.", stacklevel=2)

    def on_epoch_begin(self, epoch, logs=None):
        self._seconds = 0.0
        self._clock.start(self.model)
        if not self._has_sampler:
            return
        self._epoch_start = self._clock.now
        is_late = self._last_step is None and self._is_late()
        if self._last_step is None and self._clock.last and self.every != AUTO and not is_late:
            self._last_step = self._clock.last  # of the training that is resumed
        if self.every == EPOCH or (self.every == AUTO and self._is_old()) or is_late:
            self._refresh()

    def on_step_due(self, logs=None):
        if self._has_sampler:
            self._refresh()

    def on_epoch_end(self, epoch, logs=None):
        if not self._has_sampler:
            return
        self._clock.stop()
        now = self._clock.now
        # A power of two was passed if the number has more bits. Steps count, so many calls of fit act as one.
        doubled = now.bit_length() > self._epoch_start.bit_length()
        if self.every not in (EPOCH, AUTO) and now < self.every and doubled:
            self._refresh()
        if logs is not None:
            logs["sampler/refresh_seconds"] = self._seconds
            if self._last_step is not None and has_index(self.model.sampler):
                logs["sampler/index_age"] = now - self._last_step
            cache = cache_of(self.model.head)
            if cache is not None:
                logs["head/cache_age"] = cache.age

    def _is_late(self):
        """Whether training goes on with another sampler, or with one that has not drawn yet."""
        sampler = self.model.sampler
        if not self._clock.now or not sampler.built:
            return False
        return self._is_exchanged or not int(tf_variable(sampler.counter).numpy())

    def _is_old(self):
        return self._last_step is None or self._clock.now - self._last_step >= _FIRST_STEPS

    def _refresh(self):
        if not self.model.sampler.built:
            return  # fit of a generator builds the encoder at the first batch: there are no class vectors yet
        start = time.perf_counter()
        sampler, head = self.model.sampler, self.model.head
        if has_index(sampler) or isinstance(sampler, DNS):
            head.prepare_index()
            sampler.refresh(head)
        self._last_step = self._clock.now
        self._seconds += time.perf_counter() - start


def with_refresh(callbacks, sampler, head, every=AUTO):
    """The callbacks of a training, with a ``SamplerRefresh(every)`` in front if sampler or head need one."""
    if sampler is None or not (has_index(sampler) or cache_of(head) is not None):
        return callbacks
    if any(isinstance(callback, SamplerRefresh) for callback in callbacks):
        return callbacks
    return [SamplerRefresh(every), *callbacks]  # in front, so that the other callbacks see what it logs


def warn_without_refresh(sampler):
    """Warns once, before a sampler's first draw, that no callback refreshes its index."""
    if not isinstance(sampler, Sampler) or not has_index(sampler):  # head_loss refuses other objects
        return
    if not sampler.built or not int(tf_variable(sampler.counter).numpy()):
        warnings.warn(
            "train_on_batch does not refresh a sampler as fit does: call model.sampler.refresh(model.head) "
            f"before the first step and every few hundred, or {type(sampler).__name__} keeps drawing by an "
            "index that is old or was never made.",
            stacklevel=3,
        )
