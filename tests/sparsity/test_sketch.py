import numpy as np
import tensorflow as tf

from tfxc.sparsity.sketch import random_sketch, sketch_queries, sketch_rows


def dense(sketch, num_inputs):
    """The sketch as a matrix [E, dim]."""
    matrix = np.zeros((num_inputs, sketch.dim))
    matrix[np.arange(num_inputs), sketch.bucket] = sketch.sign
    return matrix


def test_both_sketches_are_one_linear_map():
    random, sketch = np.random.default_rng(0), random_sketch(30, 7, seed=3)
    indices = np.stack([random.permutation(30)[:4] for _ in range(5)]).astype(np.int32)
    weights, query = random.normal(size=(5, 4)), random.normal(size=(3, 30))
    rows = np.zeros((5, 30))
    np.put_along_axis(rows, indices, weights, 1)
    matrix = dense(sketch, 30)
    np.testing.assert_allclose(
        sketch_queries(tf.constant(query, tf.float32), sketch), query @ matrix, rtol=1e-4, atol=1e-5
    )
    got = sketch_rows(tf.constant(weights, tf.float32), tf.constant(indices), sketch)
    np.testing.assert_allclose(got, rows @ matrix, rtol=1e-4, atol=1e-5)


def test_no_row_and_one_input():
    sketch = random_sketch(1, 1, seed=0)
    assert sketch_rows(tf.zeros([0, 1]), tf.zeros([0, 1], tf.int32), sketch).shape == (0, 1)
    assert abs(float(sketch_queries(tf.constant([[2.0]]), sketch)[0, 0])) == 2.0


def test_inner_products_are_estimated_without_bias():
    random = np.random.default_rng(1)
    x, w = random.normal(size=200), random.normal(size=200)
    estimates = [
        (x @ matrix) @ (w @ matrix)
        for matrix in (dense(random_sketch(200, 64, seed), 200) for seed in range(800))
    ]
    error = np.mean(estimates) - x @ w
    deviation = np.linalg.norm(x) * np.linalg.norm(w) / 8
    assert abs(error) < 3 * deviation / np.sqrt(800)
    assert 0.8 < np.std(estimates) / deviation < 1.25


def test_the_seed_decides():
    one, two, other = random_sketch(50, 8, 1), random_sketch(50, 8, 1), random_sketch(50, 8, 2)
    np.testing.assert_array_equal(one.bucket, two.bucket)
    np.testing.assert_array_equal(one.sign, two.sign)
    assert (one.bucket != other.bucket).any()
