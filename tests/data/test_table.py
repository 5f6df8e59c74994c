import os
import warnings

import numpy as np
import pandas
import polars
import pyarrow as pa
import pytest
from refusal_checks import refused

from tfxc.data import from_frame, read_sequences
from tfxc.data.table import BadRows, Table
from tfxc.data.tables import open_table


def opened(frame, *columns):
    return open_table(frame, [*columns], [], BadRows("t", "row"))


def rows_of(table):
    return [row for batch in table.batches for row in batch.to_pylist()]


def write(folder, *columns):
    for name, column in zip("ab", columns, strict=False):
        pa.parquet.write_table(pa.table({"n": column}), folder / f"{name}.parquet")


def test_string_views_become_strings():
    columns = {"a": ["x", "y", None], "b": ["p", None, "p"]}
    frame = polars.DataFrame(columns, schema_overrides={"b": polars.Categorical})
    table = opened(frame, "b", "a")
    assert table.schema.names == ["b", "a"] and set(table.schema.types) == {pa.large_string()}
    assert rows_of(table) == [{"b": "p", "a": "x"}, {"b": None, "a": "y"}, {"b": "p", "a": None}]


def test_levels_of_an_index_are_columns():
    rows = {"user": ["b", "a"], "day": [2, 1], "item": ["x", "y"], "other": [0, 1]}
    frame = pandas.DataFrame(rows).set_index(["user", "other", "day"])
    table = opened(frame, "user", "item", "day")
    assert rows_of(table) == pandas.DataFrame(rows)[["user", "item", "day"]].to_dict("records")
    refused("no column 'who'", opened, frame, "who", "item")
    refused("must be a pandas or Polars DataFrame, .*, not Series", opened, frame["item"], "item")


def test_a_folder_without_files(tmp_path):
    (tmp_path / "_SUCCESS").touch()
    refused(f"folder {tmp_path} holds no Parquet files.*pass the folder", opened, tmp_path, "n")


@pytest.mark.parametrize(
    ("first", "second", "values"),
    [
        (pa.array([1], pa.int8()), pa.array([2**40]), [1, 2**40]),
        (pa.array([1]), pa.array([1.5]), [1.0, 1.5]),
        (pa.array([None], pa.null()), pa.array(["b"]), [None, "b"]),
        (pa.array(["a"]).dictionary_encode(), pa.array(["b"], pa.large_string()), ["a", "b"]),
        (
            pa.DictionaryArray.from_arrays(pa.array([1], pa.int8()), ["x", "a"]),
            pa.DictionaryArray.from_arrays(pa.array([200], pa.int16()), [str(i) for i in range(201)]),
            ["a", "200"],
        ),
    ],
    ids=["widths", "floats", "nulls", "strings", "categories"],
)
def test_files_of_a_folder_whose_types_differ(tmp_path, first, second, values):
    write(tmp_path, first, second)
    assert [row["n"] for row in rows_of(opened(tmp_path, "n"))] == values


def test_a_name_that_occurs_twice(tmp_path):
    table = pa.Table.from_arrays([pa.array([1]), pa.array(["x"]), pa.array(["y"])], ["n", "m", "m"])
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    assert rows_of(opened(tmp_path, "n")) == rows_of(opened(table, "n")) == [{"n": 1}]
    for own in (tmp_path, table):
        refused("The column 'm' occurs twice", opened, own, "n", "m")


def test_files_of_a_folder_whose_types_do_not_go_together(tmp_path):
    write(tmp_path, pa.array([1]), pa.array(["x"]))
    refused("types that cannot be combined: .*n.* Write it with one", opened, tmp_path, "n")
    pa.parquet.write_table(pa.table({"m": [1]}), tmp_path / "b.parquet")
    refused("b.parquet has no column 'n'", opened, tmp_path, "n")


def test_a_number_that_is_no_number_of_the_other_files_is_told(tmp_path):
    write(tmp_path, pa.array([2**62 + 1]), pa.array([1.5]))
    message = "'n' holds int64 here and double elsewhere.*write it with one type"
    refused(message, rows_of, opened(tmp_path, "n"))


def test_skipped_rows_shift_the_numbers_of_those_behind_them(written):
    bad = BadRows("t", "row")
    table = open_table(written("a,b\n0,0\n1\n2,2\n3\n4\n5,5\n"), ["a"], ["a"], bad)
    assert rows_of(table) == [{"a": b"0"}, {"a": b"2"}, {"a": b"5"}]
    assert table.rows(np.arange(3)).tolist() == [0, 2, 5] and bad.number == 3


def test_rows_may_be_skipped_while_others_are_numbered():
    class Growing(list):
        def __len__(self):
            return super().__len__() + 1

    table = Table("t", pa.schema([]), iter(()), skipped=Growing([1, 3]))
    assert table.rows(np.arange(3)).tolist() == [0, 2, 4]


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_a_last_line_without_an_end_may_be_cut(end, written):
    path = written(f"u,i{end or chr(10)}1,27{end or chr(10)}1,2{end}")
    with warnings.catch_warnings(record=True, action="always") as caught:
        assert from_frame(path, "u", "i").vocabulary.names == ["27", "2"]
    told = [f"{path}: the last line has no line end (b'1,2'). It was read as it is"] * (not end)
    assert [str(warning.message).partition(". If")[0] for warning in caught] == told
    assert all(warning.filename == __file__ for warning in caught)


def test_suffixes(written):
    assert rows_of(opened(written("u,i\n1,2\n", "T.CSV"), "u")) == [{"u": 1}]
    message = "other than .csv, .* are read as Parquet.*tfxc.data.read_csv"
    refused(message, opened, written("u,i\n1,2\n", "log.dat"), "u")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with a name")
def test_a_pipe_is_refused_before_anybody_waits_for_it(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    for read in (read_sequences, lambda path: from_frame(path, user="u", item="i")):
        refused(r"pipe.csv is a pipe or a device: write", read, tmp_path / "pipe.csv")


def test_the_first_are_shown_in_whatever_order_they_come():
    bad = BadRows("log.csv", "row")
    for row in (*range(1, 12), 0):
        bad.reject(row, "why")
    message = r"(?s)12 bad of 12 rows, counted from 0\n  row 0: why\n  row 1: .*row 9: why\n  \.\.\.\n"
    refused(message, bad.report, 12)


def test_skipping_warns_once_and_nothing_bad_says_nothing():
    bad = BadRows("x", "row", "skip")
    bad.report(5)
    bad.reject(1, "why")
    with pytest.warns(UserWarning) as caught:
        bad.report(5)
    told = "x: 1 bad of 5 rows, counted from 0\n  row 1: why\nThese rows were left out."
    assert [str(one.message) for one in caught] == [told]
    refused("on_error must be one of .'raise', 'skip'., but got 'ignore'", BadRows, "x", "row", "ignore")
