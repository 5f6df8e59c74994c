import numpy as np
import pytest
import tensorflow as tf

from tfxc.resume.changes import changes_since, mostly_changed, with_changes

NUM_ROWS = 700_000  # three blocks of four numbers


def same_bits(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


@pytest.mark.parametrize("shape", [(NUM_ROWS, 4), (NUM_ROWS,), (NUM_ROWS // 4, 2, 3)])
@pytest.mark.parametrize("rows", [[], [0], [-1], [5, 262_143, 262_144, 262_145]])
def test_rows_that_changed(shape, rows):
    base = {"table": np.random.default_rng(0).normal(size=shape).astype(np.float32)}
    table = base["table"].copy()
    rows = np.unique(np.array(rows, np.int64) % shape[0])
    table[rows] += 1
    changes = changes_since(base, {"table": tf.constant(table)})
    np.testing.assert_array_equal(changes["rows of table"], rows)
    assert changes["table"].shape == (len(rows), *shape[1:])
    assert same_bits(with_changes(base, changes)["table"], table)


@pytest.mark.parametrize("value", [-0.0, np.nan, np.inf, 1e-45])
def test_a_change_of_a_bit_is_one(value):
    base = {"table": np.zeros([20_000, 3], np.float32)}
    table = base["table"].copy()
    table[17, 2] = value
    assert same_bits(with_changes(base, changes_since(base, {"table": table}))["table"], table)


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.int64, tf.float64])
def test_of_any_dtype(dtype):
    table = tf.cast(tf.reshape(tf.range(80_000), [-1, 4]) % 7, dtype)
    base, now = {"table": table.numpy()}, tf.tensor_scatter_nd_add(table, [[3]], tf.ones([1, 4], dtype))
    changes = changes_since(base, {"table": now})
    assert changes["table"].shape == (1, 4)
    assert same_bits(with_changes(base, changes)["table"], now.numpy())


def test_what_is_kept_whole():
    base = {"small": np.zeros(9), "most": np.zeros([20_000, 3]), "grown": np.zeros([20_000, 3])}
    base["other"] = np.zeros([20_000, 3], np.float32)
    now = {"small": np.ones(9), "most": base["most"].copy(), "grown": np.zeros([20_001, 3])}
    now |= {"other": np.zeros([20_000, 3]), "new": np.zeros([20_000, 3])}
    now["most"][:10_000] = 1  # half
    changes = changes_since(base, now)
    assert changes.keys() == now.keys()
    assert all(same_bits(with_changes(base, changes)[name], array) for name, array in now.items())


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("shape", [(400_000, 4), (400_000,), (1000, 99), (3, 300_000)])
def test_a_look_at_some_rows_tells_whether_most_have_changed(shape, share):
    base = {"table": np.zeros(shape, np.float32), "small": np.zeros(3), "gone": np.zeros(99_999)}
    table = base["table"].copy()
    table[: round(share * len(table))] = 1
    now = {"table": np.random.default_rng(0).permutation(table), "small": np.ones(3), "new": np.ones(99_999)}
    assert mostly_changed(base, now) == (share > 0.5)
