import numpy as np
import pytest
import tensorflow as tf

from tfxc.catalogue import spool
from tfxc.catalogue.spool import Spool, blocks_of


@pytest.fixture(params=[8, 1 << 25])
def block_bytes(request, monkeypatch):
    monkeypatch.setattr(spool, "_BLOCK_BYTES", request.param)


VALUES = [
    np.arange(12, dtype=np.float32).reshape(6, 2),
    np.arange(5, dtype=np.uint16),
    np.int64(7),
    np.arange(6, dtype=np.float64).reshape(3, 1, 2),
]


@pytest.mark.usefixtures("block_bytes")
def test_variables_come_back_as_they_were(tmp_path):
    variables = [tf.Variable(value) for value in VALUES] + [tf.Variable(tf.ones([4, 1], tf.bfloat16))]
    put = Spool(str(tmp_path), variables)
    put.free()
    assert tf.size(variables[0]) == 0
    put.restore()
    tf.nest.map_structure(np.testing.assert_array_equal, variables, [*VALUES, np.ones([4, 1])])


@pytest.mark.usefixtures("block_bytes")
def test_rows_go_where_they_are_sent(tmp_path):
    source, other = tf.Variable(VALUES[0]), tf.Variable(tf.zeros([4, 2]))
    Spool(str(tmp_path), [source]).copy(0, other, np.array([3, -1, 0, -1, -1, 1]))
    np.testing.assert_array_equal(other.numpy(), [[4, 5], [10, 11], [0, 0], [0, 1]])


@pytest.mark.usefixtures("block_bytes")
def test_blocks_are_all_rows_or_those_asked_for():
    variable = tf.Variable(VALUES[0])
    np.testing.assert_array_equal(np.concatenate(list(blocks_of(variable))), VALUES[0])
    some = np.array([4, 0, 4])
    np.testing.assert_array_equal(np.concatenate(list(blocks_of(variable, some))), VALUES[0][some])


def test_a_variable_of_a_shape_that_is_not_known_before(tmp_path):
    new, old = (tf.Variable(np.zeros([2, 0], np.float32), shape=[2, None]) for _ in range(2))
    old.assign(np.ones([2, 3]))
    put = Spool(str(tmp_path), [old])
    put.free()
    put.copy(0, new)
    put.restore()
    assert new.numpy().tolist() == old.numpy().tolist() == [[1, 1, 1]] * 2
