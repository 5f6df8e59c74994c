"""When a sampler's index is rebuilt from the head."""

import time
import warnings
from typing import Literal

from tfxc._keras.weights import tf_variable
from tfxc.arguments import number_in
from tfxc.layers.class_cache import cache_of
from tfxc.samplers import DNS, Sampler
from tfxc.samplers.mixture import has_index
from tfxc.step_clock import EPOCH, StepCallback, StepClock

AUTO = "auto"
_FIRST_STEPS = 100
_FREE_SECONDS = 5.0  # which refreshes may take however short the training
_LARGE = 1 << 28  # numbers in the class vectors of an index that takes many seconds


class SamplerRefresh(StepCallback):
    """Rebuilds the sampler's index from the class vectors: every epoch, every n steps, or ever more rarely.

    If the head caches class vectors (``tfxc.layers.EncodedHead``), it brings them up to date first, also for
    ``DNS``, which scores its draws by them. ``ExtremeClassifier.fit`` adds ``SamplerRefresh("auto")``, in a
    cluster ``SamplerRefresh("epoch")``, if none is among the callbacks and the sampler has an index or the
    head a cache. With a model without a sampler the callback warns and does nothing.

    Steps are the optimizer's, so a resumed training goes on counting. With another model or a new optimizer
    all begins anew. A sampler that takes the place of another between two calls of ``fit`` is refreshed
    before its first step. The logs of an epoch get ``sampler/refresh_seconds``, the time that it took;
    ``sampler/refresh_share``, the share of refreshes in the time of this ``fit`` so far;
    ``sampler/index_age``, the steps since the last refresh of a sampler with an index; and
    ``head/cache_age``, the steps since a head computed the class vectors that it caches.

    Args:
        every: "epoch" (at the start of each); or "auto": when training starts (not for a new optimizer and
            class vectors of 2^28 numbers or more), after 100, 300, 700, ... steps, and at the start of an
            epoch if 100 or more steps passed since the last refresh, as far as ``share`` allows; or a number
            of training steps. Until this number is reached, the end of an epoch refreshes too if the number
            of steps passed a power of two in it.
        growth: factor, at least 1, by which the number of steps grows after each refresh, since class
            vectors move less and less. Only with a number of steps.
        share: of "auto", in (0, 1]: a refresh waits until those of this ``fit`` and one more, of their mean
            length, take at most this share of the time of all else so far, or five seconds in all. So two
            trainings of one seed may differ where refreshes are long. 1 never waits, and goes by steps alone.

    Raises:
        ValueError: for arguments outside their range.

    Example:
        >>> callback = SamplerRefresh()  # model.fit(..., callbacks=[callback])
        >>> callback = SamplerRefresh(every=50, growth=1.5)  # after 50, 125, 238, ... steps

    Reference:
        Chen et al., "Adaptive Sampled Softmax with Inverted Multi-Index", 2025 (every epoch); Daghaghi et
        al., "A Tale of Two Efficient and Informative Negative Sampling Distributions", 2021 (growing).
    """

    def __init__(
        self, every: int | Literal["epoch", "auto"] = "epoch", growth: float = 1.0, share: float = 0.1
    ) -> None:
        self.growth, self.share = number_in(growth, "growth", "[1, inf)"), number_in(share, "share", "(0, 1]")
        super().__init__(StepClock(_FIRST_STEPS, 2.0) if every == AUTO else StepClock(every, self.growth))
        if every in (EPOCH, AUTO) and self.growth != 1:
            raise ValueError(f"growth needs a number of steps, but got every={every!r}, growth={growth}.")
        self.every = every
        self._optimizer = self._sampler = self._last_step = None
        self._is_exchanged = self._has_warned = False

    def on_train_begin(self, logs=None):
        self._spent, self._is_waiting = _Spent(), False
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
        self._spent.in_epoch = 0.0
        self._clock.start(self.model)
        if not self._has_sampler:
            return
        self._epoch_start = self._clock.now
        is_late = self._last_step is None and self._is_late()
        if self._last_step is None and self._clock.last and self.every != AUTO and not is_late:
            self._last_step = self._clock.last  # of the training that is resumed
        if self.every == EPOCH or is_late:
            self._refresh()
        elif self.every == AUTO and not self._is_too_early():
            self._refresh_if_cheap()

    def _on_batch_end(self, batch, logs=None):
        super()._on_batch_end(batch, logs)
        if self._is_waiting:
            self._refresh_if_cheap()

    def on_step_due(self, logs=None):
        if not self._has_sampler:
            return
        if self.every == AUTO:
            self._is_waiting = True
        else:
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
            logs["sampler/refresh_seconds"] = self._spent.in_epoch
            logs["sampler/refresh_share"] = self._spent.seconds / self._spent.elapsed
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

    def _is_too_early(self):
        """Whether a refresh is young, or a long one would come before the first step, of no queries yet."""
        if self._last_step is not None and self._clock.now - self._last_step < _FIRST_STEPS:
            return True
        head = self.model.head
        is_first = self.share < 1 and not self._clock.now
        return is_first and head.built and head.num_classes * head.effective_dim >= _LARGE

    def _refresh_if_cheap(self):
        """Refreshes, or waits while that would take too large a share of the time."""
        self._is_waiting = self.share < 1 and not self._spent.allows_another(self.share)
        if not self._is_waiting:
            self._refresh()

    def _refresh(self):
        if not self.model.sampler.built:
            return  # fit of a generator builds the encoder at the first batch: there are no class vectors yet
        start = time.perf_counter()
        sampler, head = self.model.sampler, self.model.head
        if has_index(sampler) or isinstance(sampler, DNS):
            head.prepare_index()
            sampler.refresh(head)
        self._last_step = self._clock.now
        self._spent.add(time.perf_counter() - start)


class _Spent:
    """The seconds that refreshes took in this ``fit``, which began when this was made. No backup holds it."""

    def __init__(self):
        self._began, self._number = time.perf_counter(), 0
        self.seconds = self.in_epoch = 0.0

    @property
    def elapsed(self):
        return time.perf_counter() - self._began

    def allows_another(self, share):
        """Whether refreshes so far and another of their mean length take but a share of all else's time."""
        with_another = self.seconds + self.seconds / max(self._number, 1)
        return with_another <= max(share * (self.elapsed - self.seconds), _FREE_SECONDS)

    def add(self, seconds):
        self._number += 1
        self.seconds += seconds
        self.in_epoch += seconds


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
            f"before the first step and every few hundred, or {type(sampler).__name__} keeps an old index.",
            stacklevel=3,
        )
