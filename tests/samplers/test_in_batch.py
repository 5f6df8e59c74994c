import numpy as np
import pytest
import tensorflow as tf
from memory_checks import with_peak
from sampler_checks import log_expected_count, p_value, sample

from tfxc.samplers import InBatch, PoolCounts, Step

COUNTS = np.array([1.0, 2.0, 3.0, 4.0])


def built(num_negatives, counts=COUNTS, smoothing=0, **options):
    sampler = InBatch(num_negatives, counts=counts, smoothing=smoothing, **options)
    sampler.build((4, 2))
    return sampler


def test_all_labels_once_each_but_a_rows_own_slots_are_empty():
    labels = tf.constant([[3, -1], [1, 3], [-1, -1]])
    ids, counted = sample(built(None), tf.zeros([3, 2]), labels)
    assert ids.numpy().tolist() == [3, 1, 3]
    others = np.array([[np.inf, 2, 2], [1, np.inf, np.inf], [3, 3, 3]])
    np.testing.assert_allclose(np.exp(counted), others * COUNTS[[3, 1, 3]] / 10, rtol=1e-6)


def test_counts_of_some_rows_and_of_all():
    labels = tf.constant([[3, -1], [1, 3], [-1, -1]])
    counts = built(None).sample(Step(tf.zeros([3, 2]), labels)).log_expected_count
    assert isinstance(counts, PoolCounts) and counts.shape == (3, 3)
    every = tf.convert_to_tensor(counts)
    np.testing.assert_array_equal(counts.of(tf.constant([2, 1])), tf.gather(every, [2, 1]))
    np.testing.assert_array_equal(tf.exp(counts), tf.exp(every))
    np.testing.assert_array_equal(np.exp(counts), np.exp(every.numpy()))


def test_a_large_batch_takes_no_matrix():
    step = Step(tf.zeros([8192, 2]), tf.zeros([8192, 1], tf.int32))
    assert with_peak(lambda: built(None).sample(step))[1] < 8192**2  # bytes: a quarter of a matrix of floats


def test_draws_are_uniform_over_the_batch_and_empty_for_their_own_row():
    labels = tf.constant([[0], [1], [1], [3]])
    ids, counted = sample(built(100_000, seed=1), tf.zeros([4, 2]), labels)
    assert p_value(ids.numpy(), np.array([0.25, 0.5, 0, 0.25])) > 1e-3
    empty = np.isinf(counted.numpy())
    assert (empty.sum(0) == 1).all()  # every slot is some row's own
    assert p_value(empty.argmax(0), np.ones(4)) > 1e-3
    want = np.broadcast_to(np.log(75_000 * COUNTS / 10)[ids], empty.shape)
    np.testing.assert_allclose(np.asarray(counted)[~empty], want[~empty], rtol=1e-6)


@pytest.mark.parametrize("num_negatives", [None, 7])
def test_slots_of_the_same_class_from_other_rows_are_draws(num_negatives):
    ids, counted = sample(built(num_negatives, seed=1), tf.zeros([3, 2]), tf.constant([[2]] * 3))
    assert set(ids.numpy()) == {2}
    empty = np.isposinf(counted)
    np.testing.assert_array_equal(empty.sum(0), 1)  # each slot is one row's own
    num_draws = 2 if num_negatives is None else 7 * 2 / 3
    np.testing.assert_allclose(np.exp(counted)[~empty], num_draws * 0.3, rtol=1e-6)


@pytest.mark.parametrize("num_negatives", [None, 5])
def test_a_batch_without_labels_has_no_candidates(num_negatives):
    ids, counted = sample(built(num_negatives), tf.zeros([2, 2]), tf.constant([[-1], [-1]]))
    assert ids.shape == (0,) and counted.shape == (2, 0)


def test_a_rare_class_counts_as_often_as_it_is_a_label_and_one_without_labels_as_the_smoothing():
    sampler = built(None, counts=[1, 7, 0, 2], smoothing=3)
    found = np.exp(sampler.log_expected_count(tf.constant([[1], [1]]), tf.range(4)))
    np.testing.assert_allclose(found, [[0.1, 0.7, 0.3, 0.2]] * 2, rtol=1e-6)
    sampler.classes_changed(None, np.array([0, 1, 3]))  # to others: no class has a label
    found = np.exp(sampler.log_expected_count(tf.constant([[1], [1]]), tf.range(4)))
    np.testing.assert_allclose(found, 0.25, rtol=1e-6)
    running = InBatch(smoothing=3)
    running.build((4, 2))
    running.observe(Step(tf.zeros([4, 2]), tf.constant([[0], [1], [1], [1]])))
    found = np.exp(running.log_expected_count(tf.constant([[1], [1]]), tf.range(4)))
    np.testing.assert_allclose(found, [[0.25, 0.75, 0.75, 0.75]] * 2, rtol=1e-6)


def test_bad_arguments():
    with pytest.raises(ValueError, match="a positive one with the smoothing of 0"):
        InBatch(counts=[1.0, 0.0], smoothing=0)
    with pytest.raises(ValueError, match="smoothing must be positive"):
        InBatch(smoothing=0)
    with pytest.raises(ValueError, match=r"smoothing must be in \[0, inf\)"):
        InBatch(counts=COUNTS, smoothing=-1)
    with pytest.raises(ValueError, match="num_negatives must be an integer of at least 1"):
        InBatch(0, counts=COUNTS)
    with pytest.raises(ValueError, match="counts of 4 classes, but the head has 5"):
        InBatch(counts=COUNTS).build((5, 2))
    with pytest.raises(ValueError, match="InBatch takes no shared="):
        InBatch(counts=COUNTS, shared=True)
    with pytest.raises(ValueError, match="InBatch has no log_prob"):
        built(None).log_prob(tf.zeros([1, 2]), tf.constant([[1]]))


def test_expected_count_is_right_over_batches_drawn_by_frequency():
    sampler, random, size = built(None), np.random.default_rng(0), 400
    seen = np.zeros(4)
    for _ in range(50):
        labels = random.choice(4, size=(size, 1), p=COUNTS / 10)
        ids, _ = sample(sampler, tf.zeros([size, 2]), tf.constant(labels, tf.int32))
        seen += np.bincount(ids, minlength=4)
    expected = np.exp(log_expected_count(sampler, tf.zeros([size, 2]), labels.astype(np.int32), tf.range(4)))
    np.testing.assert_allclose(expected[0], (size - 1) * COUNTS / 10, rtol=1e-6)
    np.testing.assert_allclose(seen / 50, expected[0], rtol=0.06)
