"""Perplexity: the number of equally likely words that a language model chooses between."""

from collections.abc import Sequence
from typing import overload

import numpy as np

# For memorized data the loss is the difference of two equal float32 numbers, and may round to below 0.
_MOST_ROUNDING = 1e-3


@overload
def perplexity(loss: float) -> float: ...
@overload
def perplexity(loss: Sequence[float] | np.ndarray) -> np.ndarray: ...
def perplexity(loss):
    """Returns the perplexity for an exact mean softmax loss: ``exp(loss)``.

    It is not a metric for ``compile``, which passes ranked ids to metrics. A callback that monitors
    ``val_loss`` monitors the perplexity, too.

    Args:
        loss: mean of ``tfxc.losses.SoftmaxCrossentropy`` over all classes, as of ``evaluate`` or
            ``history.history["val_loss"]`` with any sampler: a number, array or list, at least 0. Slightly
            lower numbers count as rounded zeros.

    Raises:
        ValueError: for a loss below -0.001.

    Example:
        >>> perplexity(0.0)
        1.0
        >>> perplexity([np.log(2), np.log(100)]).round(6).tolist()
        [2.0, 100.0]
    """
    loss = np.asarray(loss, np.float64)
    if (loss < -_MOST_ROUNDING).any():
        raise ValueError(f"A softmax loss must be at least 0, but got {loss}.")
    value = np.exp(np.maximum(loss, 0))
    return float(value) if value.ndim == 0 else value
