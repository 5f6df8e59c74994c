"""Causal self-attention."""

import tensorflow as tf

from tfxc._keras import register
from tfxc.arguments import positive_int
from tfxc.encoders.sequence_layer import SequenceLayer


@register
class CausalAttention(SequenceLayer):
    """Multi-head self-attention of each position to itself and to earlier, unmasked ones.

    ``softmax(Q Kᵀ / √(D/H)) V`` for each of H heads. One matmul computes queries, keys and values. The
    softmax is in float32.

    Args:
        num_heads: H, which must divide D.

    Raises:
        ValueError: for any other number of heads.

    Example:
        >>> CausalAttention(num_heads=2)(tf.zeros([3, 5, 8])).shape
        TensorShape([3, 5, 8])

    Reference:
        Vaswani et al., "Attention Is All You Need", 2017.
    """

    def __init__(self, num_heads, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = positive_int(num_heads, "num_heads")

    def get_config(self):
        return {**super().get_config(), "num_heads": self.num_heads}

    def build(self, input_shape):
        dim = input_shape[-1]
        if dim % self.num_heads:
            raise ValueError(
                f"num_heads must divide dim, but {self.num_heads} heads do not divide {dim}: use "
                f"dim={-(-dim // self.num_heads) * self.num_heads}, or another number of heads."
            )
        self.project = self.add_weight(name="project", shape=(dim, 3 * dim), initializer="glorot_uniform")
        self.combine = self.add_weight(name="combine", shape=(dim, dim), initializer="glorot_uniform")
        super().build(input_shape)

    def call(self, inputs, mask=None):
        length, dim = inputs.shape[1:]
        if mask is not None:
            # The check of the length must run first, as its error is clearer.
            with tf.control_dependencies([inputs]):
                mask = tf.identity(mask)
        shape = [-1, length, 3, self.num_heads, dim // self.num_heads]
        parts = tf.reshape(tf.tensordot(inputs, self.project, 1), shape)
        query, key, value = tf.unstack(tf.transpose(parts, [2, 0, 3, 1, 4]))
        scores = tf.matmul(query * (dim // self.num_heads) ** -0.5, key, transpose_b=True)
        weights = tf.nn.softmax(tf.cast(scores, tf.float32) + _blocked(length, mask))
        mixed = tf.transpose(tf.matmul(tf.cast(weights, value.dtype), value), [0, 2, 1, 3])
        return tf.tensordot(tf.reshape(mixed, [-1, length, dim]), self.combine, 1)


def _blocked(length, mask):
    """Returns what to add to scores [B, H, T, T]: a large negative number for positions out of sight.

    The number is finite, as -inf would give NaN for a padded position, which sees nothing.
    """
    blocked = -1e9 * (1 - tf.linalg.band_part(tf.ones([length, length]), -1, 0))
    if mask is None:
        return blocked
    return blocked - 1e9 * tf.cast(tf.logical_not(mask), tf.float32)[:, tf.newaxis, tf.newaxis]
