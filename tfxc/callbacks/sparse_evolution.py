"""The callback that moves the connections of sparse heads."""

import math
import time
import warnings
from typing import Literal

from tfxc._keras.layers import layers_of
from tfxc._keras.optimizers import steps_variable, variable_index
from tfxc.arguments import number_in, positive_int
from tfxc.optimizers.slots import slots_of
from tfxc.step_clock import EPOCH, StepCallback, StepClock


class SparseEvolution(StepCallback):
    """Moves the weakest connections of sparse heads while they train (sparse evolutionary training).

    The logs of the epoch show ``rewire/moved``, ``rewire/dropped_magnitude`` (mean |weight| of the dropped
    connections) and ``rewire/seconds``.

    Args:
        fraction: share of each class's connections that moves, in (0, 1]; at least one of them.
        every: "epoch" (at the beginning of each epoch but the first, so that new connections train before the
            model is validated or saved), or a number of training steps.
        stop_after: None, or the last epoch (with every="epoch") or step at which connections move, since new
            ones need time to train. Steps are the optimizer's: a resumed training goes on counting.
        schedule: "constant", or "cosine": the fraction falls to 0 at ``stop_after``.

    Raises:
        ValueError: for arguments outside their range, a model without a sparse head, or a head that the
            optimizer of ``compile`` does not train.
        TypeError: for an optimizer whose slots are not known.

    Example:
        >>> callback = SparseEvolution(0.1, every=1000)  # model.fit(..., callbacks=[callback])

    Reference:
        Mocanu et al., "Scalable Training of Artificial Neural Networks with Adaptive Sparse Connectivity
        Inspired by Network Science", 2018; Evci et al., "Rigging the Lottery: Making All Tickets Winners",
        2020 (the cosine).
    """

    def __init__(
        self,
        fraction: float = 0.1,
        every: int | Literal["epoch"] = 1000,
        stop_after: int | None = None,
        schedule: Literal["constant", "cosine"] = "constant",
    ) -> None:
        super().__init__(StepClock(every))
        self.fraction = number_in(fraction, "fraction", "(0, 1]")
        if schedule not in ("constant", "cosine") or (schedule == "cosine" and stop_after is None):
            raise ValueError(f'schedule must be "constant", or "cosine" with stop_after; got {schedule!r}.')
        self.every = every
        self.stop_after = None if stop_after is None else positive_int(stop_after, "stop_after")
        self.schedule = schedule

    def on_train_begin(self, logs=None):
        self._has_begun = False
        heads = self._heads()
        if not heads:
            raise ValueError("SparseEvolution needs a model with a sparse head: UniformSparseHead.")
        if self.every == EPOCH and self.params.get("epochs") == 1:
            warnings.warn(
                'SparseEvolution(every="epoch") moves no connection in a fit of one epoch: it does so at the '
                "beginning of each but the first. Train for more epochs, or take steps, as every=1000.",
                stacklevel=2,
            )
        for head in heads:
            self._check(head)

    def _check(self, head):
        """Raises or warns, before training begins, if connections could not move."""
        for weight in head.trainable_variables:
            slots_of(self.model.optimizer, weight)  # raises where they are not known
        why = "" if head.trainable else "which is frozen"
        if head.built and getattr(head, "fan_in", 0) == getattr(head, "num_inputs", None):
            why = f"each class of which reads all of the {head.num_inputs} inputs already"
        if why:
            warnings.warn(f"SparseEvolution moves no connection of {head.name!r}, {why}.", stacklevel=2)

    def _require_trained(self, head):
        optimizer = self.model.optimizer
        is_known = all(variable_index(optimizer, weight) is not None for weight in head.trainable_variables)
        if not is_known or not int(steps_variable(optimizer).numpy()):
            raise ValueError(
                f"The optimizer given to compile does not train {head.name!r}, and would not forget the "
                "momentum of connections that move: train the head by it, as in a MultiOptimizer."
            )

    def on_epoch_begin(self, epoch, logs=None):
        self._clock.start(self.model)
        self._logs = {"rewire/moved": 0, "rewire/dropped_magnitude": 0.0, "rewire/seconds": 0.0}
        # At the end of the epoch before, a model would be saved that differs from the one validated.
        if self.every == EPOCH and epoch > 0:
            self._rewire(epoch)
        self._has_begun = True

    def on_step_due(self, logs=None):
        self._rewire(self._clock.now)

    def on_epoch_end(self, epoch, logs=None):
        self._clock.stop()
        if logs is not None:
            logs.update(self._logs)

    def _heads(self):
        return [layer for layer in layers_of(self.model) if hasattr(layer, "rewire")]

    def _rewire(self, now):
        if self.stop_after is not None and now > self.stop_after:
            return
        fraction = self.fraction
        if self.schedule == "cosine":
            fraction *= (1 + math.cos(math.pi * now / self.stop_after)) / 2
        start = time.perf_counter()
        # A frozen head would lose connections and never train others.
        for head in [head for head in self._heads() if head.trainable]:
            if self._has_begun:  # before the first step, a resumed training may have a new optimizer
                self._require_trained(head)
            moved = head.rewire(fraction, self.model.optimizer)
            self._logs["rewire/moved"] += moved["moved"]
            share = moved["moved"] / max(self._logs["rewire/moved"], 1)
            mean = self._logs["rewire/dropped_magnitude"]
            self._logs["rewire/dropped_magnitude"] += share * (moved["dropped_magnitude"] - mean)
        self._logs["rewire/seconds"] += time.perf_counter() - start
