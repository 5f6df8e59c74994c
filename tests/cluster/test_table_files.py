import numpy as np
import pytest
import tensorflow as tf

from tfxc.cluster import placement
from tfxc.cluster.table_files import read_tables, whole_tables, write_tables


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.setattr(placement, "BLOCK_BYTES", 100)
    values = np.arange(90.0).reshape(30, 3), np.arange(40), np.float32(7), np.ones([0, 3])
    return {str(number): table for number, table in enumerate(whole_tables(list(map(tf.Variable, values))))}


def values(tables):
    return [table.shards[0].variable.numpy() for table in tables.values()]


def test_tables_come_in_blocks_and_whole_again(tables, tmp_path):
    prefix, before = str(tmp_path / "variables"), values(tables)
    write_tables(prefix, tables)
    assert len(list(tmp_path.glob("variables.data-*"))) > 5
    reader = tf.train.load_checkpoint(prefix)
    for name, value in zip(tables, before, strict=True):
        np.testing.assert_array_equal(reader.get_tensor(name), value)
        variable = tables[name].shards[0].variable
        variable.assign(tf.ones_like(variable))
    read_tables(prefix, tables)
    for a, b in zip(values(tables), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_another_checkpoint_becomes_part_of_it(tables, tmp_path):
    other, prefix = str(tmp_path / "other"), str(tmp_path / "variables")
    write_tables(other, {"more": whole_tables([tf.Variable([1.0, 2.0])])[0]})
    write_tables(prefix, tables, [other])
    names = tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
    assert names.keys() == {"more", *tables}
    assert {path.name.split(".")[0] for path in tmp_path.iterdir()} == {"variables"}
