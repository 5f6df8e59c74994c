import numpy as np
import pytest
import tensorflow as tf
from long_cases import long_after
from sampler_checks import all_probs, built, check_distribution, queries, sample

from tfxc.samplers import LogUniform, Uniform


@pytest.mark.parametrize("kind", [Uniform, LogUniform])
@pytest.mark.parametrize("num_classes", long_after(3, 1, 50, 20_000, 2, 1000))
def test_distribution(kind, num_classes):
    sampler = built(kind(10, seed=3), num_classes, 4)
    check_distribution(sampler, 4, num_draws=1_000_000)


def test_probabilities_by_hand():
    uniform, zipf = (built(kind(2, seed=0), 3, 1) for kind in (Uniform, LogUniform))
    np.testing.assert_allclose(all_probs(uniform, queries(1, 1)), [[1 / 3] * 3], rtol=1e-6)
    want = np.log([2, 1.5, 4 / 3]) / np.log(4)
    np.testing.assert_allclose(all_probs(zipf, queries(1, 1)), [want], rtol=1e-6)


def test_every_class_above_the_float_range_can_come():
    sampler = built(Uniform(100_000, shared=True, seed=5), 40_000_000, 1)
    ids = sample(sampler, tf.zeros([1, 1]), tf.zeros([1, 1], tf.int32))[0].numpy()
    # A float32 uniform has 2^23 values: it would give multiples of about 5 only.
    assert abs((ids % 2).mean() - 0.5) < 0.01 and ids.max() > 39_900_000


def test_zipf_log_prob_of_a_rare_class_keeps_its_precision():
    sampler = built(LogUniform(1, seed=0), 10_000_000, 1)
    rare = sampler.log_prob(tf.zeros([1, 1]), tf.constant([[9_999_999]])).numpy()[0, 0]
    np.testing.assert_allclose(rare, np.log(np.log1p(1e-7) / np.log(10_000_001)), rtol=1e-6)


@pytest.mark.parametrize("bad", [0, -1, 2.5, True, None])
def test_number_of_negatives_is_checked(bad):
    with pytest.raises(ValueError, match=f"num_negatives must be an integer of at least 1, but got {bad}"):
        Uniform(bad)


def test_default_seed_follows_the_global_one():
    from tfxc._keras import keras

    keras.utils.set_random_seed(4)
    first, second = Uniform(2), Uniform(2)
    keras.utils.set_random_seed(4)
    assert Uniform(2).seed == first.seed != second.seed
