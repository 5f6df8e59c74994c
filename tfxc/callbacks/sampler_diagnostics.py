"""Measures a sampler's proposal against the softmax while a model trains."""

from typing import Literal

import tensorflow as tf

from tfxc.samplers import proposal_quality
from tfxc.samplers.mixture import has_index
from tfxc.samplers.sampler import knows_counts
from tfxc.step_clock import StepCallback, StepClock


class SamplerDiagnostics(StepCallback):
    """Measures on a probe batch how near the sampler's proposal is to the softmax over all classes.

    The logs get means over the probe's queries, which the progress bar shows, and TensorBoard if
    ``keras.callbacks.TensorBoard`` comes later in the list:

    * ``sampler/kl``: ``KL(softmax || Q)`` in nats. It grows with the age of the index. If it hardly falls at
      a refresh, take a finer index (``MIDX`` with more codewords).
    * ``sampler/effective_sample_size``: in (0, S], the number of draws from the softmax itself that would
      estimate as well.
    * ``sampler/accidental_hits``: the share of candidates expected to be positives of their own example.

    A measurement scores all classes for the probe, in blocks. It draws nothing, so training goes on as it
    would without it. The candidates of ``InBatch`` are the labels of the probe: take a probe as large as a
    training batch.

    Args:
        x: inputs of the probe batch, as the model takes them.
        y: its labels.
        every: "epoch" (at the end of each), or also after every so many training steps.

    Raises:
        ValueError: for another ``every``; for a model that is not an ``ExtremeClassifier`` or has no sampler;
            for a sampler of an unknown distribution (``DNS``).
        tf.errors.InvalidArgumentError: when it measures, if a query of the probe has no candidates, as with
            ``InBatch`` and a single example.

    Example:
        >>> x, y = tf.random.normal([64, 8]), tf.range(64)
        >>> callback = SamplerDiagnostics(x, y)  # model.fit(..., callbacks=[SamplerRefresh(), callback])
        >>> callback = SamplerDiagnostics(x, y, every=500)

    Reference:
        Kong, "A Note on Importance Sampling using Standardized Weights", 1992 (effective sample size);
        Chen et al., "Adaptive Sampled Softmax with Inverted Multi-Index", 2025 (the divergence).
    """

    def __init__(self, x, y, every: int | Literal["epoch"] = "epoch") -> None:
        super().__init__(StepClock(every))
        # Ragged and sparse tensors stay such.
        self.x, self.y = tf.nest.map_structure(
            lambda part: part if tf.is_tensor(part) else tf.convert_to_tensor(part), (x, y)
        )
        if any(0 in part.shape[:1] for part in tf.nest.flatten((self.x, self.y))):
            raise ValueError("SamplerDiagnostics measures on examples, but got none: pass at least one.")
        self.every = every

    def on_train_begin(self, logs=None):
        sampler = getattr(self.model, "sampler", None)
        if sampler is None or not hasattr(self.model, "examples"):
            found = f"{type(self.model).__name__} {'without' if sampler is None else 'with'} a sampler"
            raise ValueError(
                f"SamplerDiagnostics needs an ExtremeClassifier(..., sampler=...), but got {found}: in a "
                "model of your own, call tfxc.samplers.proposal_quality."
            )
        if not knows_counts(sampler):
            raise ValueError(
                f"Leave SamplerDiagnostics out: nobody knows the expected counts of {type(sampler).__name__}."
            )

        def quality():
            model = self.model
            of_probe = proposal_quality(model.sampler, model.head, *model.examples(self.x, self.y))
            return [tf.reduce_mean(values) for values in of_probe]

        self._measure = tf.function(quality, autograph=False)

    def on_epoch_begin(self, epoch, logs=None):
        self._clock.start(self.model)

    def on_epoch_end(self, epoch, logs=None):
        self._clock.stop()
        self.on_step_due(logs)

    def on_step_due(self, logs=None):
        if logs is None:
            return
        # SamplerRefresh freshens cached class vectors together with an index, so that both are of one age.
        if not has_index(self.model.sampler):
            self.model.head.freshen()
        names = "sampler/kl", "sampler/effective_sample_size", "sampler/accidental_hits"
        logs.update(zip(names, map(float, self._measure()), strict=True))
