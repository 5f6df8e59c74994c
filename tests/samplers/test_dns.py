"""The best-scored of many uniform draws."""

import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import NUM_CLASSES, learnable, make_model
from sampler_checks import check_reproducible, labels_for, p_value, queries

from tfxc.metrics import RecallAtK
from tfxc.samplers import DNS


def built(*arguments, num_classes=20, **options):
    sampler = DNS(*arguments, seed=1, **options)
    sampler.build((num_classes, 4))
    return sampler


def test_the_draws_are_uniform_and_the_counts_uncorrected():
    sampler, query = built(2, 50), queries(1000, 4)
    ids, log_count = sampler.sample(tf.constant(query), labels_for(query))
    assert ids.shape == (1000, 50) and p_value(ids.numpy().ravel(), np.ones(20)) > 1e-3
    np.testing.assert_allclose(log_count, np.log(50 / 20), rtol=1e-6)
    assert not sampler.log_expected_count(query, labels_for(query), labels_for(query)).numpy().any()


def test_the_best_scored_are_chosen_by_hand():
    ids = tf.constant([[4, 9, 9, 2], [0, 1, 2, 3]])
    scores = tf.constant([[1.0, 3.0, 3.0, 2.0], [5.0, 1.0, 4.0, -2.0]])
    chosen, log_count = built(2, 4).select(ids, tf.constant([[2, 5], [0, -1]]), scores)
    assert chosen.numpy().tolist() == [[9, 9], [2, 1]] and chosen.dtype == tf.int32
    assert log_count.numpy().tolist() == [[0.0, 0.0]] * 2
    shared, _ = built(2, 4, shared=True).select(ids[1], tf.constant([[7], [0]]), scores)
    assert shared.numpy().tolist() == [[1, 2], [2, 1]]


def test_slots_stay_empty_where_only_positives_were_drawn():
    chosen, _ = built(2, 3).select(
        tf.constant([[4, 5, 4]]), tf.constant([[4]]), tf.constant([[9.0, 1.0, 9.0]])
    )
    assert chosen.numpy().tolist() == [[5, -1]]
    chosen, _ = built(1, 1, num_classes=1).select(
        tf.zeros([1, 1], tf.int32), tf.constant([[0]]), tf.zeros([1, 1])
    )
    assert chosen.numpy().tolist() == [[-1]]


def test_scores_that_are_not_finite_do_not_go_unseen():
    chosen, _ = built(2, 2).select(tf.constant([[4, 5]]), tf.constant([[0]]), tf.constant([[np.nan, np.nan]]))
    assert (chosen.numpy() >= 0).all()


@pytest.mark.parametrize("shared", [False, True])
def test_a_model_scores_the_draws_and_trains_on_the_hardest(shared):
    x, y = learnable(256)
    model = make_model(DNS(4, 12, shared=shared, seed=0), metrics=[RecallAtK(1)])
    seen = []
    select = model.sampler.select

    def recorded(ids, labels, scores):
        logits = tf.gather(model.head(model.encoder(x[:64])), ids, axis=1, batch_dims=ids.shape.rank - 1)
        chosen = select(ids, labels, scores)
        seen.append((scores.numpy(), logits.numpy(), chosen[0].shape))
        return chosen

    model.sampler.select = recorded
    model.run_eagerly = True
    model.train_on_batch(x[:64], tf.constant(y[:64]))
    (scores, logits, shape), model.sampler.select, model.run_eagerly = seen[0], select, False
    np.testing.assert_allclose(scores, logits, rtol=1e-4, atol=1e-5)
    assert shape == (64, 4)
    model.fit(x, y, batch_size=64, epochs=8, verbose=0)
    assert model.evaluate(x, y, verbose=0)[1] > 0.4 > 5 / NUM_CLASSES


def test_reproducible():
    check_reproducible(lambda seed: DNS(2, 5, seed=seed), (1000, 4), 4)


@pytest.mark.parametrize("num_candidates", [3, 4.0, None])
def test_the_number_of_candidates_is_checked(num_candidates):
    with pytest.raises(ValueError, match="num_candidates must be an integer of at least num_negatives = 4"):
        DNS(4, num_candidates)


def test_there_is_no_log_prob():
    with pytest.raises(NotImplementedError, match="DNS has no log_prob"):
        built(2, 4).log_prob(None, tf.constant([[1]]))
