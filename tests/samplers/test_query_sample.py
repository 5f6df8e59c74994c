import numpy as np
import tensorflow as tf
from sampler_checks import built, queries, softmax

from tfxc._keras.weights import tf_variable
from tfxc.samplers.query_sample import QuerySample, log_partitions, mean_log_softmax


def sample_of(dim):
    return built(QuerySample(), dim)


def test_the_last_steps_stay_some_queries_of_each():
    sample, sizes = sample_of(2), [3, 80, 8, 0, *[20] * 32]
    for step, size in enumerate(sizes, start=1):
        query = np.stack([np.full(size, step), np.arange(size)], 1)
        sample.follow(tf.constant(query, tf.float32), tf.constant(step, tf.int64))
        if step == 2:
            found = sorted(map(tuple, sample.queries(10).tolist()))
            assert found == [(1, 0), (1, 1), (1, 2), *((2, 10 * i) for i in range(8))]
    kept = tf_variable(sample.rows).numpy()
    assert sorted(set(kept[:, 0])) == list(range(5, 37)) and len(sample.queries(10)) == 256


def test_queries_that_tell_nothing_leave_the_sample():
    sample = sample_of(2)
    sample.follow(tf.ones([5, 2]), 1)
    for query in ([[np.nan, 1.0]], [[np.inf, 1.0]], [[0.0, 0.0]], np.zeros([0, 2])):
        sample.follow(tf.constant(query, tf.float32), 1)
        np.testing.assert_array_equal(sample.queries(10), np.ones([5, 2]))


def test_many_classes_are_weighed_by_fewer_queries():
    sample = sample_of(1)
    for step in range(32):
        sample.follow(tf.range(1.0, 9)[:, tf.newaxis] + 8 * step, step)
    assert sample.queries(1 << 24)[:, 0].tolist() == list(range(1, 257, 4))  # evenly spaced


def test_before_a_query_all_classes_are_as_frequent():
    found = mean_log_softmax(queries(5, 3), sample_of(3).queries(5), np.zeros(0, np.float32))
    np.testing.assert_array_equal(found, np.zeros(5))


def test_frequencies_are_means_of_the_softmax():
    vectors, query = 3 * queries(50, 4), queries(7, 4, seed=1)
    blocks = [(0, vectors[:20]), (20, vectors[20:])]
    log_partition = log_partitions(blocks, query)
    want = softmax(query.astype(np.float64) @ vectors.T).mean(0)
    np.testing.assert_allclose(mean_log_softmax(vectors, query, log_partition), np.log(want), atol=1e-4)
    other = queries(2, 4, seed=5)
    partition = np.exp(query.astype(np.float64) @ vectors.T).sum(1)
    want = (np.exp(query.astype(np.float64) @ other.T) / partition[:, np.newaxis]).mean(0)
    np.testing.assert_allclose(mean_log_softmax(other, query, log_partition), np.log(want), atol=1e-4)
