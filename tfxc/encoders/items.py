"""The input of a sequence encoder: item ids and their vectors."""

import tensorflow as tf

from tfxc._keras import keras, register
from tfxc._keras.weights import stored_numbers
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
