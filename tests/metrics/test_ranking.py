import numpy as np
import pytest

from tfxc import metrics

NAMES = {
    metrics.PrecisionAtK: "precision",
    metrics.RecallAtK: "recall",
    metrics.NDCGAtK: "ndcg",
    metrics.MRRAtK: "mrr",
    metrics.MAPAtK: "map",
    metrics.HitRateAtK: "hit_rate",
}
FAMILY = pytest.mark.parametrize("metric_class", NAMES)


def reference(name, labels, ids, k):
    positives = {i for i in np.ravel(labels) if i >= 0}
    if not positives:
        return None
    seen, ranks = set(), []
    for rank, i in enumerate(ids[:k], 1):
        if i in positives and i not in seen:
            ranks.append(rank)
        seen.add(i)
    best = range(1, min(len(positives), k) + 1)
    return {
        "precision": len(ranks) / k,
        "recall": len(ranks) / len(positives),
        "hit_rate": float(bool(ranks)),
        "mrr": 1 / ranks[0] if ranks else 0.0,
        "map": sum(n / rank for n, rank in enumerate(ranks, 1)) / len(best),
        "ndcg": sum(1 / np.log2(r + 1) for r in ranks) / sum(1 / np.log2(r + 1) for r in best),
    }[name]


def reference_mean(name, labels, ids, k, weights):
    values = [reference(name, row, ranked, k) for row, ranked in zip(labels, ids, strict=True)]
    kept = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
    return sum(value * weight for value, weight in kept) / sum(weight for _, weight in kept)


def random_batch(num_examples, num_positives, num_ranked, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(-1, 12, [num_examples, num_positives])
    labels[0] = np.arange(num_positives)
    ids = np.array([rng.permutation(12)[:num_ranked] for _ in range(num_examples)])
    ids[rng.random(ids.shape) < 0.1] = -1
    ids[1::3] = ids[1::3, :1]  # an id that is ranked twice hits once
    return labels, ids, rng.integers(0, 3, num_examples) + np.eye(num_examples)[0]


@FAMILY
@pytest.mark.parametrize(
    ("num_examples", "num_positives", "num_ranked", "k"), [(37, 5, 11, 7), (1, 1, 1, 1), (13, 3, 2, 2)]
)
def test_against_the_reference(metric_class, num_examples, num_positives, num_ranked, k):
    labels, ids, weights = random_batch(num_examples, num_positives, num_ranked, seed=k)
    for chosen in (np.ones(num_examples), weights):
        metric = metric_class(k)
        for part in np.split(np.arange(num_examples), [1, 14]):  # uneven batches are one
            metric.update_state(labels[part], ids[part], sample_weight=chosen[part])
        expected = reference_mean(NAMES[metric_class], labels, ids, k, chosen)
        assert float(metric.result()) == pytest.approx(expected, abs=1e-6)


@FAMILY
@pytest.mark.parametrize("k", [1, 4, 30])
def test_full_scores(metric_class, k):
    rng = np.random.default_rng(k)
    scores, labels = rng.normal(size=[19, 12]).astype("float32"), rng.integers(-1, 12, [19, 3])
    metric = metric_class(k)
    metric.update_state(labels, scores)
    ranked = np.argsort(-scores, axis=1)
    expected = reference_mean(NAMES[metric_class], labels, ranked, k, np.ones(19))
    assert float(metric.result()) == pytest.approx(expected, abs=1e-6)


@FAMILY
def test_by_hand(metric_class):
    # Positives 5, 6 and 7 (7 given twice); 6 ranks second and 5 fourth.
    metric = metric_class(4)
    metric.update_state([[7, 5, 6, 7, -1]], [[1, 6, 2, 5, 7]])
    gains = (0.6309298 + 0.4306766) / (1 + 0.6309298 + 0.5)
    map_ = (1 / 2 + 2 / 4) / 3
    want = {"precision": 2 / 4, "recall": 2 / 3, "hit_rate": 1, "mrr": 1 / 2, "map": map_, "ndcg": gains}
    assert float(metric.result()) == pytest.approx(want[NAMES[metric_class]], abs=1e-6)


def test_default_names():
    assert [kind().name for kind in NAMES] == [f"{name}_at_10" for name in NAMES.values()]
