"""All logits of a bfloat16 table, and their gradients, block by block."""

import numpy as np
import pytest
import tensorflow as tf
from head_checks import make_head, queries, tiny_blocks, variables_of  # noqa: F401

from tfxc.layers.table_blocks import block_by_block


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_as_the_whole_at_once(tiny_blocks, wrap):  # noqa: F811
    layer, query = make_head("bfloat16", 29, 4), tf.constant(queries(3, 4))
    variables, upstream = variables_of(layer), tf.constant(queries(3, 29, seed=2))

    def in_blocks(query):
        return block_by_block(layer, layer._scaled(query), variables)

    def at_once(query):
        return tf.matmul(layer.effective_query(query), layer.class_vectors(0, 29), transpose_b=True)

    @wrap
    def results(function):
        with tf.GradientTape() as tape:
            tape.watch(query)
            logits = function(query)
        return [logits, *tape.gradient(logits, [query, *variables], output_gradients=upstream)]

    found = results(in_blocks)
    assert isinstance(found[2], tf.Tensor) and found[2].dtype == tf.float32
    for one, other in zip(found, results(at_once), strict=True):
        np.testing.assert_allclose(one, tf.convert_to_tensor(other), rtol=1e-5, atol=1e-6)
