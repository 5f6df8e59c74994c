import numpy as np
import polars
import pyarrow as pa
import pytest

from tfxc.data.bad_rows import BadRows
from tfxc.data.tables import open_table


def rows_of(table):
    return [row for batch in table.batches for row in batch.to_pylist()]


def test_string_views_become_strings():
    frame = polars.DataFrame(
        {"a": ["x", "y", None], "b": ["p", None, "p"]}, schema_overrides={"b": polars.Categorical}
    )
    table = open_table(frame, ["b", "a"], [], BadRows("t", "row"))
    assert table.schema.names == ["b", "a"] and set(table.schema.types) == {pa.large_string()}
    assert rows_of(table) == [{"b": "p", "a": "x"}, {"b": None, "a": "y"}, {"b": "p", "a": None}]


def test_files_of_a_folder_in_order_with_types_of_the_first(tmp_path):
    for name, kind in (("b", pa.int32()), ("a", pa.int64())):
        pa.parquet.write_table(pa.table({"n": pa.array([ord(name)], kind)}), tmp_path / f"{name}.parquet")
    table = open_table(tmp_path, ["n"], [], BadRows("t", "row"))
    assert table.schema.types == [pa.int64()] and table.num_rows == 2
    assert rows_of(table) == [{"n": 97}, {"n": 98}]


def test_skipped_rows_shift_the_numbers_of_those_behind_them(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n0,0\n1\n2,2\n3\n4\n5,5\n")
    bad = BadRows("t", "row")
    table = open_table(tmp_path / "t.csv", ["a"], ["a"], bad)
    assert rows_of(table) == [{"a": "0"}, {"a": "2"}, {"a": "5"}]
    assert table.rows(np.arange(3)).tolist() == [0, 2, 5] and bad.number == 3


def test_quoted_fields_of_a_text_file(tmp_path):
    (tmp_path / "t.csv").write_text('a,b\n"x, ""y""\nz",1\n')
    assert rows_of(open_table(tmp_path / "t.csv", ["a"], ["a"], BadRows("t", "row"))) == [{"a": 'x, "y"\nz'}]


def test_a_column_twice():
    table = pa.table([[1], [2]], names=["a", "a"])
    with pytest.raises(ValueError, match="'a' occurs twice"):
        open_table(table, ["a"], [], BadRows("t", "row"))
