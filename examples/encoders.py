"""Sequence encoders: items seen so far [B, T] -> queries [B, T, D], one a position.

Item ids are class id + 1; 0 is padding. The embedding is called "item_embedding", so a head can share its
table: ``tfxc.layers.DenseHead(num_classes, tied_to="item_embedding", row_offset=1)``.
"""

import tensorflow as tf

from tfxc._keras import keras

layers = keras.layers
register = keras.saving.register_keras_serializable(package="tfxc_examples")


def add_arguments(add):
    """The options of the encoders and of the batches they read."""
    add("--dim", type=int, default=64, help="width of all layers, of queries and of class vectors")
    add("--num-blocks", type=int, default=2, help="layers")
    add("--dropout", type=float, default=0.2)
    add("--max-length", type=int, default=32, help="items a model reads")
    add("--batch-size", type=int, default=32, help="sequences a step")


def sasrec(num_classes, max_length, dim=64, num_blocks=2, num_heads=1, dropout=0.2):
    """Self-attention over the sequence: each position sees itself and what came before.

    Pre-normalised by root mean square and without dropout inside the attention: on a CPU half the cost
    of the paper's form.

    Reference: Kang, McAuley, "Self-Attentive Sequential Recommendation", 2018.
    """
    items = keras.Input((max_length,), dtype="int32", name="items")
    hidden = _embedding(num_classes, dim)(items)
    hidden = layers.Dropout(dropout)(Positions(name="positions")(hidden))
    for _ in range(num_blocks):
        attended = CausalAttention(num_heads)(RMSNorm()(hidden))
        hidden = layers.Add()([hidden, layers.Dropout(dropout)(attended)])  # unlike +, passes the mask on
        inner = layers.Dense(dim, activation="relu")(RMSNorm()(hidden))
        inner = layers.Dropout(dropout)(layers.Dense(dim)(layers.Dropout(dropout)(inner)))
        hidden = layers.Add()([hidden, inner])
    return keras.Model(items, RMSNorm()(hidden), name="sasrec")


def gru4rec(num_classes, max_length, dim=64, num_blocks=1, dropout=0.2):
    """Gated recurrent units over the sequence.

    Reference: Hidasi et al., "Session-based Recommendations with Recurrent Neural Networks", 2016.
    """
    items = keras.Input((max_length,), dtype="int32", name="items")
    hidden = layers.Dropout(dropout)(_embedding(num_classes, dim)(items))
    for _ in range(num_blocks):
        hidden = layers.GRU(dim, return_sequences=True)(hidden)
    return keras.Model(items, layers.Dense(dim)(layers.Dropout(dropout)(hidden)), name="gru4rec")


def lstm(num_classes, max_length, dim=200, num_blocks=2, dropout=0.2, *, batch_size):
    """LSTM layers that carry their state from batch to batch, for ``tfxc.data.stream_dataset``.

    Reference: Zaremba, Sutskever, Vinyals, "Recurrent Neural Network Regularization", 2014.
    """
    items = keras.Input((max_length,), batch_size=batch_size, dtype="int32", name="items")
    # No mask: padding stands at the streams' very end alone, and masked steps cost more.
    hidden = layers.Embedding(num_classes + 1, dim, name="item_embedding")(items)
    # Vectors that suit a softmax are small: unscaled, the LSTM learns little more than frequencies at first.
    hidden = layers.Rescaling(dim**0.5)(hidden)
    for _ in range(num_blocks):
        hidden = layers.Dropout(dropout)(hidden)
        hidden = layers.LSTM(dim, return_sequences=True, stateful=True)(hidden)
    return keras.Model(items, layers.Dropout(dropout)(hidden), name="lstm")


def _embedding(num_classes, dim):
    return layers.Embedding(num_classes + 1, dim, mask_zero=True, name="item_embedding")


class _SequenceLayer(layers.Layer):
    """[B, T, D] to [B, T, D], the mask passed on."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_output_shape(self, input_shape):
        return input_shape


@register
class Positions(_SequenceLayer):
    """Scales the item vectors by sqrt(D) and adds a learned vector for each position."""

    def build(self, input_shape):
        self.vectors = self.add_weight(name="vectors", shape=input_shape[1:], initializer="uniform")
        super().build(input_shape)

    def call(self, inputs):
        return inputs * inputs.shape[-1] ** 0.5 + self.vectors


@register
class RMSNorm(_SequenceLayer):
    """``x / sqrt(mean(x²)) · scale``.

    Reference: Zhang, Sennrich, "Root Mean Square Layer Normalization", 2019.
    """

    def build(self, input_shape):
        self.scale = self.add_weight(name="scale", shape=input_shape[-1:], initializer="ones")
        super().build(input_shape)

    def call(self, inputs):
        mean_square = tf.reduce_mean(tf.square(inputs), axis=-1, keepdims=True)
        return inputs * (tf.math.rsqrt(mean_square + 1e-6) * self.scale)


@register
class CausalAttention(_SequenceLayer):
    """Multi-head self-attention to earlier, unmasked positions; one matmul for queries, keys and values."""

    def __init__(self, num_heads, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads

    def get_config(self):
        return {**super().get_config(), "num_heads": self.num_heads}

    def build(self, input_shape):
        length, dim = input_shape[1:]
        self.project = self.add_weight(name="project", shape=(dim, 3 * dim), initializer="glorot_uniform")
        self.combine = self.add_weight(name="combine", shape=(dim, dim), initializer="glorot_uniform")
        self.future = -1e9 * (1 - tf.linalg.band_part(tf.ones([length, length]), -1, 0))
        super().build(input_shape)

    def call(self, inputs, mask=None):
        length, dim = inputs.shape[1:]
        shape = [-1, length, 3, self.num_heads, dim // self.num_heads]
        parts = tf.reshape(tf.tensordot(inputs, self.project, 1), shape)
        query, key, value = tf.unstack(tf.transpose(parts, [2, 0, 3, 1, 4]))
        blocked = tf.cast(self.future, inputs.dtype)
        if mask is not None:
            blocked += -1e9 * tf.cast(tf.logical_not(mask), inputs.dtype)[:, tf.newaxis, tf.newaxis]
        scores = tf.matmul(query * (dim // self.num_heads) ** -0.5, key, transpose_b=True) + blocked
        mixed = tf.matmul(tf.nn.softmax(scores), value)
        mixed = tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [-1, length, dim])
        return tf.tensordot(mixed, self.combine, 1)
