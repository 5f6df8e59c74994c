"""GRU4Rec: a recurrent network over a sequence of items."""

from typing import Literal

import tensorflow as tf

from tfxc._keras import keras, register
from tfxc.arguments import positive_int
from tfxc.encoders.sequence_layers import SequenceLayer, item_vectors

layers = keras.layers


@register
class GRUCell(keras.layers.GRUCell):
    """Keras's cell, with one input more: 0 where the state begins anew, 1 where it goes on."""

    def build(self, input_shape):
        super().build((*input_shape[:-1], input_shape[-1] - 1))

    def call(self, inputs, states, training=None):
        states = [state * inputs[:, -1:] for state in states]
        return super().call(inputs[:, :-1], states, training=training)


@register
class GRU(SequenceLayer):
    """A gated recurrent unit of width D whose state begins anew behind each masked position."""

    def build(self, input_shape):
        dim = input_shape[-1]
        self.rnn = keras.layers.RNN(GRUCell(dim), return_sequences=True)
        self.rnn.build((*input_shape[:-1], dim + 1))
        super().build(input_shape)

    def call(self, inputs, mask=None):  # it is there: Keras binds the arguments before it fills in the mask
        goes_on = tf.pad(tf.cast(mask[:, :-1], inputs.dtype), [[0, 0], [1, 0]])[..., tf.newaxis]
        return self.rnn(tf.concat([inputs, goes_on], axis=-1), mask=mask)


def gru4rec(
    num_classes: int,
    max_length: int,
    dim: int = 64,
    num_blocks: int = 1,
    dropout: float = 0.2,
    table_dtype: Literal["float32", "bfloat16"] = "float32",
) -> keras.Model:
    """Makes an encoder of gated recurrent units, followed by a dense layer to the query.

    Inputs, outputs and errors are those of ``tfxc.encoders.sasrec``, and these arguments, but for:

    Args:
        num_blocks: recurrent layers, at least 1.
        dropout: dropout rate before the first and after the last recurrent layer, in [0, 1).

    Example:
        >>> gru4rec(num_classes=1000, max_length=20, dim=32)(tf.ones([3, 20], tf.int32)).shape
        TensorShape([3, 20, 32])

    Reference:
        Hidasi et al., "Session-based Recommendations with Recurrent Neural Networks", 2016.
    """
    items, hidden = item_vectors(num_classes, max_length, dim, table_dtype)
    hidden = layers.Dropout(dropout)(hidden)
    for _ in range(positive_int(num_blocks, "num_blocks")):
        hidden = GRU()(hidden)
    return keras.Model(items, layers.Dense(dim)(layers.Dropout(dropout)(hidden)), name="gru4rec")
