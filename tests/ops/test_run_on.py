import numpy as np
import pytest
import tensorflow as tf

from tfxc.ops.run_on import run_on


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

    def elsewhere():
        return gradients(lambda given: run_on("CPU:0", scores, given, [table, scale]))

    found = tf.function(elsewhere)() if compiled else elsewhere()
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
