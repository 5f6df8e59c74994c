"""Several samplers at once."""

import numpy as np
import pytest
import tensorflow as tf
from sampler_checks import all_probs, clustered, head_of, labels_for, log_count, p_value, queries, sample

from tfxc._keras import tf_variable
from tfxc.samplers import DNS, MIDX, InBatch, LogUniform, Mixture, Uniform

NUM_CLASSES, DIM = 40, 5


def parts():
    return [MIDX(6, num_codewords=4, seed=1), LogUniform(3, seed=2), Uniform(2, shared=True, seed=3)]


def built(samplers):
    mixture = Mixture(samplers)
    mixture.build((NUM_CLASSES, DIM))
    mixture.refresh(head_of(clustered(NUM_CLASSES, DIM)))
    return mixture


def test_the_expected_count_is_the_sum_of_the_parts():
    mixture, query = built(parts()), queries(2, DIM)
    ids = tf.tile(tf.range(NUM_CLASSES)[tf.newaxis], [2, 1])
    midx = all_probs(mixture.samplers[0], query)
    assert midx.max() > 3 / NUM_CLASSES  # refreshed with the mixture
    zipf, uniform = all_probs(mixture.samplers[1], query), 1 / NUM_CLASSES
    counts = np.exp(log_count(mixture, query, labels_for(query), ids))
    np.testing.assert_allclose(counts, 6 * midx + 3 * zipf + 2 * uniform, rtol=1e-4)
    np.testing.assert_allclose(counts.sum(1), 11, rtol=1e-4)


def test_draws_follow_the_expected_counts():
    mixture = built([MIDX(6, num_codewords=4, seed=1), LogUniform(3, seed=2)])
    query = np.repeat(queries(1, DIM), 20_000, axis=0)
    ids, counted = sample(mixture, tf.constant(query), labels_for(query))
    assert ids.shape == counted.shape == (20_000, 9)
    every = tf.range(NUM_CLASSES)[tf.newaxis]
    counts = np.exp(log_count(mixture, query[:1], labels_for(query[:1]), every))[0]
    np.testing.assert_allclose(counted, np.log(counts)[ids], atol=1e-4)
    assert p_value(ids.numpy().ravel(), counts) > 1e-3


def test_shared_only_if_all_parts_are():
    query, labels = queries(3, DIM), tf.constant([[4], [2], [-1]])
    some = built(parts())
    assert not some.shared and sample(some, tf.constant(query), labels)[0].shape == (3, 11)
    batch = InBatch(None, counts=np.ones(NUM_CLASSES))
    every = built([Uniform(2, shared=True, seed=3), batch])
    ids, counted = sample(every, tf.constant(query), labels)
    assert every.shared and ids.numpy()[2:].tolist() == [4, 2]
    np.testing.assert_allclose(np.exp(counted), (2 + 2) / NUM_CLASSES, rtol=1e-6)


def test_a_mixture_of_mixtures_counts_once():
    inner = Mixture([Uniform(2, seed=1), Uniform(3, seed=2)])
    outer = built([inner, Uniform(5, seed=3)])
    query = queries(1, DIM)
    ids, counted = sample(outer, tf.constant(query), labels_for(query))
    assert ids.shape == (1, 10)
    np.testing.assert_allclose(np.exp(counted), 10 / NUM_CLASSES, rtol=1e-6)


def test_reproducible_and_each_part_keeps_its_counter():
    query = queries(30, DIM)
    draws = []
    for _ in range(2):
        mixture = built(parts())
        draws.append([sample(mixture, tf.constant(query), labels_for(query))[0].numpy() for _ in range(2)])
        assert [int(tf_variable(sampler.counter)) for sampler in mixture.samplers] == [2, 2, 2]
    np.testing.assert_array_equal(*draws)
    assert (draws[0][0] != draws[0][1]).any()


def test_fewer_than_two_samplers_are_refused():
    with pytest.raises(ValueError, match="two or more samplers, but got 1"):
        Mixture([Uniform(2)])


def test_a_part_without_expected_counts_is_refused():
    with pytest.raises(ValueError, match="DNS knows no expected counts"):
        Mixture([Uniform(2), DNS(2, num_candidates=4)])


def test_each_learnable_part_learns_from_all_candidates():
    mixture, query = (
        built([MIDX(6, num_codewords=4, seed=1, learnable=True), Uniform(2, seed=3)]),
        tf.constant(queries(8, DIM)),
    )
    assert mixture.learns and not built(parts()).learns
    labels = labels_for(query)
    ids, counted = sample(mixture, query, labels)
    before = [tf_variable(codebook).numpy() for codebook in mixture.samplers[0].codebooks]
    mixture.learn(query, labels, (tf.zeros([8, 1]), tf.zeros([8, 1])), ids, (tf.zeros([8, 8]), counted))
    for codebook, old in zip(mixture.samplers[0].codebooks, before, strict=True):
        assert (tf_variable(codebook).numpy() != old).any()
