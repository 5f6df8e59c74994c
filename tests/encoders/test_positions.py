"""A vector for each position on top of the scaled items."""

import numpy as np
import pytest
import tensorflow as tf

from tfxc.encoders import esasrec, sasrec
from tfxc.encoders.positions import Positions


def test_adds_a_vector_for_each_position_to_the_scaled_items():
    layer, inputs = Positions(), tf.random.normal([2, 3, 4], seed=1)
    out = layer(inputs).numpy()
    (vectors,) = layer.get_weights()
    assert vectors.shape == (3, 4)
    np.testing.assert_allclose(out, 2 * inputs.numpy() + vectors, rtol=1e-5)


def test_sequences_of_another_length_are_refused():
    message = "made for sequences of max_length=3 items, but these have 4 items: pad them"
    layer = Positions()
    layer(tf.zeros([2, 3, 4]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        layer(tf.zeros([2, 4, 4]))


@pytest.mark.parametrize("make", [sasrec, esasrec])
def test_a_model_says_which_length_it_was_made_for(make):
    encoder = make(10, max_length=3, dim=4)
    encode = tf.function(encoder, input_signature=[tf.TensorSpec([None, None], tf.int32)])
    assert encode(tf.ones([2, 3], tf.int32)).shape == (2, 3, 4)
    for _ in range(50):  # ops of a graph run in any order: none may fail before the check
        with pytest.raises(tf.errors.InvalidArgumentError, match="these have"):
            encode(tf.ones([2, 4], tf.int32))
