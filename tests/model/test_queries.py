"""What an encoder gives is checked before head and sampler are built of it."""

import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import DIM, features, make_model

import tfxc
from tfxc._keras import keras
from tfxc.model.queries import check_queries, last_position, query_width


class Gives(keras.Model):
    """An encoder of any output."""

    def __init__(self, give):
        super().__init__()
        self.give = give

    def call(self, x):
        return self.give(x)


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda x: x[:, 0], r"but gave float32 \(4,\)"),
        (lambda x: x[:, tf.newaxis, tf.newaxis], rf"but gave float32 \(4, 1, 1, {DIM}\)"),
        (lambda x: tf.cast(x, tf.int32), rf"but gave int32 \(4, {DIM}\)"),
        (lambda x: {"query": x}, "but gave a dict"),
    ],
)
def test_other_outputs_are_refused(give, message):
    model = tfxc.ExtremeClassifier(Gives(give), tfxc.layers.DenseHead(50))
    with pytest.raises(ValueError, match=message):
        model.queries(features(4))


def test_queries_are_taken():
    for shape in ([4, 3], [4, 2, 3], [0, 3]):
        query = tf.zeros(shape, tf.bfloat16)
        assert check_queries(query) is query


def test_outputs_that_are_known_are_checked_at_once():
    x = keras.Input((DIM,))
    for outputs, message in (
        ([x, x], r"gives a list of 2: make keras.Model\(encoder.inputs, query\)"),
        (keras.layers.Reshape((1, 1, DIM))(x), r"gives \(None, 1, 1, "),
    ):
        with pytest.raises(ValueError, match=message):
            make_model(encoder=keras.Model(x, outputs))
    assert query_width(keras.Model(x, keras.layers.Dense(3)(x))) == 3
    assert query_width(Gives(lambda x: x)) is None


def test_a_width_that_is_not_known_is_asked_for_where_nothing_is_built():
    def hidden(x):
        return tf.ensure_shape(tf.py_function(lambda x: x, [x], tf.float32), [None, None])

    x = features(4)
    model = tfxc.ExtremeClassifier(Gives(hidden), tfxc.layers.DenseHead(50), k=2)
    with pytest.raises(ValueError, match="whose width is not known: call the model on one batch first"):
        tf.function(model.queries)(x)
    want = model(x)["ids"]
    np.testing.assert_array_equal(model.rank(x, 2)["ids"], want)


def test_the_last_position_that_is_not_masked():
    ids = tf.constant([[1, 2, 0], [3, 0, 0], [0, 0, 4], [0, 0, 0]])
    embedded = keras.layers.Embedding(5, 2, mask_zero=True)(ids)
    want = np.stack([embedded[0, 1], embedded[1, 0], embedded[2, 2], embedded[3, 0]])
    np.testing.assert_array_equal(last_position(embedded), want)
    np.testing.assert_array_equal(last_position(tf.identity(embedded)), embedded[:, -1])
