import json

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from tfxc.metrics import PSNDCGAtK, PSPAtK, propensities

PROPENSITIES = np.array([0.5, 0.25, 0.1, 1.0, 0.2, 0.8])


def test_the_model_of_propensities():
    got = propensities([0, 7, 1000], num_points=5000, a=0.6, b=2.6)
    scale = (np.log(5000) - 1) * 3.6**0.6
    want = [1 / (1 + scale * (n + 2.6) ** -0.6) for n in (0, 7, 1000)]
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert (np.diff(got) > 0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, -1], 10), r"label_counts must hold a number in \[0, inf\) .*, but are \[ 1\. -1\.\]"),
        (([1, float("nan")], 10), r"label_counts .*, but are \[ 1\. nan\] .*, outside at class 1: pass"),
        (([[1]], 10), r"label_counts must hold .*, \[L\], .* of shape \(1, 1\): pass points.label_counts"),
        *((([1, 2], bad), rf"num_points must be in \[3, inf\), but got {bad}") for bad in (2, np.inf)),
        (([1, 11], 10), "A label cannot be on 11 of 10 points"),
        (([1, 2], 10, -1.0), r"a must be in \[0, inf\), but got -1.0"),
        (([0, 2], 10, 0.5, 0.0), r"b must be in \(0, inf\), but got 0.0"),
    ],
)
def test_bad_counts(arguments, message):
    with pytest.raises(ValueError, match=message):
        propensities(*arguments)


def test_pandas_counts_by_falling_frequency_are_refused():
    counts = pd.Series([0, 1, 1, 2, 2, 2]).value_counts()
    with pytest.raises(ValueError, match=r"label_counts .*: pass label_counts.reindex"):
        propensities(counts, 10)
    assert (np.diff(propensities(counts.sort_index(), 10)) > 0).all()
    with pytest.raises(ValueError, match=r"propensities .*: pass propensities.reindex"):
        PSPAtK(3, counts / 6)


def reference(kind, k, labels, ranked, weights):
    reached = most = 0.0
    for positives, ids, weight in zip(labels, ranked, weights, strict=True):
        positives = {label for label in positives if label >= 0}
        discount = [1 / np.log2(j + 2) if kind is PSNDCGAtK else 1.0 for j in range(k)]
        gains = [(i in positives) / PROPENSITIES[i] if i >= 0 else 0.0 for i in ids[:k]]
        best = sorted((1 / PROPENSITIES[label] for label in positives), reverse=True)[:k]
        if kind is PSNDCGAtK and positives:
            discount = discount / np.sum(discount[: len(positives)])
        reached += weight * np.dot(gains, discount[: len(gains)])
        most += weight * np.dot(best, discount[: len(best)])
    return reached / most


@pytest.mark.parametrize("kind", [PSPAtK, PSNDCGAtK])
@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_ratio_of_sums_over_all_batches(kind, k, weighted):
    random, metric = np.random.default_rng(k), kind(k, PROPENSITIES)
    labels = random.integers(-1, 6, size=(20, 4))
    labels[3] = -1
    ranked = np.stack([random.permutation(6)[:5] for _ in range(20)])
    ranked[5, 1] = -1
    weights = random.random(20) if weighted else np.ones(20)
    for part in (slice(0, 7), slice(7, 20)):
        metric.update_state(labels[part], ranked[part], weights[part] if weighted else None)
    np.testing.assert_allclose(metric.result(), reference(kind, k, labels, ranked, weights), rtol=1e-5)


@pytest.mark.parametrize("kind", [PSPAtK, PSNDCGAtK])
@pytest.mark.parametrize("several", [False, True])
def test_sequences_are_their_positions(kind, several):
    random = np.random.default_rng(0)
    labels = random.integers(-1, 6, size=(4, 5, 3) if several else (4, 5))
    ranked = np.argsort(random.random((4, 5, 6)), 2).astype("int32")
    weights = random.random(4)
    metric, flat = kind(2, PROPENSITIES), kind(2, PROPENSITIES)
    metric.update_state(labels, ranked, weights)
    flat.update_state(labels.reshape(20, -1), ranked.reshape(20, 6), np.repeat(weights, 5))
    assert 0 < float(metric.result()) < 1
    np.testing.assert_allclose(metric.result(), flat.result(), rtol=1e-6)


def test_psndcg_by_hand():
    """Each example counts relative to nDCG's ideal for its number of positives, as in published values."""
    metric, log3 = PSNDCGAtK(2, [0.5, 0.1, 1.0]), np.log2(3)
    metric.update_state([[0, -1], [1, 2]], [[1, 0], [1, 0]])
    ideal = 1 + 1 / log3
    want = (2 / log3 + 10 / ideal) / (2 + (10 + 1 / log3) / ideal)
    np.testing.assert_allclose(metric.result(), want, rtol=1e-6)


@pytest.mark.parametrize("kind", [PSPAtK, PSNDCGAtK])
def test_ids_without_a_propensity(kind):
    metric = kind(1, PROPENSITIES)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"label id is outside \[0, 6\)"):
        metric.update_state([6], [[1]])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"ranked class id is outside \[0, 6\)"):
        metric.update_state([1], [[6]])
    with pytest.raises(ValueError, match="integer class ids"):
        metric.update_state([1.0], [[1]])


def test_a_config_is_small_text():
    counts = np.minimum(np.random.default_rng(0).zipf(1.5, 100_000), 10**6)
    metric = PSPAtK(3, propensities(counts, 10**6))
    text = json.dumps(metric.get_config())
    assert len(text) < 2 * len(counts)
    again = PSPAtK.from_config(json.loads(text))
    np.testing.assert_array_equal(again.propensities, metric.propensities)


def test_the_best_ranking_reaches_1_and_scores_do():
    assert PSPAtK(propensities=PROPENSITIES).k == PSNDCGAtK(propensities=PROPENSITIES).k == 10
    metric = PSPAtK(2, PROPENSITIES)
    metric.update_state([[2, 3, 4]], np.array([[0.1, 0.0, 0.9, 0.2, 0.8, 0.3]]))
    np.testing.assert_allclose(metric.result(), 1.0)


@pytest.mark.parametrize("bad", [None, [], [0.5, 0.0], [1.5], [[0.5]], [float("nan")], "abc"])
def test_propensities_are_checked(bad):
    with pytest.raises(ValueError, match=r"in \(0, 1\] for each class|holds no propensity of every class"):
        PSPAtK(3, bad)
