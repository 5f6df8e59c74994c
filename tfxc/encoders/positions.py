"""Vectors for the positions in a sequence."""

import tensorflow as tf

from tfxc._keras import register
from tfxc.encoders.sequence_layer import SequenceLayer
from tfxc.require import require


@register
class Positions(SequenceLayer):
    """Scales item vectors by √D and adds a learnt vector for each of the T positions.

    Raises:
        tf.errors.InvalidArgumentError: for sequences of another length than in ``build``.

    Example:
        >>> Positions()(tf.zeros([2, 5, 8])).shape
        TensorShape([2, 5, 8])
    """

    def build(self, input_shape):
        self.vectors = self.add_weight(name="vectors", shape=input_shape[1:], initializer="uniform")
        super().build(input_shape)

    def call(self, inputs):
        length = self.vectors.shape[0]
        if inputs.shape[1] != length:  # unknown, or different
            inputs = _of_length(inputs, length)
        return inputs * inputs.shape[-1] ** 0.5 + self.vectors


def _of_length(inputs, length):
    given = tf.shape(inputs)[1]
    checked = require(
        tf.equal(given, length),
        f"The encoder was made for sequences of max_length={length} items, but these have",
        given,
        "items: pad them with 0 in front, cut them to their last items, or make an encoder for them.",
    )
    with tf.control_dependencies(checked):
        return tf.ensure_shape(inputs, [None, length, None])
