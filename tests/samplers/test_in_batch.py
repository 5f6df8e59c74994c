"""The labels of the batch as candidates."""

import numpy as np
import pytest
import tensorflow as tf
from sampler_checks import p_value

from tfxc.samplers import InBatch

COUNTS = np.array([1.0, 2.0, 3.0, 4.0])


def built(num_negatives, **options):
    sampler = InBatch(num_negatives, counts=COUNTS, **options)
    sampler.build((4, 2))
    return sampler


def test_all_labels_once_each_with_their_expected_counts():
    labels = tf.constant([[3, -1], [1, 3], [-1, -1]])
    ids, log_count = built(None).sample(tf.zeros([3, 2]), labels)
    assert ids.numpy().tolist() == [3, 1, 3]
    np.testing.assert_allclose(np.exp(log_count), 3 * COUNTS[[3, 1, 3]] / 10, rtol=1e-6)


def test_draws_are_uniform_over_the_batch():
    labels = tf.constant([[0], [1], [1], [3]])
    ids, log_count = built(100_000, seed=1).sample(tf.zeros([4, 2]), labels)
    assert p_value(ids.numpy(), np.array([0.25, 0.5, 0, 0.25])) > 1e-3
    np.testing.assert_allclose(log_count, np.log(100_000 * COUNTS / 10)[ids], rtol=1e-6)


def test_expected_count_is_right_over_batches_drawn_by_frequency():
    sampler, random, size = built(None), np.random.default_rng(0), 400
    seen = np.zeros(4)
    for _ in range(50):
        labels = random.choice(4, size=(size, 1), p=COUNTS / 10)
        ids, _ = sampler.sample(tf.zeros([size, 2]), tf.constant(labels, tf.int32))
        seen += np.bincount(ids, minlength=4)
    expected = np.exp(sampler.log_expected_count(tf.zeros([size, 2]), tf.constant(labels), tf.range(4)))
    np.testing.assert_allclose(expected, size * COUNTS / 10, rtol=1e-6)
    np.testing.assert_allclose(seen / 50, expected, rtol=0.06)


@pytest.mark.parametrize("num_negatives", [None, 5])
def test_a_batch_without_labels_has_no_candidates(num_negatives):
    ids, log_count = built(num_negatives).sample(tf.zeros([2, 2]), tf.constant([[-1], [-1]]))
    assert ids.shape == (0,) and log_count.shape == (0,)


def test_reproducible():
    labels = tf.reshape(tf.range(40) % 4, [40, 1])
    first, again = (built(8, seed=2).sample(tf.zeros([40, 2]), labels)[0].numpy() for _ in range(2))
    np.testing.assert_array_equal(first, again)
    sampler = built(8, seed=2)
    steps = [sampler.sample(tf.zeros([40, 2]), labels)[0].numpy() for _ in range(2)]
    assert (steps[0] != steps[1]).any()


def test_bad_arguments():
    with pytest.raises(ValueError, match="positive count for every class"):
        InBatch(None, counts=[1.0, 0.0])
    with pytest.raises(ValueError, match="num_negatives must be a positive integer"):
        InBatch(0, counts=COUNTS)
    with pytest.raises(ValueError, match="counts of 4 classes, but the head has 5"):
        InBatch(None, counts=COUNTS).build((5, 2))
