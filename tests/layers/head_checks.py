import numpy as np
import pytest
import tensorflow as tf

from tfxc._keras import keras
from tfxc._keras.weights import tf_variable
from tfxc.layers import DenseHead

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
CONFIGURATIONS = {
    "plain": {},
    "bias": {"use_bias": True},
    "normalized": {"normalize": True, "temperature": 0.1},
    "all": {"normalize": True, "temperature": 0.2, "use_bias": True},
    "tied": {"row_offset": 2},
    "tied all": {"row_offset": 1, "normalize": True, "temperature": 0.5, "use_bias": True},
    "bfloat16": {"normalize": True, "temperature": 0.2, "use_bias": True, "table_dtype": "bfloat16"},
    "tied bfloat16": {"row_offset": 2, "use_bias": True, "table_dtype": "bfloat16"},
}
EVERY_CONFIGURATION = pytest.mark.parametrize("name", CONFIGURATIONS)


def make_head(name, num_classes, dim, seed=0):
    """A built head with random table and biases; a tied table has rows on either side of the classes'."""
    options, random = dict(CONFIGURATIONS[name]), np.random.default_rng(seed)
    if "row_offset" in options:
        num_rows, dtype = num_classes + options["row_offset"] + 3, options.get("table_dtype", "float32")
        embedding = keras.layers.Embedding(num_rows, dim, name="items", dtype=dtype)
        embedding.build(None)
        options["tied_to"] = embedding
    layer = DenseHead(num_classes, **options)
    layer.build((None, dim))
    table = random.normal(size=layer.table_variable.shape)
    layer.table_variable.assign(tf.cast(table, layer.table_variable.dtype))
    if layer.use_bias:
        tf_variable(layer.bias).assign(random.normal(size=num_classes))
    return layer


def numpy_logits(layer, query):
    """All logits [N, L] in float64."""
    table = layer.table_variable.numpy().astype(np.float64)[layer.row_offset :][: layer.num_classes]
    query = np.asarray(query, np.float64)
    if layer.normalize:
        table = table / np.linalg.norm(table, axis=1, keepdims=True)
        query = query / np.linalg.norm(query, axis=1, keepdims=True)
    bias = tf_variable(layer.bias).numpy() if layer.use_bias else 0.0
    return query @ table.T / layer.temperature + bias


def check_logits(layer, query, want, **close):
    """All logits [N, L] of a layer, of sequences, by blocks, and chosen ones, of each query and shared."""
    close, num_classes = {**CLOSE, **close}, want.shape[1]
    np.testing.assert_allclose(layer(query), want, **close)
    np.testing.assert_allclose(layer(np.array([query, 2 * query]))[0], want, **close)  # [2, N, D]
    blocks, middle = layer.blocks(query), num_classes // 2
    np.testing.assert_allclose(tf.concat([blocks(0, middle), blocks(middle, num_classes)], 1), want, **close)
    ids = np.random.default_rng(0).integers(-1, num_classes, size=(len(query), 5)).astype(np.int32)
    scored = np.where(ids >= 0, np.take_along_axis(want, np.maximum(ids, 0), 1), 0)
    np.testing.assert_allclose(layer.score(query, tf.constant(ids)), scored, **close)
    shared = np.where(ids[:1] >= 0, want[:, np.maximum(ids[0], 0)], 0)
    np.testing.assert_allclose(layer.score(query, tf.constant(ids[0])), shared, **close)


def check_top_k(layer, query, logits, k):
    """The k best are those of all logits [N, L], ranked."""
    scores, ids = layer.top_k(query, k)
    assert ids.dtype == tf.int32 and scores.dtype == tf.float32
    want = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(ids, want)
    np.testing.assert_allclose(scores, np.take_along_axis(logits, want, 1), **CLOSE)


def gradient_error(name):
    """How far gradients may be off: those of a tied bfloat16 table are rounded to the nearest bfloat16."""
    return 2e-2 if name == "tied bfloat16" else 1e-4


def queries(num, dim, seed=1):
    return np.random.default_rng(seed).normal(size=(num, dim)).astype(np.float32)


def variables_of(layer):
    return [layer.table_variable] + ([tf_variable(layer.bias)] if layer.use_bias else [])
