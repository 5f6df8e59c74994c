"""SASRec and eSASRec: self-attention over a sequence of items."""

from typing import Literal

from tfxc._keras import keras
from tfxc.arguments import positive_int
from tfxc.encoders.sequence_layers import CausalAttention, Positions, RMSNorm, item_vectors

layers = keras.layers
_EXPANSION = 4  # width of the inner dense layers of eSASRec, as a multiple of D


def sasrec(
    num_classes: int,
    max_length: int,
    dim: int = 64,
    num_blocks: int = 2,
    num_heads: int = 1,
    dropout: float = 0.2,
    table_dtype: Literal["float32", "bfloat16"] = "float32",
) -> keras.Model:
    """Makes a Transformer over a history, in which each position sees itself and earlier positions.

    A block is ``h + attention(norm(h))``, then ``h + dense(relu(dense(norm(h))))``. It normalizes before each
    part, by root mean square, and has no dropout inside the attention: less to compute than in the published
    form.

    Inputs: "items", int32 [B, T], class ids + 1, padded with 0 in front, as in the datasets of ``tfxc.data``,
    or behind; any other id is an error. A row may hold several histories with a 0 between them, as of
    ``sequence_training_dataset(packed=True)``: each has the queries that it has in a row of its own. So leave
    unknown items out, and write no 0 for them. Outputs: queries [B, T, D], with padded positions masked.

    Args:
        num_classes: L, the number of items.
        max_length: T, the number of items that the encoder reads.
        dim: D, the width of item vectors, layers and queries.
        num_blocks: blocks of attention and dense layers, at least 1.
        num_heads: heads of the attention; must divide ``dim``.
        dropout: dropout rate, in [0, 1).
        table_dtype: of the item vectors, "float32" or "bfloat16". A head that shares them must have the same.

    Returns:
        A Keras model. Its table of item vectors is called "item_embedding": a head shares it by
        ``tfxc.layers.DenseHead(num_classes, tied_to="item_embedding", row_offset=1)``.

    Raises:
        ValueError: for arguments outside their range.

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
        hidden = layers.Add()([hidden, layers.Dropout(dropout)(attended)])  # unlike +, Add passes the mask on
        inner = layers.Dense(dim, activation="relu")(RMSNorm()(hidden))
        inner = layers.Dropout(dropout)(layers.Dense(dim)(layers.Dropout(dropout)(inner)))
        hidden = layers.Add()([hidden, inner])
    return keras.Model(items, RMSNorm()(hidden), name="sasrec")


def esasrec(
    num_classes: int,
    max_length: int,
    dim: int = 64,
    num_blocks: int = 2,
    num_heads: int = 1,
    dropout: float = 0.2,
    table_dtype: Literal["float32", "bfloat16"] = "float32",
) -> keras.Model:
    """SASRec with the gated blocks of LiGR: stronger in its paper, at three times the arithmetic.

    A block is ``h + σ(W₁ h) · attention(norm(h))``, then ``h + σ(W₂ h) · swiglu(norm(h))`` with
    ``swiglu(x) = C (swish(A x) · B x)``, which is 4·D wide inside. ``norm`` divides by the root mean square.
    Trained on sampled classes by ``tfxc.losses.SoftmaxCrossentropy``, it is the model of the paper.

    Arguments, inputs, outputs and errors are those of ``tfxc.encoders.sasrec``.

    Example:
        >>> esasrec(num_classes=1000, max_length=20, dim=32, num_heads=4)(tf.ones([3, 20], tf.int32)).shape
        TensorShape([3, 20, 32])

    Reference:
        Tikhonovich et al., "eSASRec: Enhancing Transformer-based Recommendations in a Modular Fashion", 2025.
        Borisyuk et al., "From Features to Transformers: Redefining Ranking for Scalable Impact", 2025 (LiGR).
        Shazeer, "GLU Variants Improve Transformer", 2020.
    """
    items, hidden = item_vectors(num_classes, max_length, dim, table_dtype)
    hidden = layers.Dropout(dropout)(Positions(name="positions")(hidden))
    for _ in range(positive_int(num_blocks, "num_blocks")):
        hidden = _add_gated(hidden, CausalAttention(num_heads)(RMSNorm()(hidden)), dim, dropout)
        hidden = _add_gated(hidden, _swiglu(RMSNorm()(hidden), dim), dim, dropout)
    return keras.Model(items, RMSNorm()(hidden), name="esasrec")


def _add_gated(hidden, branch, dim, dropout):
    gate = layers.Dense(dim, activation="sigmoid")(hidden)
    gated = layers.Dropout(dropout)(layers.Multiply()([gate, branch]))
    return layers.Add()([hidden, gated])  # unlike +, Add passes the mask on


def _swiglu(inputs, dim):
    gate = layers.Dense(_EXPANSION * dim, activation="swish", use_bias=False)(inputs)
    inner = layers.Multiply()([gate, layers.Dense(_EXPANSION * dim, use_bias=False)(inputs)])
    return layers.Dense(dim, use_bias=False)(inner)
