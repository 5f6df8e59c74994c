"""Samplers in shards: the distribution of one machine. Here all shards lie on this machine."""

import functools
import types

import numpy as np
import pytest
import tensorflow as tf
from sampler_checks import all_probs, built, head_of, p_value, queries

from tfxc._keras import IS_KERAS_3, keras
from tfxc._keras.weights import tf_variable
from tfxc.cluster.place import placed_sampler
from tfxc.cluster.placement import Shard
from tfxc.samplers import MIDX, Step, Uniform, Unigram

pytestmark = pytest.mark.both_keras

if IS_KERAS_3:
    pytest.skip("Keras 3 has no parameter servers", allow_module_level=True)

NUM_CLASSES, DIM, STARTS = 40, 6, [0, 7, 30]
SIZES = np.diff([*STARTS, NUM_CLASSES])
SHARDS = [Shard(start, tf.Variable(tf.zeros([size]))) for start, size in zip(STARTS, SIZES, strict=True)]
HEAD = types.SimpleNamespace(shards=SHARDS)
SAMPLERS = {
    "uniform": Uniform,
    "unigram": functools.partial(Unigram, counts=np.arange(NUM_CLASSES) % 5),
    "counted": Unigram,
    "midx": functools.partial(MIDX, num_codewords=3),
}


def table():
    random = np.random.default_rng(0)
    centres = random.normal(size=(4, DIM))[random.integers(4, size=NUM_CLASSES)]
    return (centres + 0.3 * random.normal(size=(NUM_CLASSES, DIM))).astype(np.float32)


def made(kind, num_negatives=20, seed=1, head=HEAD, **options):
    sampler = SAMPLERS[kind](num_negatives, seed=seed, **options)
    sampler = built(sampler if head is None else placed_sampler(sampler, head), NUM_CLASSES, DIM)
    sampler.sample(Step(tf.constant(queries(8, DIM, seed=5)), tf.constant([[3]] * 7 + [[-1]])))
    sampler.refresh(head_of(table()))
    return sampler


def step(num_queries=5):
    return Step(tf.constant(queries(num_queries, DIM)), tf.zeros([num_queries, 0], tf.int32))


@pytest.fixture(params=SAMPLERS)
def kind(request):
    return request.param


def test_the_distribution_is_that_of_one_machine(kind):
    query, cut, whole = queries(5, DIM), made(kind), made(kind, head=None)
    assert len(cut.parts) == 3
    vectors = table()
    for _ in range(2):  # the second time most classes did not change
        np.testing.assert_allclose(all_probs(cut, query), all_probs(whole, query), rtol=2e-5)
        np.testing.assert_allclose(all_probs(cut, query).sum(1), 1, rtol=1e-5)
        vectors[8] = 0
        for each in cut, whole:
            each.refresh(head_of(vectors))
    if kind == "midx":
        moments = cut.parts[0].queries.moments(), whole.queries.moments()
        for own, others in zip(*moments, strict=True):
            np.testing.assert_allclose(own, others, rtol=1e-5)
        # Queries do not travel to parts that nobody would ask for them.
        assert not any(np.any(tf_variable(own)) for part in cut.parts[1:] for own in part.queries.weights)


def test_draws_follow_it(kind):
    sampler, query = made(kind, 4000), queries(3, DIM)
    given = sampler.prepare(Step(tf.constant(query), tf.zeros([3, 0], tf.int32)))
    ids, log_expected_count = sampler.draw(given, [7, 8])
    probs = all_probs(sampler, query)
    for row, expected, count in zip(ids.numpy(), probs, log_expected_count.numpy(), strict=True):
        assert p_value(row, expected) > 1e-3
        np.testing.assert_allclose(np.exp(count), 4000 * expected[row], rtol=2e-5)


def test_one_set_of_draws_for_all_queries():
    draw = made("midx", shared=True).sample(step())
    assert draw.ids.shape == draw.log_expected_count.shape == (20,) and draw.ids.dtype == tf.int32


def test_a_batch_without_a_query(kind):
    sampler = made(kind)
    given = sampler.prepare(step(0))
    assert sampler.draw(given, [1, 2])[0].shape == (0, 20)
    assert sampler.draw_of(1, given, *sampler.deal(given, [1, 2])[1])[0].shape == (0, 0)


def test_a_built_sampler_is_refused(kind):
    with pytest.raises(ValueError, match="is built, but its classes are to lie with the rows"):
        placed_sampler(made(kind, head=None), HEAD)


def test_a_config_is_that_of_the_sampler(kind):
    sampler = made(kind)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(sampler))
    assert type(again) in (Uniform, Unigram, MIDX) and again.seed == sampler.seed and not again.built
