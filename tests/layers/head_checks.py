"""What the tests of the heads share: every configuration of the dense head, and its logits in float64."""

import numpy as np
import pytest

from tfxc._keras import keras, tf_variable
from tfxc.layers import DenseHead, UniformSparseHead, head

CONFIGURATIONS = {
    "plain": {},
    "bias": {"use_bias": True},
    "normalized": {"normalize": True, "temperature": 0.1},
    "all": {"normalize": True, "temperature": 0.2, "use_bias": True},
    "tied": {"row_offset": 2},
    "tied all": {"row_offset": 1, "normalize": True, "temperature": 0.5, "use_bias": True},
}
EVERY_CONFIGURATION = pytest.mark.parametrize("name", CONFIGURATIONS)


def make_head(name, num_classes, dim, seed=0):
    """A built head with random table and biases; a tied table has rows on either side of the classes'."""
    options, random = dict(CONFIGURATIONS[name]), np.random.default_rng(seed)
    if "row_offset" in options:
        embedding = keras.layers.Embedding(num_classes + options["row_offset"] + 3, dim, name="items")
        embedding.build(None)
        options["tied_to"] = embedding
    layer = DenseHead(num_classes, **options)
    layer.build((None, dim))
    layer.table_variable.assign(random.normal(size=layer.table_variable.shape))
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
