import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import DIM, features, make_model
from long_cases import long_after

from tfxc._keras import keras
from tfxc.metrics import HitRateAtK, RecallAtK
from tfxc.metrics.ties import in_random_order, mostly_tied

ZIPF = np.random.default_rng(0).choice(50, 1000, p=1 / np.arange(1, 51) / (1 / np.arange(1, 51)).sum())


def test_most_of_the_best_have_one_score():
    scores = tf.constant([[3.0, 2, 1, 1, 0], [3.0, 1, 1, 1, 0], [3.0, 3, 2, 2, 2], [3.0, 2, 0, 0, 0]])
    ids = tf.constant([[0, 1, 2, 3, 4]] * 3 + [[0, 1, -1, -1, -1]])
    assert mostly_tied(scores, ids).numpy().tolist() == [False, True, True, False]
    assert mostly_tied(scores[:, :2], ids[:, :2]).numpy().tolist() == [False, False, True, False]
    assert mostly_tied(scores[:, :1], ids[:, :1]).numpy().tolist() == [False] * 4


def test_equal_scores_rank_in_any_order():
    scores = tf.constant(np.tile([0, 2, 1, 2, 1, 1], [600, 1]), tf.float32)
    best, ids = in_random_order(scores, 4, [1, 2])
    assert best.numpy().tolist() == [[2, 2, 1, 1]] * 600
    assert {*ids[:, 0].numpy()} == {1, 3} and {*ids[:, 2].numpy()} == {2, 4, 5}
    assert all(len({*row}) == 4 for row in ids.numpy().tolist())
    assert in_random_order(scores[:0], 4, [1, 2])[1].shape == (0, 4)


@pytest.mark.traced
def test_a_plain_model_under_xla_has_the_same_order():
    scores = tf.constant([[0.0, 2, 1, 2, 1, 1]] * 8)
    compiled = tf.function(in_random_order, jit_compile=True)
    np.testing.assert_array_equal(compiled(scores, 4, [1, 2])[1], in_random_order(scores, 4, [1, 2])[1])


@pytest.mark.parametrize(("batch", "dtype"), long_after(1, (1000, "float16"), (50, "float64")))
def test_scores_that_are_all_alike_are_no_better_than_chance(batch, dtype):
    metrics, runs = [RecallAtK(5), RecallAtK(10), HitRateAtK(1)], []
    for _ in range(2):
        for start in range(0, len(ZIPF), batch):
            labels = ZIPF[start : start + batch]
            for metric in metrics:
                metric.update_state(labels, tf.zeros([len(labels), 50], dtype))
        runs.append([float(metric.result()) for metric in metrics])
        for metric in metrics:
            metric.reset_state()
    np.testing.assert_allclose(runs[0], [0.1, 0.2, 0.02], rtol=0.35)
    assert runs[0] == runs[1]


@pytest.mark.long
@pytest.mark.both_keras
@pytest.mark.traced
@pytest.mark.parametrize("k", [1, 5])
def test_a_collapsed_model_is_warned_of(k):
    model, y = make_model(k=k, metrics=[RecallAtK(k)], optimizer=keras.optimizers.SGD(0.0)), np.arange(20)
    model.evaluate(features(20), y, verbose=0)
    collapsed = np.zeros([20, DIM])
    with pytest.warns(UserWarning, match="same score for 100% of the queries.*collapsed"):
        model.evaluate(collapsed, y, verbose=0)
    with pytest.warns(UserWarning, match="same score"):
        model.fit(features(4), y[:4], validation_data=(collapsed, y), verbose=0)
    model.evaluate(features(20), y, verbose=0)
    if k > 1:
        with pytest.warns(UserWarning, match="same score for 100%"):
            RecallAtK(k).update_state(y, model.predict(collapsed, verbose=0))
