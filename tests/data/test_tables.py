import logging
import os
import zoneinfo
from datetime import date, datetime

import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from refusal_checks import refused

from tfxc.data import Vocabulary, from_frame, leave_last_out, sequence_training_dataset

ROWS = {
    "who": ["ann", "bob", "ann", "ann", "cy", "bob"],
    "what": ["milk", "tea", "tea", "milk", "rum", "tea"],
    "when": ["2024-05-03", "2024-05-01", "2024-05-02", "2024-05-03", "2024-01-01", "2024-01-01"],
    "country": ["de", "fr", None, "de", "fr", "fr"],
    "price": [1.5, 2.0, 3.0, 4.0, 5.0, 6.0],
}
DAYS = [date(2024, 5, 2)] * 5 + [datetime(2024, 5, 1, 10)]
ROLES = {"user": "who", "item": "what", "time": "when"}


def as_parquet(table, folder):
    pa.parquet.write_table(table, folder / "log.parquet")
    return folder / "log.parquet"


def as_parquet_folder(table, folder):
    parts = folder / "log"
    parts.mkdir()
    pa.parquet.write_table(table.slice(0, 4), parts / "part-0.parquet", row_group_size=2)
    pa.parquet.write_table(table.slice(4), parts / "part-1.parquet")
    (parts / "_SUCCESS").touch()
    return str(parts)


def as_text(suffix, delimiter):
    def write(table, folder):
        path = folder / f"log{suffix}"
        with pa.output_stream(path, compression="detect") as file:
            pa.csv.write_csv(table, file, pa.csv.WriteOptions(delimiter=delimiter))
        return path

    return write


KINDS = {
    "arrow": lambda table, folder: table,
    "pandas": lambda table, folder: table.to_pandas(),
    "polars": lambda table, folder: polars.from_arrow(table),
    "reader": lambda table, folder: table.to_reader(),
    "parquet": as_parquet,
    "folder": as_parquet_folder,
    "csv": as_text(".csv", ","),
    "tsv": as_text(".tsv", "\t"),
    "gz": as_text(".csv.gz", ","),
}


@pytest.fixture(params=[False, True], ids=["memory", "folder"])
def directory(request, tmp_path):
    return tmp_path / "sequences" if request.param else None


def rows_of(sequences):
    rows = {}
    for u, user in enumerate(sequences.user_ids):
        part = slice(*sequences.offsets[u : u + 2])
        times = [] if sequences.times is None else [sequences.times[part].tolist()]
        columns = [column.values[part].tolist() for column in sequences.columns.values()]
        rows[user] = list(zip(sequences.vocabulary.decode(sequences[u]), *times, *columns, strict=True))
    return rows


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_gives_the_same(kind, directory, tmp_path):
    frame = KINDS[kind](pa.table(ROWS), tmp_path)
    log = from_frame(frame, **ROLES, columns=["country", "price"], directory=directory)
    first, second, third, january = (datetime(2024, *day) for day in ((5, 1), (5, 2), (5, 3), (1, 1)))
    assert log.user_ids == ["ann", "bob", "cy"] and log.vocabulary.names == ["milk", "tea", "rum"]
    assert log.columns["country"].vocabulary.names == ["de", "fr"]
    assert rows_of(log) == {
        "ann": [("tea", second, -1, 3.0), ("milk", third, 0, 1.5), ("milk", third, 0, 4.0)],
        "bob": [("tea", january, 1, 6.0), ("tea", first, 1, 2.0)],
        "cy": [("rum", january, 1, 5.0)],
    }
    assert (
        isinstance(log.items, np.memmap) is (directory is not None)
        and log.columns["price"].values.dtype == np.float64
    )


@pytest.mark.parametrize("block", [1, 3, 1 << 21])
def test_many_rows_against_sorting_each_user(block, directory, monkeypatch):
    monkeypatch.setattr("tfxc.data.interaction_table._ROWS_PER_BLOCK", block)
    monkeypatch.setattr("tfxc.data.tables.ROWS_PER_BATCH", 7)
    monkeypatch.setattr("tfxc.data.grouping._ROWS_PER_BLOCK", 16)
    monkeypatch.setattr("tfxc.data.grouping._PER_BLOCK", 8)
    random = np.random.default_rng(0)
    users, items, times = (random.integers(limit, size=300).tolist() for limit in (20, 30, 40))
    table = pa.table({"u": users, "i": items, "t": times, "position": range(300)})
    log = from_frame(table, "u", "i", "t", columns=["position"], directory=directory, ties="order")
    want = {str(user): [] for user in users}
    for time, position in sorted(zip(times, range(300), strict=True)):
        want[str(users[position])].append((str(items[position]), time, position))
    assert rows_of(log) == want and list(want) == log.user_ids


def test_names_of_a_block_of_nothing_but_bad_rows_get_no_ids(monkeypatch):
    monkeypatch.setattr("tfxc.data.interaction_table._ROWS_PER_BLOCK", 4)
    monkeypatch.setattr("tfxc.data.tables.ROWS_PER_BATCH", 2)
    rows = {"u": [*"abab", "zed", "yan", "a"], "i": [*"xyxy", "ghost", "elf", "x"]}
    rows |= {"c": [*"pppp", "new", "p", "p"], "n": [1.0] * 4 + [None] * 3}
    with pytest.warns(UserWarning, match="3 bad of 7 rows"):
        log = from_frame(pa.table(rows), "u", "i", columns=["c", "n"], on_error="skip")
    assert rows_of(log) == {"a": [("x", 0, 1.0)] * 2, "b": [("y", 0, 1.0)] * 2}
    assert log.vocabulary.names == ["x", "y"] and log.columns["c"].vocabulary.names == ["p"]


def test_kinds_of_further_columns():
    table = pa.table({"u": [1, 1], "i": [2, 3], "n": [7, 8], "c": ["x", None], "b": [True, False]})
    columns = from_frame(table, "u", "i", columns=["n", "c", "b"]).columns
    assert [own.values.tolist() for own in columns.values()] == [[7, 8], [0, -1], [True, False]]
    assert [own.values.dtype for own in columns.values()] == [np.int64, np.int32, bool]
    assert columns["c"].vocabulary.names == ["x"] and columns["n"].vocabulary is None


def test_without_time_the_order_counts():
    log = from_frame(pa.table(ROWS), "who", "what")
    assert log.times is None and log.vocabulary.decode(log[0]) == ["milk", "tea", "milk"]


@pytest.mark.parametrize("kind", ["int64", "uint64", "int8", "string", "string_view", "float64"])
def test_ids_of_any_type(kind):
    users = pa.array([7, 3, 7]).cast("string" if kind == "string_view" else kind).cast(kind)
    log = from_frame(pa.table({"who": users, "what": users}), "who", "what")
    assert log.user_ids == ["7", "3"] == log.vocabulary.names


def test_categories_from_both_data_frames():
    for frame in (
        pandas.DataFrame({"u": pandas.Categorical(["b", "a", "b"], ["z", "a", "b"]), "i": [1, 2, 3]}),
        polars.DataFrame({"u": ["b", "a", "b"], "i": [1, 2, 3]}, schema_overrides={"u": polars.Categorical}),
    ):
        assert from_frame(frame, "u", "i").user_ids == ["b", "a"]


def test_timestamps_of_spark_reach_the_ends_of_the_calendar(tmp_path):
    times = [datetime(9999, 12, 31), datetime(2024, 5, 1), datetime(1, 1, 1)]
    table = pa.table({"who": ["ann"] * 3, "what": ["rum", "tea", "milk"], "when": times})
    pa.parquet.write_table(table, tmp_path / "log.parquet", use_deprecated_int96_timestamps=True)
    log = from_frame(tmp_path / "log.parquet", **ROLES)
    assert log.times.tolist() == sorted(times) and log.vocabulary.decode(log[0]) == ["milk", "tea", "rum"]


def test_zones_become_utc():
    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    times = pandas.to_datetime(["2024-05-01T02:00", "2024-05-01T01:30"]).tz_localize(berlin)
    log = from_frame(pandas.DataFrame({"u": ["a", "a"], "i": ["x", "y"], "t": times}), "u", "i", "t")
    assert log.vocabulary.decode(log[0]) == ["y", "x"]
    assert log.times[1] == np.datetime64("2024-05-01T00:00") and log.times.dtype.kind == "M"


BAD = pa.table(
    {
        "u": ["a", None, "b", "", "c", "d", "e"],
        "i": ["x", "new", None, "x", "x", "x", "y"],
        "t": ["1", "2", "3", "4", None, "soon", "7"],
        "n": [float("inf"), 1.0, 1.0, 1.0, 1.0, 1.0, None],
    }
)


def test_bad_rows_raise_together():
    reasons = "n is inf", "user id is empty", "item id is empty", "user id is empty", "time is null"
    reasons += "time 'soon' is not a finite number", "n is null"
    rows = ".*".join(f"row {row}: the {reason}" for row, reason in enumerate(reasons))
    message = f'(?s)the table: 7 bad of 7 rows.*{rows}.*on_error="skip"'
    refused(message, from_frame, BAD, "u", "i", "t", columns=["n"])


def test_bad_rows_are_skipped_with_a_warning(directory):
    with pytest.warns(UserWarning, match="5 bad of 7 rows"):
        log = from_frame(BAD, "u", "i", "t", directory=directory, on_error="skip")
    assert log.user_ids == ["a", "e"] and log.vocabulary.names == ["x", "y"]  # a bad row numbers nothing
    assert log.times.tolist() == [1, 7]


@pytest.mark.parametrize("number", [10, 199_999], ids=["first", "last"])
def test_a_quote_that_is_not_closed_in_a_column_that_is_not_read(number, written):
    lines = [f"u{row % 1000},i{row % 777},title {row}" for row in range(200_000)]
    lines[number] = 'u10,i10,"Alien\n'
    path = written("\n".join(["user,item,title", *lines]) + "\n")
    refused(rf"quote in line {number + 2} is not closed", from_frame, path, "user", "item", on_error="skip")


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_text_of_several_lines_in_a_column_that_is_not_read(suffix, tmp_path):
    reviews = ["one", 'two\r\n"lines", or\nthree', None, "", "four\n"]
    frame = pandas.DataFrame({"user": "ann", "review": reviews, "item": range(5)})
    frame.to_csv(tmp_path / f"log{suffix}", index=False, quoting=1, encoding="utf-8-sig")
    with pytest.warns(UserWarning, match="'review' holds 3 line ends, the first in row 1. If these are not"):
        log = from_frame(tmp_path / f"log{suffix}", "user", "item")
    assert log[0].tolist() == [*range(5)]


def test_days_of_objects():
    days = pandas.DataFrame({**ROWS, "when": pandas.Series(DAYS[:5] * 2, dtype=object)[:6]})
    for frame in (days, pa.table(days), pa.table(days).to_reader()):
        assert set(from_frame(frame, **ROLES, ties="order").times.tolist()) == {DAYS[0]}


def test_integers_with_gaps_are_integers():
    frame = pandas.DataFrame({"u": [7, None, 8], "i": [1, 2, 3]})
    with pytest.warns(UserWarning, match="row 1: the user id is empty"):
        assert from_frame(frame, "u", "i", on_error="skip").user_ids == ["7", "8"]
    refused("'u' holds floats that are not integers", from_frame, pa.table({"u": [0.5], "i": [1]}), "u", "i")


@pytest.mark.parametrize("frame", [pa.table(ROWS).slice(0, 0), pandas.DataFrame(ROWS).iloc[:0]])
def test_an_empty_table(frame, tmp_path):
    refused("the table holds no interactions", from_frame, frame, "who", "what")
    refused("no interactions", from_frame, frame, "who", "what", directory=tmp_path / "sequences")
    assert os.listdir(tmp_path / "sequences") == []


def test_held_out_data_with_the_ids_of_training():
    train = from_frame(pa.table(ROWS), **ROLES, columns=["country", "price"])
    later = pa.table({**{name: values[:2] for name, values in ROWS.items()}, "country": ["fr", "it"]})
    log = from_frame(later, **ROLES, columns=train.columns, vocabulary=train.vocabulary)
    assert log.vocabulary is train.vocabulary and log.columns["country"].values.tolist() == [1, -1]
    message = "row 0: the item 'milk' is not in the vocabulary"
    refused(message, from_frame, later, **ROLES, vocabulary=Vocabulary(["tea"]))
    prices = later.set_column(4, "price", pa.array(["1", "2"]))
    refused("'price' .* must hold numbers as in", from_frame, prices, **ROLES, columns=train.columns)
    other = later.set_column(3, "country", pa.array(["DE", "FR"]))
    with pytest.warns(UserWarning, match="No value of the column 'country' is one of the 2 categories"):
        from_frame(other, **ROLES, columns=train.columns)


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (ROWS, {}, "not dict"),
        (pa.table(ROWS), {"user": "name"}, "no column 'name'; its columns are"),
        (pandas.DataFrame(ROWS), {"columns": ["hour"]}, "no column 'hour'"),
        (pa.table(ROWS), {"columns": ["what"]}, "'what' occurs twice"),
        (pa.table({**ROWS, "what": [[1]] * 6}), {}, "'what' is of type list"),
        (pa.table({**ROWS, "when": [True] * 6}), {}, "'when' of times is of type bool"),
        (pa.table({**ROWS, "when": [2**60] * 6}), {}, "'when' reach 1152921504606846976"),
        (pandas.DataFrame({**ROWS, "who": [*"abcde", 6]}), {}, "mixes types"),
        (pandas.DataFrame({**ROWS, "when": pandas.Series(DAYS, dtype=object)}), {}, "'when' mixes dates and"),
        (pa.table({**ROWS, "items": [1] * 6}), {"columns": ["items"]}, "rename"),
        (pa.table(ROWS), {"on_error": "ignore"}, "must be one of \\('raise', 'skip'\\)"),
        (pa.table(ROWS), {"columns": "price"}, r"columns must be a list of names, .* pass \['price'\]"),
        (pa.table(ROWS), {"columns": None}, r"columns must be a list of names, but is None: pass \(\)"),
        (pa.table({**ROWS, "example_ids": [1] * 6}), {"columns": ["example_ids"]}, "rename"),
        (pandas.DataFrame({**ROWS, "who": [2**80] * 6}), {}, r"'who', .* more than 64 bits .*astype.str"),
    ],
)
def test_what_cannot_be_read_is_refused(frame, options, message):
    refused(message, from_frame, frame, **{**ROLES, **options})


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing.parquet"):
        from_frame(tmp_path / "nothing.parquet", **ROLES)
    path = as_parquet(pa.table(ROWS), tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    refused("log.parquet cannot be read as a table", from_frame, path, **ROLES)
    (tmp_path / "log.csv").write_bytes(b"who,what\nann,\xff\n")
    message = "1 bad of 1 rows, counted from 0\n  row 0: the item id is not UTF-8 .*encoding="
    refused(message, from_frame, tmp_path / "log.csv", "who", "what")


def test_one_line_in_the_log(caplog):
    with caplog.at_level(logging.INFO, "tfxc"):
        from_frame(pa.table(ROWS), "who", "what")
    told = "the table: Sequences(3 sequences, 6 items, 3 classes) in 0 s"
    assert [record.message for record in caplog.records] == [told]


@pytest.mark.long
def test_split_and_train_with_other_columns():
    from tfxc import ExtremeClassifier, losses
    from tfxc._keras import keras
    from tfxc.layers import DenseHead

    random = np.random.default_rng(0)
    frame = {name: random.integers(0, most, 200) for name, most in (("u", 10), ("i", 6), ("hour", 24))}
    frame["t"] = pandas.date_range("2024-01-01", periods=200, freq="D")
    frame = pandas.DataFrame({**frame, "country": random.choice(["de", "fr"], 200)})
    log = from_frame(frame, "u", "i", "t", columns=["country", "hour"])
    split = leave_last_out(log)
    batches = sequence_training_dataset(split.train, max_length=8, batch_size=4)
    inputs = {name: keras.Input((8,), dtype="int32", name=name) for name in ("items", "country", "hour")}
    parts = [
        keras.layers.Embedding(size, 4)(inputs[name])
        for name, size in (("items", 7), ("country", 3), ("hour", 24))
    ]
    encoder = keras.Model(inputs, keras.layers.Concatenate()(parts))
    model = ExtremeClassifier(encoder, DenseHead(log.num_classes), k=3)
    model.compile("adam", loss=losses.SoftmaxCrossentropy())
    assert np.isfinite(model.fit(batches, epochs=2, verbose=0).history["loss"]).all()
