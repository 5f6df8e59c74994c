"""A vector for each position on top of the scaled items."""

import numpy as np
import tensorflow as tf

from tfxc.encoders.positions import Positions


def test_adds_a_vector_for_each_position_to_the_scaled_items():
    layer, inputs = Positions(), tf.random.normal([2, 3, 4], seed=1)
    out = layer(inputs).numpy()
    (vectors,) = layer.get_weights()
    assert vectors.shape == (3, 4)
    np.testing.assert_allclose(out, 2 * inputs.numpy() + vectors, rtol=1e-5)
