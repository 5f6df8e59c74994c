"""How many words a language model hesitates between."""

from collections.abc import Sequence
from typing import overload

import numpy as np

# Of data known by heart the loss is the difference of two equal float32 numbers, an ulp or so apart.
_MOST_ROUNDING = 1e-3


@overload
def perplexity(loss: float) -> float: ...
@overload
def perplexity(loss: Sequence[float] | np.ndarray) -> np.ndarray: ...
def perplexity(loss):
    """Perplexity of a model whose exact mean softmax loss is given: ``exp(loss)``.

    It is no metric for ``compile``: those get ranked ids, and the softmax over all classes is the loss that
    ``evaluate``, and ``fit`` for its validation data, give in any case, whatever the sampler. The one rises
    where the other does, so a callback that watches ``val_loss`` watches the perplexity.

    Args:
        loss: mean of ``tfxc.losses.SoftmaxCrossentropy`` over all classes, at least 0 but for rounding, which
            counts as 0; a number, or an array or list of them, such as ``history.history["val_loss"]``. (The
            training loss over a sampler's candidates is another figure.)

    Returns:
        A float, or a float64 array, at least 1.

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
        raise ValueError(f"The softmax loss is at least 0, but this is {loss}.")
    value = np.exp(np.maximum(loss, 0))
    return float(value) if value.ndim == 0 else value
