"""Draws from the softmax itself."""

import numpy as np
import pytest
import tensorflow as tf
from sampler_checks import all_probs, check_distribution, clustered, head_of, p_value, queries, softmax

from tfxc._keras import tf_variable
from tfxc.samplers import MIDX
from tfxc.samplers.exact_softmax import exact_draw, exact_log_probs


@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("num_classes", [1, 2, 50])
def test_log_probs(num_classes, scale):
    query, vectors = scale * queries(3, 4), clustered(num_classes, 4)
    probs = softmax(query.astype(np.float64) @ vectors.T.astype(np.float64))
    np.testing.assert_allclose(np.exp(exact_log_probs(query, vectors)), probs, atol=1e-5)


def test_draws():
    query, vectors = queries(2, 4), clustered(50, 4)
    log_probs = exact_log_probs(query, vectors).numpy()
    ids, log_prob = exact_draw(query, vectors, 100_000, [1, 2])
    assert ids.dtype == tf.int32
    np.testing.assert_array_equal(log_prob, np.take_along_axis(log_probs, ids.numpy(), 1))
    for row, want in zip(ids.numpy(), np.exp(log_probs), strict=True):
        assert p_value(row, want) > 1e-3
    np.testing.assert_array_equal(ids, exact_draw(query, vectors, 100_000, [1, 2])[0])
    assert (ids.numpy() != exact_draw(query, vectors, 100_000, [1, 3])[0].numpy()).any()


def test_rare_classes_come_as_often_as_they_should():
    """999 of 1000 classes share 1e-5 of the probability: more than 32-bit sums resolve."""
    vectors = np.full((1000, 1), np.log(1e-5 / 999), np.float32)
    vectors[0] = np.log(1 - 1e-5)
    ids = exact_draw(np.ones((1, 1), np.float32), vectors, 4_000_000, [0, 0])[0].numpy()
    assert 15 < (ids != 0).sum() < 80


def test_draws_of_different_queries_are_independent():
    """No run of five draws comes twice, as random numbers shared between threads would make it."""
    ids = exact_draw(np.zeros((2000, 1), np.float32), np.zeros((1000, 1), np.float32), 10, [5, 1])[0].numpy()
    runs = np.lib.stride_tricks.sliding_window_view(ids.ravel(), 5)
    assert len(np.unique(runs, axis=0)) == len(runs)


def test_without_queries():
    ids, log_prob = exact_draw(np.zeros((0, 2), np.float32), np.ones((5, 2), np.float32), 3, [0, 0])
    assert ids.shape == log_prob.shape == (0, 3)


@pytest.mark.parametrize("traced", [False, True])
def test_logits_that_are_not_finite_name_the_query(traced):
    draw = tf.function(exact_draw) if traced else exact_draw
    query = tf.constant([[0.0, 1.0], [np.nan, 1.0]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="finite(.|\n)*1"):
        draw(query, tf.ones([3, 2]), 2, [0, 0])


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("num_classes", [1, 3, 50, 1000])
def test_midx_is_uniform_and_then_the_softmax(num_classes, shared):
    sampler, vectors, query = (
        MIDX(10, exact=True, shared=shared, seed=5),
        clustered(num_classes, 7),
        queries(3, 7),
    )
    sampler.build((num_classes, 7))
    np.testing.assert_allclose(all_probs(sampler, query), 1 / num_classes, rtol=1e-5)
    sampler.refresh(head_of(vectors))
    of = query.mean(0, keepdims=True) if shared else query
    np.testing.assert_allclose(
        all_probs(sampler, query), softmax(of.astype(np.float64) @ vectors.T), atol=1e-5
    )
    check_distribution(sampler, 7, num_draws=100_000)


def test_midx_is_what_the_three_stages_make_up():
    """Row, column and class, each by its exact share, whatever the codebooks: here fitted ones."""
    head, query = head_of(clustered(60, 6)), queries(3, 6).astype(np.float64)
    exact, fitted = MIDX(5, exact=True, seed=5), MIDX(5, 4, seed=5)
    for sampler in (exact, fitted):
        sampler.build((60, 6))
        sampler.refresh(head)
    first, second = (tf_variable(codebook).numpy().astype(np.float64) for codebook in fitted.codebooks)
    row, column = np.divmod(tf_variable(fitted.cell).numpy(), 4)
    within = np.exp(query @ (tf_variable(head.table).numpy() - first[row] - second[column]).T)
    omega = np.zeros((3, 4, 4))
    for i in range(60):
        omega[:, row[i], column[i]] += within[:, i]
    psi = np.einsum("nab,nb->na", omega, np.exp(query @ second.T))
    row_prob = psi * np.exp(query @ first.T)
    row_prob /= row_prob.sum(1, keepdims=True)
    column_prob = omega * np.exp(query @ second.T)[:, np.newaxis] / psi[:, :, np.newaxis]
    staged = row_prob[:, row] * column_prob[:, row, column] * within / omega[:, row, column]
    np.testing.assert_allclose(all_probs(exact, query.astype(np.float32)), staged, atol=1e-5)
