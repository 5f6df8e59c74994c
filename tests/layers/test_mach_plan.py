import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from tfxc.hashing.universal import UniversalHash, universal_coefficients
from tfxc.layers import suggest_mach
from tfxc.layers.mach_plan import collision_bound


@pytest.mark.parametrize("memory", [2e6, 1e7, 1e8, 1e9])
@pytest.mark.parametrize("collision", [0.1, 1e-6])
def test_the_plan_keeps_the_budget_and_the_bound_with_fewest_repetitions(memory, collision):
    plan = suggest_mach(1_000_000, 64, memory, collision)
    assert plan.memory == 4 * 65 * plan.num_buckets * plan.num_repetitions <= memory
    assert plan.memory > 0.99 * memory or plan.num_buckets == 1_000_000
    assert plan.collision == pytest.approx(1e6 * 999_999 / 2 / plan.num_buckets**plan.num_repetitions)
    # The theorem's condition; and one repetition less would break it.
    needed = math.log(1e6 * 999_999 / 2 / collision)
    assert plan.num_repetitions >= needed / math.log(plan.num_buckets)
    if plan.num_repetitions > 1:
        fewer = plan.num_repetitions - 1
        assert fewer < needed / math.log(min(memory // 260 // fewer, 1e6))


def test_more_repetitions_on_demand_and_one_class():
    plan = suggest_mach(100_000, 32, 1e7, num_repetitions=16)
    assert plan.num_repetitions == 16 and plan.num_buckets == 1e7 // (33 * 4) // 16
    assert suggest_mach(1, 4, 1000) == (2, 1, 40, 0.0)


@pytest.mark.parametrize("num_classes", [2, 3, 10, 100_000])
@pytest.mark.parametrize("collision", [0.5, 1e-3, 1e-6])
@pytest.mark.parametrize("num_repetitions", [1, 5, 50])
def test_a_budget_too_small_names_the_smallest_that_is_not(num_classes, collision, num_repetitions):
    options = {"collision": collision, "num_repetitions": num_repetitions}
    with pytest.raises(ValueError, match=r"1 bytes are too few.*takes [\d,]+\.") as error:
        suggest_mach(num_classes, 64, 1, **options)
    named = int(str(error.value).split("takes ")[1].split(". ")[0].replace(",", ""))
    assert suggest_mach(num_classes, 64, named, **options).memory == named
    with pytest.raises(ValueError, match="too few"):
        suggest_mach(num_classes, 64, named - 1, **options)


@pytest.mark.parametrize(
    ("names", "wanted", "values"),
    [
        (("num_classes", "dim", "num_repetitions"), "an integer of at least 1", (0, 2.5)),
        (("memory",), r"in \(0, inf\)", (0, float("inf"), float("-inf"), float("nan"))),
        (("collision",), r"in \(0, 1\)", (0, 1)),
    ],
)
def test_arguments_are_checked(names, wanted, values):
    for name, value in itertools.product(names, values):
        with pytest.raises(ValueError, match=f"{name} must be {wanted}, but got {value}"):
            suggest_mach(**{"num_classes": 10, "dim": 4, "memory": 1e6, name: value})


@pytest.mark.parametrize(("num_buckets", "num_repetitions"), [(20, 2), (12, 3), (8, 4)])
def test_classes_are_told_apart_as_often_as_predicted(num_buckets, num_repetitions):
    num_classes, num_draws = 60, 600
    coefficients = universal_coefficients(num_classes, range(num_draws * num_repetitions), seed=0)
    family = UniversalHash(tf.constant(coefficients), num_classes, num_buckets)
    buckets = family.buckets(tf.range(num_classes)).numpy().reshape(num_draws, num_repetitions, num_classes)
    shared = (buckets[:, :, :, np.newaxis] == buckets[:, :, np.newaxis]).all(1)
    pairs = shared[(slice(None), *np.triu_indices(num_classes, 1))].sum(1)
    expected = num_classes * (num_classes - 1) / 2 * family.collision_probability**num_repetitions
    error = pairs.std(ddof=1) / num_draws**0.5
    assert abs(pairs.mean() - expected) < 3 * error
    bound = collision_bound(num_classes, num_buckets, num_repetitions)
    share = (pairs > 0).mean()
    assert share <= bound + 3 * (bound * (1 - bound) / num_draws) ** 0.5
