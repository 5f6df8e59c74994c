import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import learnable, make_model
from long_cases import long_after
from sampler_checks import (
    all_probs,
    built,
    check_distribution,
    clustered,
    divergence,
    head_of,
    quantised_softmax,
    queries,
    refreshed,
    softmax,
)

import tfxc
from tfxc._keras import keras
from tfxc._keras.weights import tf_variable
from tfxc.ids import hits
from tfxc.samplers import MIDX, LearnedMIDX, Step
from tfxc.scored import Scored


def test_a_step_without_class_vectors_is_refused():
    sampler = built(LearnedMIDX(3, num_codewords=2), 20, 4)
    step = Step(tf.zeros([2, 4]), tf.zeros([2, 1], tf.int32))
    parts = tuple(Scored(tf.zeros([2, n]), tf.zeros([2, n])) for n in (1, 3))
    with pytest.raises(ValueError, match="the step has none"):
        sampler.learn(step, sampler.sample(step), lambda: parts)


def scored(sampler, head, query, labels):
    step = Step(head.effective_query(query), labels, class_vectors=head.class_vectors_of)
    draw = sampler.sample(step)
    positives = Scored(head.score(query, labels), draw.label_log_expected_count)
    negatives = Scored(head.score(query, draw.ids), draw.log_expected_count)
    return step, draw, lambda: (positives, negatives.without(hits(draw.ids, labels) >= 0))


def learn_from(sampler, head, num_steps, scale=1.0):
    @tf.function
    def step(query, seed):
        labels = tf.random.stateless_categorical(head(query), 1, tf.stack([7, seed]), tf.int32)
        sampler.learn(*scored(sampler, head, query, labels))

    for i in range(num_steps):
        step(tf.constant(queries(128, head.table.shape[1], seed=1000 + i) / scale), tf.constant(i))


@pytest.mark.traced
@pytest.mark.parametrize("options", long_after(1, {"quantizer": "pq"}, {}, {"shared": True}))
def test_learnt_codebooks_are_closer_to_the_softmax(options):
    head = head_of(clustered(200, 8, num_clusters=30, scale=0.7), use_bias=True)
    tf_variable(head.bias).assign(-np.log(np.arange(1, 201)))
    sampler = refreshed(LearnedMIDX(10, num_codewords=4, seed=5, **options), head)
    effective = head.effective_query(queries(200, 8, seed=50)).numpy()
    target = softmax(head(queries(200, 8, seed=50)).numpy().astype(np.float64))
    target = target.mean(0, keepdims=True) if sampler.shared else target
    divergences = [divergence(target, all_probs(sampler, effective))]
    learn_from(sampler, head, num_steps=150)
    divergences.append(divergence(target, all_probs(sampler, effective)))
    want = quantised_softmax(sampler, effective[:3])
    want = want.mean(0, keepdims=True) if sampler.shared else want
    np.testing.assert_allclose(all_probs(sampler, effective[:3]), want, rtol=1e-3)
    check_distribution(sampler, 9, num_draws=20_000)
    sampler.refresh(head)
    divergences.append(divergence(target, all_probs(sampler, effective)))
    assert divergences[1] < 0.98 * divergences[0] and divergences[2] < 0.95 * divergences[0]


@pytest.mark.long
@pytest.mark.traced
def test_learning_does_not_depend_on_the_scale_of_the_vectors():
    results = []
    for scale in (1.0, 0.01):
        head = head_of(scale * clustered(50, 4))
        sampler = refreshed(LearnedMIDX(5, num_codewords=3, seed=5), head)
        before = all_probs(sampler, queries(3, 4) / scale)
        learn_from(sampler, head, num_steps=20, scale=scale)
        results.append(all_probs(sampler, queries(3, 4) / scale))
    np.testing.assert_allclose(*results, rtol=1e-2)
    assert np.abs(results[0] / before - 1).max() > 0.1


def test_a_refresh_keeps_learnt_codebooks_until_the_classes_have_left_them():
    vectors = clustered(200, 6, num_clusters=20)
    sampler = refreshed(LearnedMIDX(5, num_codewords=8, seed=5), vectors)
    for codebook in sampler.codebooks:
        tf_variable(codebook).assign_add(0.01 * queries(*codebook.shape))
    learnt = tf_variable(sampler.codebook_0).numpy()
    swapped = np.roll(vectors, 7, axis=0)  # the same vectors, of other classes
    sampler.refresh(head_of(swapped))
    np.testing.assert_array_equal(tf_variable(sampler.codebook_0), learnt)
    nearest = np.linalg.norm(swapped[:, np.newaxis] - learnt, axis=2).argmin(1)
    np.testing.assert_array_equal(tf_variable(sampler.cell).numpy() // 8, nearest)
    sampler.refresh(head_of(clustered(200, 6, seed=9)))
    assert (tf_variable(sampler.codebook_0).numpy() != learnt).any()


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.parametrize("quantizer", ["rq", "pq"])
def test_classes_without_any_vector_are_drawn_alike_and_learnt_later(quantizer):
    vectors = np.zeros((50, 4), np.float32)
    head = head_of(vectors)
    sampler = refreshed(LearnedMIDX(5, num_codewords=8, quantizer=quantizer, seed=5), head)
    learn_from(sampler, head, num_steps=3)
    np.testing.assert_allclose(all_probs(sampler, queries(2, 4)), 1 / 50, rtol=1e-5)
    sampler.refresh(head_of(clustered(50, 4)))
    learnt = tf_variable(sampler.codebook_0).numpy()
    assert np.isfinite(learnt).all() and learnt.any()


def test_codebooks_that_are_not_finite_are_fitted_anew():
    sampler = built(LearnedMIDX(5, num_codewords=8, seed=5), 50, 4)
    tf_variable(sampler.codebook_0).assign(tf.fill([8, 4], float("nan")))
    sampler.refresh(head_of(clustered(50, 4)))
    assert np.isfinite(tf_variable(sampler.codebook_0)).all()


@pytest.mark.long
@pytest.mark.traced
def test_nothing_is_learnt_before_the_first_refresh_nor_without_queries():
    head, sampler = head_of(clustered(20, 4)), built(LearnedMIDX(3, num_codewords=4, seed=5), 20, 4)
    learn_from(sampler, head, num_steps=2)
    np.testing.assert_allclose(all_probs(sampler, queries(2, 4)), 1 / 20, rtol=1e-5)
    sampler.refresh(head)
    before = all_probs(sampler, queries(2, 4))
    query, labels = tf.zeros([0, 4]), tf.zeros([0, 1], tf.int32)
    sampler.learn(*scored(sampler, head, query, labels))
    after = all_probs(sampler, queries(2, 4))
    assert np.isfinite(after).all() and divergence(before, after) < 0.01


@pytest.mark.long
def test_learning_leaves_the_models_own_training_alone():
    def trained(learns):
        keras.utils.set_random_seed(3)
        sampler = (LearnedMIDX if learns else MIDX)(8, num_codewords=3, seed=1)
        optimizer = tfxc.optimizers.LazyAdam(0.05, global_clipnorm=0.01)
        loss = tfxc.losses.SoftmaxCrossentropy(decoupled=True)  # takes candidates one by one, learning or not
        model = make_model(sampler, loss, optimizer=optimizer, run_eagerly=True)
        x, y = learnable(64)
        sampler.refresh(model.head)
        codebook = tf_variable(sampler.codebook_0).numpy()
        model.fit(x, y, batch_size=64, verbose=0)
        assert (tf_variable(sampler.codebook_0).numpy() != codebook).any() == learns
        return [weight.numpy() for weight in model.trainable_variables]

    tf.nest.map_structure(np.testing.assert_array_equal, trained(True), trained(False))
