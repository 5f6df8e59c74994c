"""Size of a MACH head: buckets and repetitions for a memory budget."""

import math
from typing import NamedTuple

from tfxc.arguments import number_in, positive_int


class MACHPlan(NamedTuple):
    """A size for a ``MACHHead``.

    Attributes:
        num_buckets: M.
        num_repetitions: R.
        memory: bytes of the head's weights, ``4 · R · M · (D + 1)``; Adam needs twice as much besides.
        collision: bound on the probability that two classes share all R buckets.

    Example:
        >>> plan = suggest_mach(1_000_000, dim=64, memory=10_000_000)
        >>> round(plan.memory / 1e6, 1), plan.collision < 1e-3
        (10.0, True)
    """

    num_buckets: int
    num_repetitions: int
    memory: int
    collision: float


def suggest_mach(
    num_classes: int, dim: int, memory: float, collision: float = 1e-3, num_repetitions: int = 1
) -> MACHPlan:
    """The widest buckets for a memory budget that most probably keep all classes apart.

    Two classes that share the buckets of all R repetitions cannot be told apart. Over the draw of the hash
    functions, the probability that this happens to any of the ``L (L − 1) / 2`` pairs is at most
    ``L² / 2 · M^−R``, so ``R ≥ log(L² / (2 δ)) / log M`` repetitions make it at most δ. The budget fixes
    ``R · M``; the plan takes the fewest repetitions of the widest buckets.

    Args:
        num_classes: L.
        dim: D, the width of the query.
        memory: bytes for the head's weights.
        collision: δ, in (0, 1).
        num_repetitions: the smallest R that comes into question.

    Raises:
        ValueError: for arguments outside their range, or a budget too small: it names one that suffices.

    Example:
        >>> plan = suggest_mach(1_000_000, dim=64, memory=10_000_000)
        >>> plan.num_repetitions, plan.num_buckets, plan.collision < 1e-3
        (4, 9615, True)

    Reference:
        Medini et al., "Extreme Classification in Log Memory using Count-Min Sketch", 2019 (theorem 2).
    """
    num_classes, dim = positive_int(num_classes, "num_classes"), positive_int(dim, "dim")
    num_repetitions = positive_int(num_repetitions, "num_repetitions")
    memory, collision = number_in(memory, "memory", "(0, inf)"), number_in(collision, "collision", "(0, 1)")
    bytes_a_bucket = 4 * (dim + 1)
    num_cells = int(memory) // bytes_a_bucket  # R · M
    for repetitions in range(num_repetitions, num_cells // 2 + 1):
        # With as many buckets as classes a repetition is as large as a dense head.
        buckets = min(num_cells // repetitions, max(num_classes, 2))
        bound = collision_bound(num_classes, buckets, repetitions)
        if bound <= collision:
            return MACHPlan(buckets, repetitions, repetitions * buckets * bytes_a_bucket, bound)
    least = _least_cells(num_classes, collision, num_repetitions) * bytes_a_bucket
    raise ValueError(
        f"{memory:,.0f} bytes are too few to keep {num_classes:,} classes apart with probability "
        f"{1 - collision:g}: that takes {least:,}. Raise memory or collision, or make the query narrower."
    )


def collision_bound(num_classes, num_buckets, num_repetitions):
    """Bound on the probability that two of L classes share the buckets of all R repetitions."""
    if num_classes == 1:
        return 0.0
    log_pairs = math.log(num_classes) + math.log(num_classes - 1) - math.log(2)
    return math.exp(min(log_pairs - num_repetitions * math.log(num_buckets), 0.0))


def _least_cells(num_classes, collision, num_repetitions):
    """The smallest R · M that keeps the bound with at least ``num_repetitions`` repetitions."""
    cells = []
    # M above 5 need not be tried: twice the repetitions of √M buckets, rounded up, take no more cells.
    for buckets in range(2, min(max(num_classes, 2), 5) + 1):
        repetitions = num_repetitions
        while collision_bound(num_classes, buckets, repetitions) > collision:
            repetitions += 1
        cells.append(repetitions * buckets)
    return min(cells)
