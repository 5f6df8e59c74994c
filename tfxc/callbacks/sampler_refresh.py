"""When a sampler's index is rebuilt from the head."""

import math
import time
import warnings
from typing import Literal

from tfxc._keras.weights import tf_variable
from tfxc.arguments import real_number
from tfxc.layers.class_cache import cache_of
from tfxc.step_clock import EPOCH, StepCallback, StepClock

AUTO = "auto"
_FIRST_STEPS = 100


class SamplerRefresh(StepCallback):
    """Rebuilds the sampler's index from the class vectors: every epoch, every n steps, or ever more rarely.

    A head that computes its class vectors (``tfxc.layers.EncodedHead``) brings its cache up to date first;
    also for a sampler without an index that reads it (``DNS``).

    ``ExtremeClassifier.fit`` adds ``SamplerRefresh("auto")``, with parameter servers
    ``SamplerRefresh("epoch")``, where none is among the callbacks and the sampler has an index, or the model
    a sampler and a head with a cache. With a model without a sampler it does nothing, and warns.

    Steps are the optimizer's, so a resumed training goes on counting; with another model, or a new optimizer,
    all begins anew. A sampler that takes the place of another between two calls of ``fit`` is refreshed
    before its first step. Shown in the logs of the epoch: ``sampler/refresh_seconds``, spent in it; and, once
    there was a refresh, ``sampler/index_age``, the steps since, of a sampler with an index; and the same of a
    head that caches class vectors, ``head/cache_age``.

    Args:
        every: "epoch" (at the start of each); or a number of training steps, and where an epoch has fewer,
            until the first of them is reached also at the end of each epoch in which the number of steps
            passed a power of two; or "auto": when training starts, after 100, 300, 700, ... steps, and at the
            start of each epoch that is 100 or more steps after the last.
        growth: factor, at least 1, by which the number of steps grows after each refresh; class vectors
            move less and less. Only with a number of steps.

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
        # By steps, not by epochs, so that many calls of fit are as one. More bits: a power of two was passed.
        doubled = now.bit_length() > self._epoch_start.bit_length()
        if self.every not in (EPOCH, AUTO) and now < self.every and doubled:
            self._refresh()
        if logs is not None:
            logs["sampler/refresh_seconds"] = self._seconds
            if self._last_step is not None and self.model.sampler.needs_refresh:
                logs["sampler/index_age"] = now - self._last_step
            cache = cache_of(self.model.head)
            if cache is not None:
                logs["head/cache_age"] = cache.age

    def _is_late(self):
        """Whether a training goes on with another sampler, or with one that has not drawn yet."""
        sampler = self.model.sampler
        if not self._clock.now or not sampler.built:
            return False
        return self._is_exchanged or not int(tf_variable(sampler.counter).numpy())

    def _is_old(self):
        return self._last_step is None or self._clock.now - self._last_step >= _FIRST_STEPS

    def _refresh(self):
        if not self.model.sampler.built:
            return  # fitted to a generator, an encoder is built by its first batch: no class vectors yet
        start = time.perf_counter()
        sampler, head = self.model.sampler, self.model.head
        if sampler.needs_refresh or sampler.reads_scores:
            head.freshen()
        if sampler.needs_refresh:
            sampler.refresh(head)
        self._last_step = self._clock.now
        self._seconds += time.perf_counter() - start


def with_refresh(callbacks, sampler, head, every=AUTO):
    """The callbacks of a training, with a ``SamplerRefresh`` in front if sampler or head need one.

    Args:
        callbacks: a list of them.
        sampler: the model's, or None.
        head: the model's.
        every: as of ``SamplerRefresh``.
    """
    if sampler is None or not (sampler.needs_refresh or cache_of(head) is not None):
        return callbacks
    if any(isinstance(callback, SamplerRefresh) for callback in callbacks):
        return callbacks
    return [SamplerRefresh(every), *callbacks]  # in front, so that the others' logs have what it says


def warn_without_refresh(sampler):
    """Says once, before a sampler's first draw, that without callbacks nothing refreshes its index."""
    if not getattr(sampler, "needs_refresh", False):  # what is no sampler is refused later
        return
    if not sampler.built or not int(tf_variable(sampler.counter).numpy()):
        warnings.warn(
            "train_on_batch refreshes no sampler, as fit does: call model.sampler.refresh(model.head) "
            f"yourself, before the first step and every few hundred, or {type(sampler).__name__} keeps "
            "drawing by an index that is old or was never made.",
            stacklevel=3,
        )
