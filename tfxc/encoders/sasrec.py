"""SASRec: self-attention over what somebody did so far."""

from typing import Literal

from tfxc._keras import keras
from tfxc.arguments import positive_int
from tfxc.encoders.causal_attention import CausalAttention
from tfxc.encoders.items import item_vectors
from tfxc.encoders.positions import Positions
from tfxc.encoders.rms_norm import RMSNorm

layers = keras.layers


def sasrec(
    num_classes: int,
    max_length: int,
    dim: int = 64,
    num_blocks: int = 2,
    num_heads: int = 1,
    dropout: float = 0.2,
    table_dtype: Literal["float32", "bfloat16"] = "float32",
) -> keras.Model:
    """A Transformer over the sequence: each position sees itself and what came before.

    A block is ``h + attention(norm(h))``, then ``h + dense(relu(dense(norm(h))))``. Normalised before each
    part, by root mean square, and without dropout inside the attention: on a CPU half the cost of the
    published form.

    Inputs: "items", int32 [B, T], class ids + 1, padded with 0 on the left, as the datasets of ``tfxc.data``
    give them; any other id is an error. Outputs: queries [B, T, D], padded positions masked.

    Args:
        num_classes: L, the number of items.
        max_length: T, how many items it reads.
        dim: D, the width of item vectors, layers and queries.
        num_blocks: blocks of attention and dense layers, at least 1.
        num_heads: heads of the attention; must divide ``dim``.
        dropout: share of what is dropped, in [0, 1).
        table_dtype: of the item vectors, "float32" or "bfloat16", as of a head that shares them. tf-keras
            cannot read bfloat16 ones from a ``.keras`` file; take ``tf.train.Checkpoint`` there.

    Returns:
        A Keras model. Its table of item vectors is called "item_embedding": a head shares it by
        ``tfxc.layers.DenseHead(num_classes, tied_to="item_embedding", row_offset=1)``.

    Raises:
        ValueError: for sizes that are no integers of at least 1, heads that do not divide ``dim``, or another
            dtype.

    Example:
        >>> encoder = sasrec(num_classes=1000, max_length=20, dim=32)
        >>> encoder(tf.ones([3, 20], tf.int32)).shape
        TensorShape([3, 20, 32])
        >>> head = tfxc.layers.DenseHead(1000, tied_to="item_embedding", row_offset=1)
        >>> model = tfxc.ExtremeClassifier(encoder, head, sampler=tfxc.samplers.MIDX(100, num_codewords=8))

    Reference:
        Kang, McAuley, "Self-Attentive Sequential Recommendation", 2018.
    """
    items, hidden = item_vectors(num_classes, max_length, dim, table_dtype)
    hidden = layers.Dropout(dropout)(Positions(name="positions")(hidden))
    for _ in range(positive_int(num_blocks, "num_blocks")):
        attended = CausalAttention(num_heads)(RMSNorm()(hidden))
        hidden = layers.Add()([hidden, layers.Dropout(dropout)(attended)])  # unlike +, passes the mask on
        inner = layers.Dense(dim, activation="relu")(RMSNorm()(hidden))
        inner = layers.Dropout(dropout)(layers.Dense(dim)(layers.Dropout(dropout)(inner)))
        hidden = layers.Add()([hidden, inner])
    return keras.Model(items, RMSNorm()(hidden), name="sasrec")
