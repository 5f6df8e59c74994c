import numpy as np
import pytest
from long_cases import long_after
from sampler_checks import all_probs, built, check_distribution, queries, sample

from tfxc.samplers import Unigram
from tfxc.samplers.alias import alias_table


def zipf_counts(num_classes, seed=0):
    return np.random.default_rng(seed).permutation(1e6 / np.arange(1, num_classes + 1))


def table_probs(threshold, alias):
    probs = threshold.copy()
    np.add.at(probs, alias, 1 - threshold)
    return probs / len(probs)


@pytest.mark.parametrize(
    "weights",
    [
        [1.0],
        [1.0, 3.0],
        [2.0] * 7,
        [5.0, 1.0, 1.0, 1.0],
        [1.0, 1.0, 1.0, 5.0],
        [1e-12, 1.0, 1e12],
        zipf_counts(20_000),
        zipf_counts(1000) ** -1,
        np.random.default_rng(3).exponential(size=997),
    ],
)
def test_alias_table_holds_the_distribution(weights):
    threshold, alias = alias_table(weights)
    weights = np.asarray(weights, np.float64)
    assert ((threshold >= 0) & (threshold <= 1)).all() and ((alias >= 0) & (alias < len(weights))).all()
    np.testing.assert_allclose(table_probs(threshold, alias), weights / weights.sum(), rtol=1e-6, atol=1e-15)


@pytest.mark.parametrize("power", [0, 1, 5, 20])
def test_alias_tables_of_several_distributions_side_by_side(power):
    random = np.random.default_rng(power)
    for sizes in random.integers(0, 9, (100, 12)), random.integers(0, 400, (20, 12)), np.full((1, 40), 5000):
        for own in sizes:
            offsets, group = np.concatenate([[0], np.cumsum(own)]), np.repeat(np.arange(len(own)), own)
            weights = random.exponential(size=len(group)) ** power * (random.random(len(group)) < 0.7)
            threshold, alias = alias_table(weights, offsets)
            assert ((threshold >= 0) & (threshold <= 1)).all() and (group[alias] == group).all()
            total = np.bincount(group, weights, len(own))[group]
            probs = table_probs(threshold, alias) * len(group) / own[group]
            found, want = probs[total > 0], weights[total > 0] / total[total > 0]
            np.testing.assert_allclose(found, want, rtol=1e-7)
            assert not found[want == 0].any()


@pytest.mark.parametrize(
    ("num_classes", "power"),
    long_after(4, (1, 1.0), (50, 1.0), (20_000, 1.0), (1000, 0.75), (2, 1.0), (1000, 1.0)),
)
def test_distribution(num_classes, power):
    counts = zipf_counts(num_classes)
    sampler = built(Unigram(10, counts=counts, smoothing=0, power=power, seed=3), num_classes, 4)
    check_distribution(sampler, 4, num_draws=1_000_000)
    want = counts**power / (counts**power).sum()
    np.testing.assert_allclose(all_probs(sampler, queries(1, 4))[0], want, rtol=1e-5)


@pytest.mark.parametrize("power", [float("nan"), float("inf")])
def test_a_power_that_is_not_finite_is_refused(power):
    with pytest.raises(ValueError, match=r"power must be in \(-inf, inf\)"):
        Unigram(4, counts=[1, 2], power=power)


def test_shared_draws_and_power_zero():
    sampler = built(Unigram(50_000, counts=zipf_counts(50), power=0.0, shared=True, seed=3), 50, 4)
    check_distribution(sampler, 4, num_draws=400_000)
    np.testing.assert_allclose(all_probs(sampler, queries(1, 4)), 1 / 50, rtol=1e-5)


def test_extreme_counts_do_not_overflow():
    sampler = built(Unigram(4, counts=[1e-300, 1e300], smoothing=0, seed=0), 2, 1)
    np.testing.assert_allclose(all_probs(sampler, queries(1, 1)), [[0, 1]], atol=1e-30)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([1.0, 0.0, 2.0, 0.0], r"2 of 4 counts are wrong; the first is class 1 with 0\.0"),
        ([1.0, -3.0], "class 1 with -3.0"),
        ([np.nan, 1.0], "class 0 with nan"),
        ([np.inf, 1.0], "class 0 with inf"),
        ([], r"shape \[L\].*\(0,\)"),
        ([[1.0, 2.0]], r"shape \[L\].*\(1, 2\)"),
    ],
)
def test_counts_are_checked(counts, message):
    with pytest.raises(ValueError, match=message):
        Unigram(2, counts=counts, smoothing=0)


def test_counts_stay_out_of_the_config():
    assert Unigram(2, counts=np.ones(1000)).get_config()["counts"] == "saved"


def test_counting_while_training():
    sampler = built(Unigram(50_000, counts=None, smoothing=0.5, shared=True, seed=3), 4, 2)
    np.testing.assert_allclose(all_probs(sampler, queries(1, 2)), 1 / 4, rtol=1e-6)
    for labels in ([[0, 1], [0, -1]], [[0, 3], [-1, -1]]):
        sample(sampler, queries(2, 2), labels)
    sampler.refresh(None)
    want = np.array([[3.5, 1.5, 0.5, 1.5]]) / 7
    np.testing.assert_allclose(all_probs(sampler, queries(1, 2)), want, rtol=1e-6)
    check_distribution(sampler, 2)
