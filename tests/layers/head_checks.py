import numpy as np
import pytest
import tensorflow as tf

from tfxc._keras import keras
from tfxc._keras.weights import tf_variable
from tfxc.layers import DenseHead, UniformSparseHead, head

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


def gradient_error(name):
    """How far gradients may be off: those of a tied bfloat16 table are rounded to the nearest bfloat16."""
    return 2e-2 if name == "tied bfloat16" else 1e-4


def queries(num, dim, seed=1):
    return np.random.default_rng(seed).normal(size=(num, dim)).astype(np.float32)


def variables_of(layer):
    return [layer.table_variable] + ([tf_variable(layer.bias)] if layer.use_bias else [])


@pytest.fixture
def tiny_blocks(monkeypatch):
    """Blocks of a few classes, so that small heads have many, the last one incomplete."""
    for name, value in (("_BLOCK_ELEMENTS", 24), ("_BLOCK_MIN", 3)):
        monkeypatch.setattr(head, name, value)
    for kind in (head.Head, UniformSparseHead):
        monkeypatch.setattr(kind, "max_block_size", 8)
