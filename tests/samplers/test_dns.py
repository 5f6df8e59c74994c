import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import NUM_CLASSES, learnable, make_model
from long_cases import long_after
from sampler_checks import labels_for, log_expected_count, p_value, queries, sample

from tfxc.metrics import RecallAtK
from tfxc.samplers import DNS, Step


def built(num_negatives, num_candidates, num_classes=20, **options):
    sampler = DNS(num_negatives, num_candidates=num_candidates, seed=1, **options)
    sampler.build((num_classes, 4))
    return sampler


def test_the_draws_are_uniform_and_the_counts_uncorrected():
    sampler, query, pools = built(2, 50), queries(1000, 4), []

    def score(ids):
        pools.append(ids.numpy())
        return tf.cast(ids, tf.float32)

    draw = sampler.sample(Step(tf.constant(query), labels_for(query), score=score))
    assert pools[0].shape == (1000, 50) and p_value(pools[0].ravel(), np.ones(20)) > 1e-3
    assert draw.ids.shape == (1000, 2) and draw.ids.numpy().min() >= 16
    assert not draw.log_expected_count.numpy().any() and not draw.label_log_expected_count.numpy().any()


def test_the_best_scored_are_chosen_by_hand():
    ids = tf.constant([[4, 9, 9, 2], [0, 1, 2, 3]])
    scores = tf.constant([[1.0, 3.0, 3.0, 2.0], [5.0, 1.0, 4.0, -2.0]])
    chosen = built(2, 4).choose(ids, tf.constant([[2, 5], [0, -1]]), scores)
    assert chosen.numpy().tolist() == [[9, 9], [2, 1]] and chosen.dtype == tf.int32
    shared = built(2, 4, shared=True).choose(ids[1], tf.constant([[7], [0]]), scores)
    assert shared.numpy().tolist() == [[1, 2], [2, 1]]


def test_slots_stay_empty_where_only_positives_were_drawn():
    scores = tf.constant([[9.0, 1.0, 9.0]])
    assert built(2, 3).choose(tf.constant([[4, 5, 4]]), tf.constant([[4]]), scores).numpy().tolist() == [
        [5, -1]
    ]
    only = built(1, 1, num_classes=1).choose(tf.zeros([1, 1], tf.int32), tf.constant([[0]]), tf.zeros([1, 1]))
    assert only.numpy().tolist() == [[-1]]


def test_scores_that_are_not_finite_do_not_go_unseen():
    chosen = built(2, 2).choose(tf.constant([[4, 5]]), tf.constant([[0]]), tf.constant([[np.nan, np.nan]]))
    assert (chosen.numpy() >= 0).all()


@pytest.mark.long
@pytest.mark.parametrize("shared", long_after(1, False, True))
def test_a_model_scores_the_draws_and_trains_on_the_hardest(shared):
    x, y = learnable(256)
    sampler = DNS(4, num_candidates=12, shared=shared, seed=0)
    model = make_model(sampler, metrics=[RecallAtK(1)], run_eagerly=True)
    seen = []
    choose = model.sampler.choose

    def recorded(ids, labels, scores):
        logits = tf.gather(model.head(model.encoder(x[:64])), ids, axis=1, batch_dims=ids.shape.rank - 1)
        chosen = choose(ids, labels, scores)
        seen.append((scores.numpy(), logits.numpy(), chosen.shape))
        return chosen

    model.sampler.choose = recorded
    model.train_on_batch(x[:64], tf.constant(y[:64]))
    (scores, logits, shape), model.sampler.choose = seen[0], choose
    np.testing.assert_allclose(scores, logits, rtol=1e-4, atol=1e-5)
    assert shape == (64, 4)
    model.fit(x, y, batch_size=64, epochs=8, verbose=0)
    assert model.evaluate(x, y, verbose=0)[1] > 0.4 > 5 / NUM_CLASSES


@pytest.mark.parametrize("num_candidates", [3, 4.0, None])
def test_the_number_of_candidates_is_checked(num_candidates):
    with pytest.raises(ValueError, match="num_candidates must be an integer of at least 4"):
        DNS(4, num_candidates=num_candidates)


def test_nobody_knows_its_counts():
    with pytest.raises(ValueError, match="DNS has no log_prob"):
        built(2, 4).log_prob(None, tf.constant([[1]]))
    with pytest.raises(ValueError, match="DNS does not know how often a class is expected"):
        log_expected_count(built(2, 4), tf.zeros([1, 4]), [[0]], [[1]])
    with pytest.raises(ValueError, match="DNS chooses by score"):
        sample(built(2, 4), tf.zeros([1, 4]), [[0]])
