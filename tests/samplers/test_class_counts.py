import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from sampler_checks import built

from tfxc._keras.weights import tf_variable
from tfxc.samplers import InBatch, Step, Unigram
from tfxc.samplers.class_counts import RunningCounts, as_the_rarest, gather_counts


def test_padding_reads_class_0():
    assert gather_counts(tf.Variable([5.0, 6.0]), tf.constant([[1, -1]]), "it").numpy().tolist() == [
        [6.0, 5.0]
    ]


@pytest.mark.traced
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("make", [lambda: Unigram(2, counts="saved"), lambda: InBatch(2, counts="saved")])
def test_saved_counts_that_were_never_loaded_fail(make, traced):
    sampler = built(make(), 6, 4)
    ask = tf.function(sampler.sample) if traced else sampler.sample
    with pytest.raises(tf.errors.InvalidArgumentError, match="load the weights it was saved with"):
        ask(Step(tf.zeros([2, 4]), tf.constant([[1], [0]])))


@pytest.mark.traced
@pytest.mark.parametrize("traced", [False, True])
def test_running_counts_are_those_of_all_labels_so_far(traced):
    counts = built(RunningCounts(smoothing=0.5), 5)
    np.testing.assert_allclose(np.exp(counts.log_probs(tf.range(5))), 0.5, rtol=1e-6)
    count = tf.function(counts.count) if traced else counts.count
    for labels in ([[0, 1], [0, 0], [-1, 3]], [[1, -1], [0, -1], [-1, -1]], [[-1, -1]] * 3):
        count(tf.constant(labels))
    assert tf_variable(counts.occurrences).numpy().tolist() == [4, 2, 0, 1, 0]
    assert int(tf_variable(counts.total).numpy()) == 7
    found = np.exp(counts.log_probs(tf.constant([[0, 4], [3, 3]])))
    np.testing.assert_allclose(found, np.array([[4, 0.5], [1, 1]]) / 7, rtol=1e-6)


def test_running_counts_beyond_the_integers_of_float32():
    """Where one more label would no longer change a float32."""
    counts = built(RunningCounts(smoothing=1.0), 2)
    tf_variable(counts.occurrences).assign([2**24, 2**33])
    tf_variable(counts.total).assign(2**24 + 2**33)
    counts.count(tf.constant([0, 1]))
    assert tf_variable(counts.occurrences).numpy().tolist() == [2**24 + 1, 2**33 + 1]
    np.testing.assert_allclose(np.exp(counts.log_probs(tf.range(2))), np.array([1, 512]) / 513, rtol=1e-6)


@pytest.mark.parametrize("sampler", [Unigram, InBatch])
def test_pandas_counts_by_falling_frequency_are_refused(sampler):
    counts = pd.Series([0, 1, 1, 2, 2, 2]).value_counts()
    with pytest.raises(ValueError, match=r"counts .*: pass counts.reindex"):
        sampler(2, counts=counts)
    given = sampler(2, counts=counts.reindex(range(4), fill_value=0)).counts
    assert given.tolist() == [2, 3, 4, 1]


@pytest.mark.parametrize("sampler", [Unigram, InBatch])
def test_probabilities_are_no_counts(sampler):
    probabilities = [0.7, 0.2, 0.1]
    with pytest.raises(ValueError, match="3 numbers that sum to 1, as probabilities do: .* smoothing=0"):
        sampler(2, counts=probabilities)
    for given in ({"counts": probabilities, "smoothing": 0}, {"counts": [0, 1, 0]}, {"counts": [0.5, 2.25]}):
        sampler(2, **given)


def test_new_classes_are_as_frequent_as_the_rarest_of_the_others():
    frequencies = tf.Variable([0.5, 0.0, 0.1, 0.4, 0.9])
    np.testing.assert_allclose(as_the_rarest(frequencies, np.array([1, 4])), [0.5, 0.1, 0.1, 0.4, 0.1])
