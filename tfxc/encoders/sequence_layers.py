"""Layers of sequence encoders: attention, positions and normalization."""

import tensorflow as tf

from tfxc._keras import keras, register
from tfxc._keras.weights import add_weight
from tfxc.arguments import positive_int
from tfxc.require import require


class SequenceLayer(keras.layers.Layer):
    """A layer from [B, T, D] to [B, T, D] that passes the mask on."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_output_shape(self, input_shape):
        return input_shape


@register
class CausalAttention(SequenceLayer):
    """Multi-head self-attention of each position to itself and to earlier ones of its history.

    A masked position ends a history. ``softmax(Q Kᵀ / √(D/H)) V`` for each of ``num_heads`` H, which must
    divide D. One matmul computes queries, keys and values. The softmax is in float32.

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
    """What to add to scores [B, H, T, T]: a large negative number for positions out of sight."""
    # It is finite: -inf would give NaN for a padded position, which sees nothing.
    blocked = -1e9 * (1 - tf.linalg.band_part(tf.ones([length, length]), -1, 0))
    if mask is None:
        return blocked
    history = history_numbers(mask)
    is_seen = history[:, :, tf.newaxis] == tf.where(mask, history, -1)[:, tf.newaxis]
    return blocked - 1e9 * tf.cast(tf.logical_not(is_seen), tf.float32)[:, tf.newaxis]


def history_numbers(mask):
    """Numbers int32 [B, T] of a row's histories: another begins behind each masked place."""
    return tf.cumsum(tf.cast(tf.logical_not(mask), tf.int32), axis=1)


@register
class Positions(SequenceLayer):
    """Scales item vectors by √D and adds a learnt vector for each of the T positions.

    The last item of each history has the last position, wherever in the row it stands. Sequences of another
    length than in ``build`` are a ValueError, or in a graph that learns it late an ``InvalidArgumentError``.
    """

    def build(self, input_shape):
        self.vectors = self.add_weight(name="vectors", shape=input_shape[1:], initializer="uniform")
        super().build(input_shape)

    def call(self, inputs, mask=None):
        length = self.vectors.shape[0]
        if inputs.shape[1] != length:
            inputs = _of_length(inputs, length)
        vectors = tf.convert_to_tensor(self.vectors)
        if mask is not None:
            with tf.control_dependencies([inputs]):  # the check of the length must run first
                history = history_numbers(mask)
            behind = length - tf.searchsorted(history, history, side="right")
            is_moved = tf.reduce_any(mask & (behind > 0))
            vectors = tf.cond(is_moved, lambda: _moved(vectors, behind), lambda: vectors[tf.newaxis])
        return inputs * inputs.shape[-1] ** 0.5 + vectors


def _moved(vectors, behind):
    """The vectors [B, T, D] of positions later by ``behind`` [B, T], the places behind their history."""
    every = tf.repeat(vectors[tf.newaxis], tf.shape(behind)[0], axis=0)  # whose gradient is dense
    return tf.gather(every, tf.range(vectors.shape[0]) + behind, batch_dims=1)


def _of_length(inputs, length):
    given = inputs.shape[1]
    made_for = f"The encoder was made for sequences of max_length={length} items, but these have"
    advice = "items: pad them with 0 in front, cut them to their last items, or make an encoder for them."
    if given is not None:
        raise ValueError(f"{made_for} {given} {advice}")
    given = tf.shape(inputs)[1]
    with tf.control_dependencies(require(tf.equal(given, length), made_for, given, advice)):
        return tf.ensure_shape(inputs, [None, length, None])


@register
class RMSNorm(SequenceLayer):
    """``x / sqrt(mean(x²)) · scale`` over the last axis, computed in float32 for any dtype of the layer.

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
