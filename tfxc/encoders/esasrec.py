"""eSASRec: self-attention with gated residual connections."""

from typing import Literal

from tfxc._keras import keras
from tfxc.arguments import positive_int
from tfxc.encoders.items import item_vectors
from tfxc.encoders.sequence_layers import CausalAttention, Positions, RMSNorm

layers = keras.layers
# Width of the inner dense layers, as a multiple of D.
_EXPANSION = 4


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
