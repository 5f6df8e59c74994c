"""Work beside a variable: its answers, and gradients that have passed through nothing else."""

import numpy as np
import pytest
import tensorflow as tf

from tfxc.ops import remote
from tfxc.ops.remote import (
    assign,
    colocated_with,
    on_server,
    run_on,
    shards_of,
    whole_of,
    with_servers,
)


@pytest.mark.parametrize("compiled", [False, True])
def test_answers_and_gradients_are_those_of_the_function(compiled):
    table, scale = tf.Variable(tf.reshape(tf.range(6.0), [3, 2])), tf.Variable(2.0)

    def scores(query, ids):
        return [tf.einsum("nd,nd->n", query, tf.gather(table, ids)) * scale, tf.reduce_sum(query, 1)]

    def gradients(ask):
        query, ids = tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant([2, 2])
        with tf.GradientTape() as tape:
            tape.watch(query)
            first, second = ask([2 * query, ids])
            total = tf.reduce_sum(first**2) + tf.reduce_sum(second**3)
        found = tape.gradient(total, [query, table, scale])
        return [first, second, found[0], tf.convert_to_tensor(found[1]), found[2]]

    def remote():
        return gradients(lambda given: run_on("CPU:0", scores, given, [table, scale]))

    found = tf.function(remote)() if compiled else remote()
    for a, b in zip(found, gradients(lambda given: scores(*given)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_row_that_is_read_twice_has_one_sparse_gradient():
    table = tf.Variable(tf.ones([4, 2]))

    def read(first, second):
        return [tf.gather(table, first), tf.gather(table, second)]

    with tf.GradientTape() as tape:
        first, second = run_on("CPU:0", read, [tf.constant([0]), tf.constant([3, 0])], [table])
        total = tf.reduce_sum(first) + tf.reduce_sum(second)
    gradient = tape.gradient(total, table)
    assert isinstance(gradient, tf.IndexedSlices) and sorted(gradient.indices.numpy()) == [0, 0, 3]


def test_a_variable_in_shards_is_assigned_in_blocks(monkeypatch):
    monkeypatch.setattr(remote, "BLOCK_BYTES", 8)
    parts = [tf.Variable(tf.zeros(3)), tf.Variable(tf.zeros(2))]
    monkeypatch.setattr(
        remote, "shards_of", lambda table: [remote.Shard(0, table[0]), remote.Shard(3, table[1])]
    )
    assign(parts, np.arange(5.0))
    assert [part.numpy().tolist() for part in parts] == [[0, 1, 2], [3, 4]]


@pytest.mark.parametrize(
    "values, num_bytes",
    [(np.zeros((3, 8), np.float32), 32), ("text", 1), (["a", "b"], 1), (np.zeros((3, 0)), 1)],
)
def test_a_row_has_a_byte_at_least(values, num_bytes):
    assert remote.row_bytes(tf.Variable(values)) == num_bytes


def test_on_this_machine_nothing_is_remote():
    variable = tf.Variable([1.0])
    assert shards_of(variable) == [] and not on_server(variable) and not with_servers()
    assert whole_of(variable) is variable
    with colocated_with(variable):
        assert tf.Variable(1.0).device == variable.device
