import json

import numpy as np
import pytest
import tensorflow as tf

from tfxc.metrics import AveragePopularityAtK, NoveltyAtK, popularity_deciles

COUNTS = np.array([70, 0, 20, 10])
RANKED = np.array([[0, 2, 1], [1, 0, 2], [3, -1, 0]])


def test_deciles_are_tenths_of_the_classes_and_hold_equal_counts_together():
    counts = np.random.default_rng(0).permutation(np.arange(200))
    groups = popularity_deciles(counts)
    assert np.bincount(groups.ids).tolist() == [20] * 10
    assert counts[groups.ids == 0].min() == 180 and counts[groups.ids == 9].max() == 19
    assert groups.names[0] == "decile_01" and groups.names[9] == "decile_10"
    assert popularity_deciles([5] * 30).ids.tolist() == [0] * 30


@pytest.mark.both_keras
@pytest.mark.parametrize(
    ("kind", "of_class"),
    [(AveragePopularityAtK, COUNTS), (NoveltyAtK, -np.log2(np.maximum(COUNTS, 1) / 100))],
)
def test_the_mean_over_ranked_classes_then_examples(kind, of_class):
    metric = kind(2, COUNTS)
    for own in (metric, kind.from_config(json.loads(json.dumps(metric.get_config())))):
        own.update_state([1, -1, 2], RANKED)  # labels make no difference
        best = [of_class[[0, 2]].mean(), of_class[[1, 0]].mean(), of_class[3]]
        assert float(own.result()) == pytest.approx(np.mean(best))
        own.reset_state()
        own.update_state([[0, -1, 3]], RANKED[np.newaxis])  # but for masked positions
        assert float(own.result()) == pytest.approx(np.mean(best[::2]))


def test_other_classes_and_direction():
    config = NoveltyAtK(2, COUNTS).config_for(np.array([3, -1, 0]))
    assert NoveltyAtK.from_config(config).counts.tolist() == [10, 0, 70]
    assert NoveltyAtK.higher_is_better and not AveragePopularityAtK.higher_is_better


@pytest.mark.parametrize("counts", [None, [], [[1]], [1, -1], [1, np.inf]])
def test_bad_counts(counts):
    for function in (popularity_deciles, lambda counts: NoveltyAtK(1, counts)):
        with pytest.raises(ValueError, match=r"counts must hold a number in \[0, inf\) for each class"):
            function(counts)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"ranked class id is outside \[0, 4\)"):
        NoveltyAtK(1, COUNTS).update_state([0], [[4]])
