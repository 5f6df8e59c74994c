import numpy as np
import pytest
import tensorflow as tf
from long_cases import long_after
from sampler_checks import built, queries, softmax

from tfxc._keras.weights import tf_variable
from tfxc.samplers.moments import Moments, QueryMoments, log_frequency


def running(dim):
    return built(QueryMoments(), dim)


def test_running_moments_by_hand():
    moments = running(2)
    for step, query in enumerate(([[1.0, 2.0], [3.0, 0.0]], np.zeros([0, 2]), [[5.0, 4.0]]), 1):
        moments.follow(tf.constant(query, tf.float32), step)
    mean, variance = moments.moments()
    np.testing.assert_allclose(mean, [3.0, 2.0], rtol=1e-6)  # the third goes by a third
    np.testing.assert_allclose(variance, [35 / 3 - 9, 20 / 3 - 4], rtol=1e-5)
    moments.follow(tf.constant([[103.0, 2.0]]), 5000)
    np.testing.assert_allclose(moments.moments().mean, [4.0, 2.0], rtol=1e-5)


def test_no_step_before_the_first_query_leaves_finite_moments():
    moments = running(2)
    moments.follow(tf.constant([[1.0, 2.0]]), 0)
    np.testing.assert_allclose(moments.moments().mean, [1.0, 2.0])


def test_rounding_makes_no_negative_variance():
    moments = running(1)
    tf_variable(moments.mean).assign([3.0])
    tf_variable(moments.mean_square).assign([8.9999])
    assert moments.moments().variance == 0


def test_before_a_query_all_classes_are_as_frequent():
    vectors = queries(5, 3)
    frequencies = log_frequency(vectors, running(3).moments(), Moments.of(vectors))
    np.testing.assert_array_equal(frequencies, np.zeros(5))


def test_without_spread_it_is_the_score_of_the_mean_query():
    vectors, mean = queries(5, 3), queries(1, 3, seed=1)[0]
    frequencies = log_frequency(vectors, Moments(mean, np.zeros(3)), Moments.of(vectors))
    np.testing.assert_allclose(frequencies - frequencies[0], (vectors - vectors[0]) @ mean, atol=1e-5)


@pytest.mark.traced
@pytest.mark.parametrize("spread", long_after(1, 1.0, 0.3))
def test_the_mean_of_the_softmaxes_of_normal_queries(spread):
    """20,000 classes are normal as well; three of them are looked at, the last far away."""
    random = np.random.default_rng(0)
    classes = 0.5 + 0.7 * random.normal(size=(20_000, 4)) * [1, 0.5, 1, 2]
    seen = random.normal(size=4) + spread * random.normal(size=(2000, 4)) * [1, 2, 0, 0.5]
    vectors = np.concatenate([classes[:2], [[2.0, 2.0, 0.0, 1.0]]])
    classes[2] = vectors[2]
    want = np.log(softmax(seen @ classes.T)[:, :3].mean(0))
    got = log_frequency(vectors, Moments.of(seen), Moments.of(classes))
    np.testing.assert_allclose(got - got[0], want - want[0], atol=0.15)
