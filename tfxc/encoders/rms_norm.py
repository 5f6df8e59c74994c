"""Normalization by root mean square."""

import tensorflow as tf

from tfxc._keras import register
from tfxc._keras.weights import add_weight
from tfxc.encoders.sequence_layer import SequenceLayer


@register
class RMSNorm(SequenceLayer):
    """``x / sqrt(mean(x²)) · scale`` over the last axis, computed in float32 for any dtype of the layer.

    Example:
        >>> RMSNorm()(tf.constant([[[3.0, -3.0]]])).numpy().round(3).tolist()
        [[[1.0, -1.0]]]

    Reference:
        Zhang, Sennrich, "Root Mean Square Layer Normalization", 2019.
    """

    def build(self, input_shape):
        self.scale = add_weight(self, "scale", input_shape[-1:], "ones")
        super().build(input_shape)

    def call(self, inputs):
        values = tf.cast(inputs, tf.float32)
        mean_square = tf.reduce_mean(tf.square(values), axis=-1, keepdims=True)
        return tf.cast(values * (tf.math.rsqrt(mean_square + 1e-6) * self.scale), inputs.dtype)
