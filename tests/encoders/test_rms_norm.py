"""The norm against NumPy, also of halves."""

import numpy as np
import tensorflow as tf

from tfxc.encoders.rms_norm import RMSNorm


def test_divides_by_the_root_mean_square():
    inputs = np.random.default_rng(0).normal(size=(2, 3, 5)) * 7
    layer = RMSNorm()
    layer.build((None, 3, 5))
    scale = np.arange(1.0, 6.0)
    layer.set_weights([scale])
    want = inputs / np.sqrt(np.mean(inputs**2, axis=-1, keepdims=True)) * scale
    np.testing.assert_allclose(layer(tf.constant(inputs, tf.float32)), want, rtol=1e-4)
    assert np.all(layer(tf.zeros([1, 3, 5])) == 0)


def test_squares_of_halves_do_not_overflow():
    out = RMSNorm(dtype="float16")(tf.fill([1, 1, 4], tf.constant(1000.0, tf.float16)))
    assert out.dtype == tf.float16
    np.testing.assert_allclose(out, 1, rtol=1e-3)
