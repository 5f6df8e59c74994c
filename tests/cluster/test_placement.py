"""Where variables lie; on servers, see test_servers.py."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable

from tfxc._keras import IS_KERAS_3
from tfxc.cluster import placement
from tfxc.cluster.placement import assign, lying_with, on_server, shards_of, with_servers

pytestmark = pytest.mark.both_keras


@pytest.mark.skipif(IS_KERAS_3, reason="Keras 3 has no parameter servers")
def test_shards_begin_where_those_before_them_end():
    parts = [tf.Variable(tf.zeros([3 - i, 2]), name=f"table/part_{i}") for i in (0, 1)]
    table = ShardedVariable(parts)
    assert [shard.start for shard in shards_of(table)] == [0, 3]
    assert [shard.variable for shard in shards_of(table)] == parts
    assert shards_of(table)[1].own(tf.constant([2, 3, 4, 5])).numpy().tolist() == [-1, 0, 1, -1]


def test_a_variable_on_a_server_is_assigned_in_blocks(monkeypatch):
    monkeypatch.setattr(placement, "BLOCK_BYTES", 8)
    monkeypatch.setattr(placement, "on_server", lambda variable: True)
    variable = tf.Variable(tf.zeros([5, 1]))
    assign(variable, np.arange(5.0)[:, np.newaxis])
    assert variable.numpy()[:, 0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "values, num_bytes",
    [(np.zeros((3, 8), np.float32), 32), ("text", 1), (["a", "b"], 1), (np.zeros((3, 0)), 1)],
)
def test_a_row_has_a_byte_at_least(values, num_bytes):
    assert placement.row_bytes(tf.Variable(values)) == num_bytes


def test_on_this_machine_nothing_is_remote():
    variable = tf.Variable([1.0])
    assert not on_server(variable) and not with_servers()
    assert [shard.variable for shard in shards_of(variable)] == [variable]
    with lying_with(variable):
        assert tf.Variable(1.0).device == variable.device
