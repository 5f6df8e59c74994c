"""Layers of sequence encoders: items, attention, positions and normalization."""

import tensorflow as tf

from tfxc._keras import keras, register
from tfxc._keras.weights import add_weight, stored_numbers
from tfxc.arguments import one_of, positive_int
from tfxc.block_initializer import in_blocks
from tfxc.require import require


@register
class ItemEmbedding(keras.layers.Embedding):
    """An ``Embedding`` of class ids + 1, with 0 for padding, that refuses any other id.

    Keras's ``Embedding`` reads -1 as the last row, so class ids padded with -1 would train the wrong items.
    """

    holds_items = True  # change_classes reads this

    def add_weight(self, *args, initializer=None, **options):
        """Like Keras's, but initializes the table in blocks, without a second copy in memory."""
        if isinstance(initializer, keras.initializers.Initializer):
            initializer = in_blocks(initializer)
        return super().add_weight(*args, initializer=initializer, **options)

    def load_own_variables(self, store):
        """As Keras's; reads a table of bfloat16 under tf-keras, too."""
        super().load_own_variables(stored_numbers(store))

    def call(self, inputs):
        if isinstance(inputs, tf.RaggedTensor):
            raise ValueError(
                "Histories must be dense, [B, T], but are ragged: pass keras.utils.pad_sequences(lists, "
                "maxlen=max_length), which pads in front with 0."
            )
        least, greatest = (tf.cast(bound(inputs), tf.int64) for bound in (tf.reduce_min, tf.reduce_max))
        message = (
            f"Items must be class ids + 1, in [1, {self.input_dim - 1}], and 0 for padding: if these are "
            "class ids padded with -1, pass ids + 1. They range from"
        )
        is_valid = (least >= 0) & (greatest < self.input_dim)
        with tf.control_dependencies(require(is_valid, message, least, "to", greatest)):
            return super().call(tf.identity(inputs))


def item_vectors(num_classes, max_length, dim, table_dtype):
    """The input "items" [B, T], class ids + 1 with 0 for padding, and its masked vectors [B, T, D].

    The layer is called "item_embedding", so that a head can share its table from row 1 on.
    """
    table_dtype = one_of(table_dtype, "table_dtype", ("float32", "bfloat16"))
    rows = positive_int(num_classes, "num_classes") + 1
    items = keras.Input((positive_int(max_length, "max_length"),), dtype="int32", name="items")
    dtype = "bfloat16" if table_dtype == "bfloat16" else None  # None: Keras's dtype policy decides
    embed = ItemEmbedding(rows, positive_int(dim, "dim"), mask_zero=True, name="item_embedding", dtype=dtype)
    return items, embed(items)


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
