import numpy as np
import pytest
from long_cases import long_after
from scipy import stats

from tfxc.ops import library

# Both sides of every vector and tile of the kernels: 4 to 16 numbers, and 16, 32 or 64.
EVERY_SIZE = pytest.mark.parametrize(
    "size", long_after(8, 1, 7, 8, 15, 16, 17, 33, 65, 3, 4, 5, 9, 31, 32, 63, 64)
)


without_kernel = library.stock_ops()  # decorates a function


def both_ways(*functions):
    """What a test of an op is parametrized with: its functions by the kernel, and the same without it."""
    return [
        pytest.param(*functions, marks=pytest.mark.kernels, id="compiled"),
        pytest.param(*map(without_kernel, functions), id="stock"),
    ]


def check_independent(ids, probs):
    """Ids [N, S] of four classes: neighbouring draws of a query, and of neighbouring queries."""
    for first, second in [(ids[:, :-1], ids[:, 1:]), (ids[:-1], ids[1:])]:
        observed = np.bincount((4 * first + second).ravel(), minlength=16)
        assert stats.chisquare(observed, np.outer(probs, probs).ravel() * observed.sum()).pvalue > 1e-3


def reduced_by_hand(logits, reduction):
    """The reduction [N] and its gradient to the logits [N, L]."""
    if reduction == "squared_hinge":
        beyond = np.maximum(0, 1 + logits)
        return (beyond**2).sum(1), 2 * beyond
    if reduction == "softplus":
        return np.logaddexp(0, logits).sum(1), np.exp(-np.logaddexp(0, -logits))
    value = np.logaddexp.reduce(logits, axis=1)
    return value, np.exp(logits - value[:, np.newaxis])
