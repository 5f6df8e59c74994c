import numpy as np
import tensorflow as tf

from tfxc._keras import keras
from tfxc.encoders import esasrec
from tfxc.encoders.sequence_layers import CausalAttention


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def norm(x):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6)


def test_a_block_adds_gated_attention_and_a_gated_swiglu():
    dim = 6
    encoder = esasrec(num_classes=20, max_length=4, dim=dim, num_blocks=1, num_heads=2, dropout=0.0)
    items = tf.constant([[3, 1, 4, 1], [5, 9, 2, 6]])
    table, positions = encoder.get_layer("item_embedding"), encoder.get_layer("positions")
    (attention,) = (layer for layer in encoder.layers if isinstance(layer, CausalAttention))
    hidden = positions(table(items)).numpy()
    dense = [layer for layer in encoder.layers if isinstance(layer, keras.layers.Dense)]
    gates, wide = ([layer for layer in dense if layer.use_bias == biased] for biased in (True, False))
    hidden = hidden + gates[0](hidden).numpy() * attention(tf.constant(norm(hidden))).numpy()
    inner = norm(hidden)
    first, second, last = (layer.get_weights()[0] for layer in wide)
    assert first.shape == second.shape == (dim, 4 * dim)
    gate = inner @ first
    branch = (gate * sigmoid(gate) * (inner @ second)) @ last
    hidden = hidden + gates[1](hidden).numpy() * branch
    np.testing.assert_allclose(encoder(items), norm(hidden), rtol=1e-4, atol=1e-5)
