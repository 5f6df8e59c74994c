import numpy as np
import pytest
import tensorflow as tf

from tfxc.sparsity.projection import _random_signs, basis_of, follow


def low_rank(num_queries, num_inputs, rank, seed=0):
    """Queries [N, E] that vary in few directions around a mean far from 0."""
    random = np.random.default_rng(seed)
    directions = np.random.default_rng(99).normal(size=(rank, num_inputs))
    return (3 + random.normal(size=(num_queries, rank)) @ directions).astype(np.float32)


def followed(steps, dim, seed=1):
    moments = tf.Variable(tf.zeros([steps[0].shape[1], dim]))
    for number, query in enumerate(steps):
        follow(moments, tf.constant(query), tf.constant(8 * number + 1, tf.int64), seed)
        follow(moments, tf.zeros_like(query) - 99, tf.constant(8 * number + 5, tf.int64), seed)  # too early
    return moments.numpy()


@pytest.mark.parametrize(("num_inputs", "dim"), [(2, 2), (7, 7), (40, 6)])
def test_moments_are_those_of_some_queries_of_each_step(num_inputs, dim):
    steps = [low_rank(size, num_inputs, 3, seed=size) for size in (1, 300, 128)]
    signs, means = np.zeros((num_inputs, dim)), []
    column, sign = _random_signs(num_inputs, dim - 1, 1)
    signs[np.arange(num_inputs), column] = sign
    for query in steps:
        some = query[np.arange(min(128, len(query))) * len(query) // min(128, len(query))].astype(np.float64)
        products = some @ signs
        products[:, -1] = 1
        means.append(some.T @ products / len(some))
    np.testing.assert_allclose(followed(steps, dim), np.mean(means, 0), rtol=1e-4, atol=1e-4)


def test_a_late_step_weighs_a_32nd():
    moments = tf.Variable(tf.zeros([2, 2]))
    follow(moments, tf.ones([3, 2]), tf.constant(8001, tf.int64), 0)
    np.testing.assert_allclose(moments[:, 1], [1 / 32, 1 / 32], rtol=1e-5)


@pytest.mark.parametrize("query", [np.zeros((0, 9)), np.full((2, 9), np.nan), np.full((2, 9), np.inf)])
def test_queries_that_tell_nothing_are_left_out(query):
    steps = [low_rank(50, 9, 2)]
    np.testing.assert_array_equal(followed([*steps, query], 4), followed(steps, 4))


def test_inner_products_of_queries_like_those_of_the_steps_stay():
    steps = [low_rank(64, 300, 5, seed=seed) for seed in range(4)]
    basis = basis_of(followed(steps, 12), np.eye(12, 300))
    np.testing.assert_allclose(basis @ basis.T, np.eye(12), atol=1e-5)
    query, vectors = low_rank(20, 300, 5, seed=77), np.random.default_rng(5).normal(size=(30, 300))
    want = query @ vectors.T
    np.testing.assert_allclose((query @ basis.T) @ (basis @ vectors.T), want, atol=1e-3 * np.abs(want).max())


def test_a_range_that_stays_keeps_its_basis():
    moments = followed([low_rank(64, 50, 20)], 8)
    first = basis_of(moments, np.eye(8, 50))
    np.testing.assert_allclose(basis_of(2 * moments, first), first, atol=1e-4)
    turned = basis_of(moments + 1e-3 * np.random.default_rng(0).normal(size=moments.shape), first)
    assert np.linalg.norm(turned - first) < 0.5 * np.linalg.norm(first)
    basis = basis_of(np.zeros((6, 6), np.float32), np.eye(6))  # of as many directions as inputs
    np.testing.assert_allclose(basis.T @ basis, np.eye(6), atol=1e-6)
