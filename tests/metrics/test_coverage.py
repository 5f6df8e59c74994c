import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import NUM_CLASSES, features, make_model

from tfxc.metrics import CoverageAtK, RecallAtK


def test_against_a_set_over_batches():
    random, metric = np.random.default_rng(0), CoverageAtK(3, num_classes=50)
    seen = set()
    for _ in range(3):
        ranked = np.argsort(random.random((4, 50)), 1)[:, :7].astype("int32")
        ranked[0, 1] = -1
        seen |= set(ranked[:, :3].ravel()) - {-1}
        metric.update_state(np.zeros(4, int), ranked)
    assert float(metric.result()) == pytest.approx(len(seen) / 50)
    metric.reset_state()
    assert float(metric.result()) == 0.0


def test_which_of_equal_scores_come_first_is_chance():
    metric = CoverageAtK(2, num_classes=50)
    for _ in range(100):
        metric.update_state([0], np.zeros((1, 50)))
    assert float(metric.result()) > 0.9


def test_what_does_not_count():
    metric = CoverageAtK(1, num_classes=4)
    metric.update_state([0, -1, 0], [[0], [1], [2]], sample_weight=[[1.0], [0.5], [0.0]])
    assert float(metric.result()) == 0.5  # an example without a label is shown something, too
    metric.reset_state()
    metric.update_state([[0, -1]], [[[3], [2]]])  # a masked position is not
    assert float(metric.result()) == 0.25


@pytest.mark.traced
def test_scores_and_a_graph():
    metric = CoverageAtK(2, num_classes=3)

    @tf.function
    def update(labels, scores):
        metric.update_state(labels, scores)

    update(tf.constant([0]), tf.constant([[0.1, float("nan"), 0.3]]))
    assert float(metric.result()) == pytest.approx(2 / 3)


def test_bad_input():
    with pytest.raises(ValueError, match="k must be an integer of at least 1"):
        CoverageAtK(0, 5)
    with pytest.raises(ValueError, match="num_classes must be an integer of at least 1, but got None"):
        CoverageAtK(3)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"ranked class id is outside \[0, 5\)"):
        CoverageAtK(1, 5).update_state([0], [[5]])
    with pytest.raises(ValueError, match="coverage_at_3 needs at least 3 ranked ids.*k=3 or more"):
        CoverageAtK(3, 5).update_state([0], [[4, 1]])
    with pytest.raises(ValueError, match=r"y_pred is int32 of shape \(1,\)"):
        CoverageAtK(1, 5).update_state([0], [4])
    with pytest.raises(ValueError, match="sample_weight must hold a number for each.*are 1 instead of 2"):
        CoverageAtK(1, 5).update_state([0, 0], [[4], [3]], sample_weight=[0.0])


@pytest.mark.both_keras
def test_beside_other_metrics_in_evaluate():
    model, x = make_model(metrics=[CoverageAtK(4, NUM_CLASSES), RecallAtK(2)]), features(20)
    result = model.evaluate(x, np.arange(20), 8, return_dict=True, verbose=0)
    ids = model.predict(x, verbose=0)["ids"][:, :4]
    assert result["coverage_at_4"] == pytest.approx(len(np.unique(ids)) / NUM_CLASSES)
