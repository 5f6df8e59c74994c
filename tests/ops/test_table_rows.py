import numpy as np
import pytest
import tensorflow as tf

from tfxc.ops.table_rows import gather_rows, read_rows, refuse_plain_steps


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_rows_and_their_gradient(dtype, wrap):
    table = tf.Variable(tf.constant(np.arange(8).reshape(4, 2), dtype))
    factor = 1 + 2.0**-12  # which a bfloat16 gradient would not hold

    @wrap
    def step():
        with tf.GradientTape() as tape:
            rows = gather_rows(table, tf.constant([3, 1, 3]))
            total = tf.reduce_sum(tf.cast(factor, rows.dtype) * rows)
        return rows, tape.gradient(total, table)

    rows, gradient = step()
    np.testing.assert_array_equal(rows, [[6, 7], [2, 3], [6, 7]])
    assert gradient.indices.numpy().tolist() == [3, 1, 3]
    np.testing.assert_array_equal(gradient.values, np.full((3, 2), factor))
    assert rows.dtype == gradient.values.dtype == ("float64" if dtype == "float64" else "float32")
    np.testing.assert_array_equal(read_rows(table, tf.constant([3, 1, 3])), rows)


def test_plain_steps_are_refused_and_values_can_be_set():
    table = tf.Variable(tf.zeros([2, 2], tf.bfloat16))
    refuse_plain_steps(table)
    ones, row = tf.ones([2, 2], tf.bfloat16), tf.IndexedSlices(tf.ones([1, 2], tf.bfloat16), tf.constant([1]))
    for step, value in (
        (table.assign_add, ones),
        (table.assign_sub, ones),
        (table.scatter_add, row),
        (table.scatter_sub, row),
    ):
        with pytest.raises(ValueError, match="bfloat16.*would be lost.*RowwiseAdagrad.*table_dtype"):
            step(value)
    table.scatter_update(row)
    assert table.numpy().tolist() == [[0, 0], [1, 1]]
    table.assign(ones)
    assert table.numpy().tolist() == [[1, 1], [1, 1]]
