"""What real files hold, in each reader that takes such a file; `odd_files.jsonl` holds a file a line."""

import contextlib
import datetime
import decimal
import gzip
import json
import lzma
import uuid
from pathlib import Path

import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet
import pytest
from refusal_checks import refused

from tfxc.data import Vocabulary, from_frame, read_csv, read_interactions


def by_line(path, user, item, time=None, **options):
    """`read_interactions`; a header is left out first, which it would read as a line."""
    header, _, rest = path.read_bytes().partition(b"\n")
    if path.suffix != ".csv":
        return read_interactions(path, **options)
    path.with_name("log.dat").write_bytes(rest)
    roles = {user: "user", item: "item"}
    roles |= dict.fromkeys([time] if isinstance(time, str) else time or (), "time")
    columns = [roles.get(name.strip(), "other") for name in header.decode("latin-1").split(",")]
    return read_interactions(path.with_name("log.dat"), columns, delimiter=",", **options)


READERS = {"from_frame": from_frame, "read_csv": read_csv, "read_interactions": by_line}
CASES = [json.loads(line) for line in Path(__file__).with_name("odd_files.jsonl").read_text().splitlines()]


def names_of(log):
    return {user: log.vocabulary.decode(log[u]) for u, user in enumerate(log.user_ids)}


def log_of_times(times, kind=None):
    users = [f"u{i}" for i in range(len(times))]
    return pa.table({"u": users, "i": ["tea"] * len(times), "t": pa.array(times, kind)})


@pytest.mark.parametrize(
    ("case", "reader"),
    [
        pytest.param(case, reader, id=f"{case['what']}-{reader}")
        for case in CASES
        for reader in case.get("readers", READERS)
    ],
)
def test_odd_files(case, reader, written):
    path = written(case["text"], case.get("file", "log.csv"), case.get("written", "utf-8"))
    has_times = case["text"].split("\n")[0].strip().endswith("t")
    roles = case.get("roles", ["u", "i", "t"] if has_times else ["u", "i"])
    options = case.get("options", {})
    if "vocabulary" in case:
        options["vocabulary"] = Vocabulary(case["vocabulary"], "NFC")
    told = pytest.warns(UserWarning, match=case["warns"]) if "warns" in case else contextlib.nullcontext()
    bad = pytest.raises(ValueError, match=case["raises"]) if "raises" in case else contextlib.nullcontext()
    with told, bad:
        log = READERS[reader](path, *roles, **options)
    if "names" in case:
        assert names_of(log) == case["names"]
    if "times" in case:
        times = log.times if log.times.dtype.kind == "M" else (log.times * 1e6).astype("datetime64[us]")
        want = list(map(datetime.datetime.fromisoformat, case["times"]))
        assert times.astype("datetime64[us]").tolist() == want
    for name, want in case.get("columns", {}).items():
        names, values = log.columns[name].vocabulary, log.columns[name].values.tolist()
        assert values == want if names is None else [[*names.names, None][i] for i in values] == want


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_ties_by_chance(read, written):
    path = written(next(case["text"] for case in CASES if case["what"] == "ties"))
    one, same, other = (read(path, "u", "i", "t", ties="random", seed=seed) for seed in (1, 1, 2))
    assert one.items.tolist() == same.items.tolist() != other.items.tolist()
    assert all(sorted(own) == [0, 1, 2, 3, 4] for own in one)
    assert 0.2 < np.mean(np.diff(one.items.reshape(-1, 5)) > 0) < 0.8


TWO, ONE = decimal.Decimal(2), decimal.Decimal(1)
IDS = {
    "decimal": pa.array([TWO, ONE], pa.decimal128(38, 0)),
    "scaled decimal": pa.array([TWO, ONE], pa.decimal128(38, 2)),
    "narrow decimal": pa.array([TWO, ONE], pa.decimal32(9, 0)),
    "categories": pa.array(["2", "1"]).dictionary_encode(),
}
IDS |= {str(kind): pa.array([b"2", b"1"], kind) for kind in (pa.binary(), pa.binary_view(), pa.binary(1))}


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
def test_ids_of_other_types(ids, tmp_path):
    frame = pa.table({"u": ids, "i": ids})
    pa.parquet.write_table(frame, tmp_path / "log.parquet")
    for source in (frame, tmp_path / "log.parquet"):
        assert names_of(from_frame(source, "u", "i")) == {"2": ["2"], "1": ["1"]}


@pytest.mark.parametrize("form", [pa.table, pandas.DataFrame])
def test_ids_that_are_uuids(form):
    ids = [uuid.UUID(int=7), uuid.UUID(int=5)]
    assert from_frame(form({"u": ids, "i": ["a", "b"]}), "u", "i").user_ids == list(map(str, ids))


def test_ids_that_are_no_names():
    table = pa.table({"u": pa.array([b"ann", b"\xff", b"bob"]), "i": ["a", "b", None]})
    for own in (table, table.set_column(0, "u", table["u"].chunk(0).view(pa.string()))):
        refused("(?s)2 bad of 3.*row 1: the user id is not UTF-8 at byte 0.*row 2", from_frame, own, "u", "i")
        with pytest.warns(UserWarning, match="2 bad of 3"):
            assert names_of(from_frame(own, "u", "i", on_error="skip")) == {"ann": ["a"]}
    half = pa.table({"u": [decimal.Decimal("1.5")], "i": [1]})
    refused("'u' holds decimals that are not integers", from_frame, half, "u", "i")
    refused("2 bad of 2", from_frame, pa.table({"u": [None, None], "i": [None, 1]}), "u", "i")


def test_names_of_a_table_keep_their_blanks_and_line_ends():
    table = pa.table({"u": [*"abcd"], "i": ["cafe\u0301", "\u00a0caf\u00e9", "tea ", "tea"]})
    with pytest.warns(UserWarning, match=r"2 item names differ from others only .* such as .* beside .*NFC"):
        log = from_frame(table, "u", "i")
    one = from_frame(table, "u", "i", vocabulary=Vocabulary(log.vocabulary.names, normalize="NFC"))
    assert one.vocabulary.names == ["caf\u00e9", "tea"] and one.items.tolist() == [0, 0, 1, 1]
    table = pa.table({"u": ["a"], "i": ["two\nlines"]})
    assert from_frame(table, "u", "i").vocabulary.names == ["two\nlines"]


@pytest.mark.parametrize("times", [[20240501, 20231231], [20240501.0, None]])
def test_numbers_that_look_like_dates(times):
    message, own = 'such as 20240501.*, look like dates: pass time_format="%Y%m%d"', log_of_times(times[:1])
    refused(message, from_frame, own, "u", "i", "t")
    with contextlib.nullcontext() if all(times) else pytest.warns(UserWarning, match="1 bad of 2"):
        log = from_frame(log_of_times(times), "u", "i", "t", time_format="%Y%m%d", on_error="skip")
    assert log.times[0] == np.datetime64("2024-05-01")
    assert from_frame(own, "u", "i", "t", time_format="s").times.tolist() == times[:1]


def test_times_of_other_types():
    decimals = pa.decimal128(20, 2), pa.decimal64(9, 2)
    for kind in (None, *decimals, pa.float32(), pa.dictionary(pa.int8(), pa.int64())):
        assert from_frame(log_of_times([8, 5], kind), "u", "i", "t").times.tolist() == [8, 5]
    texts = pa.array(["2024-05-01", "2024-05-02"]).dictionary_encode()
    for frame in (log_of_times(texts), log_of_times(texts).to_pandas()):
        assert from_frame(frame, "u", "i", "t").times[1] == np.datetime64("2024-05-02")
    clocks = pa.array([datetime.time(12), datetime.time(13)])
    table = log_of_times([datetime.date(2024, 5, 1)] * 2).append_column("c", clocks)
    assert from_frame(table, "u", "i", ("t", "c")).times[1] == np.datetime64("2024-05-01T13:00")
    millis = log_of_times([1.5, float("nan")])
    with pytest.warns(UserWarning, match="1 bad of 2"):
        log = from_frame(millis, "u", "i", "t", time_format="ms", on_error="skip")
    assert log.times[0] == np.datetime64(2, "ms")


@pytest.mark.parametrize("rest", ["2.5", "S"])
def test_a_column_that_nobody_asked_for_may_hold_anything(rest, monkeypatch, written):
    monkeypatch.setattr("tfxc.data.text_tables._BLOCK", 64)
    rows = "".join(f"ann,tea,{price}\n" for price in [1] * 30 + [rest])
    for read in (from_frame, read_csv):
        assert len(read(written("u,i,price\n" + rows), "u", "i").items) == 31


def test_a_wanted_column_that_is_empty_at_first(monkeypatch, written):
    monkeypatch.setattr("tfxc.data.text_tables._BLOCK", 64)
    path = written("u,i,t\n" + "ann,tea,\n" * 30 + "bob,rum,2024-05-01\n")
    with pytest.warns(UserWarning, match="30 bad of 31"):
        assert names_of(from_frame(path, "u", "i", "t", on_error="skip")) == {"bob": ["rum"]}


@pytest.mark.parametrize(("first", "rest"), [("1", "2.5"), ("", "7"), ("1", "S")])
def test_a_wanted_column_whose_first_values_mislead(first, rest, monkeypatch, written):
    monkeypatch.setattr("tfxc.data.text_tables._BLOCK", 64)
    rows = "".join(f"ann,tea,{value}\n" for value in [first] * 30 + [rest])
    message = f"In CSV column #2: .* '{rest}'.* read the file with pandas"
    refused(message, from_frame, written("u,i,n\n" + rows), "u", "i", columns=["n"])


def test_json_numbers_that_are_no_integers_later(monkeypatch, written):
    monkeypatch.setattr("tfxc.data.tables._HEAD", 64)
    rows = [{"u": 7, "i": "tea", "t": time} for time in [1] * 9 + [2.5]]
    path = written("".join(json.dumps(row) + "\n" for row in rows), "log.jsonl")
    refused("JSON to int64.* read the file with pandas", from_frame, path, "u", "i", "t")


def test_a_row_of_another_length_that_is_not_utf8(capfd, written):
    path = written("u,i\nann,tea\nann,caf\u00e9,1\n", encoding="latin-1")
    for on_error in ("raise", "skip"):
        refused("Row #3: Expected 2 columns, got 3", from_frame, path, "u", "i", on_error=on_error)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("first", ["Bonn", "Köln"])  # what the first block holds decides the type
def test_categories_that_are_not_utf8(first, monkeypatch, written):
    monkeypatch.setattr("tfxc.data.text_tables._BLOCK", 40)
    text = f"u,i,city\nann,a,{first}\n" + "ann,b,\n" * 9 + "ann,c,Köln\n"
    path = written(text, encoding="latin-1")
    message = r"row 10: the city is not UTF-8 at byte 1: b'K\\xf6ln'; .*encod"
    refused(message, from_frame, path, "u", "i", columns=["city"])
    log = from_frame(path, "u", "i", columns=["city"], encoding="latin-1")
    assert log.columns["city"].vocabulary.names == list(dict.fromkeys([first, "Köln"]))
    log = from_frame(path, "u", "i", columns=["city"], encoding="latin-1", missing=["Köln"])
    assert log.columns["city"].values.tolist() == [0 if first == "Bonn" else -1] + [-1] * 10


def test_the_home_folder_by_its_short_name(monkeypatch, written, tmp_path):
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    written("u,i\nann,tea\n")
    assert names_of(from_frame("~/log.csv", "u", "i")) == {"ann": ["tea"]}
    message = "one data frame, which pandas.concat makes of several"
    refused(message, from_frame, [pandas.DataFrame()], "u", "i")


def test_what_the_line_readers_leave_to_from_frame(tmp_path):
    as_parquet(pa.table({"u": ["a"], "i": ["b"]}), tmp_path / "log.x")
    for read in (lambda path: read_csv(path, "u", "i"), read_interactions):
        for source in (tmp_path / "log.parquet", tmp_path, [tmp_path / "log.csv"]):
            refused("tfxc.data.from_frame", read, source)


@pytest.mark.parametrize("read", [from_frame, read_csv])
@pytest.mark.parametrize(("suffix", "pack"), [("GZ", gzip.compress), ("xz", lzma.compress)])
def test_packed_files_and_suffixes_in_capitals(suffix, pack, read, tmp_path):
    path = tmp_path / f"LOG.CSV.{suffix}"
    path.write_bytes(pack(b"u,i\nann,tea\n"))
    assert names_of(read(path, "u", "i")) == {"ann": ["tea"]}
    path.write_bytes(pack(b"u,i\nann,tea\n")[:-9])
    refused(f"LOG.CSV.{suffix} cannot be", read, path, "u", "i")


def test_frames_of_other_numbers():
    sparse = pandas.DataFrame({"u": pandas.arrays.SparseArray([1]), "i": [1]})
    refused("Sparse pandas data .*: convert it to one type", from_frame, sparse, "u", "i")
    unknown = pandas.DataFrame({"u": ["ann"], "i": [1j]})
    refused("holds what Arrow does not, .*complex128", from_frame, unknown, "u", "i")
    table = pa.table({"u": pa.array(np.float16([1, 2])), "i": [1, 1], "n": [decimal.Decimal("1.5")] * 2})
    log = from_frame(table, "u", "i", columns=["n"])
    assert log.user_ids == ["1", "2"] and log.columns["n"].values.tolist() == [1.5, 1.5]


def test_a_lazy_frame():
    frame = polars.LazyFrame({"u": ["ann"], "i": ["tea"], "n": [1]})
    assert names_of(from_frame(frame, "u", "i")) == {"ann": ["tea"]}
    refused(r"has no column 't'; its columns are \['u', 'i', 'n'\]", from_frame, frame, "u", "i", "t")


def as_csv(table, path):
    rows = [f"{row['u']},{row['i']}\n" for row in table.to_pylist()]
    path.with_suffix(".csv").write_text("u,i\n" + "".join(rows))


def as_parquet(table, path):
    pa.parquet.write_table(table, path.with_suffix(".parquet"))


@pytest.mark.parametrize("write", [as_csv, as_parquet])
@pytest.mark.parametrize("scheme", ["", "file://", "s3://"])
def test_patterns_lists_folders_and_uris(write, scheme, monkeypatch, tmp_path):
    (tmp_path / "log").mkdir()
    for number, item in enumerate(("tea", "rum")):
        write(pa.table({"u": ["ann"], "i": [item]}), tmp_path / "log" / f"part-{number}.x")
    (tmp_path / "log" / "readme.txt").write_text("Hello!\n")
    folder = tmp_path / "log"
    paths = sorted(folder.glob("part-*"))
    if scheme == "s3://":  # any other file system is one of pyarrow's: here the folder itself
        local = pyarrow.fs.SubTreeFileSystem(str(tmp_path), pyarrow.fs.LocalFileSystem())
        monkeypatch.setattr("tfxc.data.files.file_system_of", lambda uri: (local, uri.partition("://")[2]))
        folder, paths = Path("log"), [Path("log", path.name) for path in paths]
        with pytest.raises(FileNotFoundError, match="nothing.csv"):
            read_csv("s3://nothing.csv", "u", "i")
    sources = [f"{scheme}{folder}", [f"{scheme}{path}" for path in paths]]
    for source in sources if scheme else [*sources, folder, str(folder / "part-*"), paths]:
        assert names_of(from_frame(source, "u", "i")) == {"ann": ["tea", "rum"]}
    if write is as_csv:
        assert names_of(read_csv(f"{scheme}{paths[1]}", "u", "i")) == {"ann": ["rum"]}


def test_sources_that_cannot_be_read(written, tmp_path):
    for uri in ("https://example.org/log.csv", "file:///a b"):
        for read in (from_frame, read_csv):
            refused("cannot be opened .* pass a path on a disk, or .* s3://", read, uri, "u", "i")
    refused("frame is an empty list", from_frame, [], "u", "i")
    texts = {"a.csv": "u,i\nann,tea\n", "b.tsv": "u\ti\nann,tea\trum\n"}
    paths = [written(text, name) for name, text in texts.items()]
    assert from_frame(tmp_path, "u", "i").user_ids == ["ann", "ann,tea"]
    message = "a.csv is there 2 times, and so would be its rows: pass it once"
    refused(message, from_frame, [str(tmp_path / "*.csv"), paths[0]], "u", "i")
    message = r"2 files from .*b.tsv holds files of several kinds, \['csv', 'par"
    refused(message, from_frame, [paths[1], written("", "c.parquet")], "u", "i")


def test_rows_of_several_text_files_are_counted_through_them(written):
    texts = ["u,i\na,x\nb\n", "i,u\n,c\ny,d\nz\n"]
    paths = [written(text, f"{number}.csv") for number, text in enumerate(texts)]
    message = "(?s)3 bad of 5 rows.*row 1: found 1 .*row 2: the item id.*row 4: found"
    refused(message, from_frame, paths, "u", "i")
    with pytest.warns(UserWarning, match="3 bad of 5"):
        assert names_of(from_frame(paths, "u", "i", on_error="skip")) == {"a": ["x"], "d": ["y"]}


@pytest.mark.parametrize("days", [["2024-01-02", "2024-01-01"], ["20240102", "20240101"]])
def test_folders_that_name_a_partition(days, tmp_path):
    for number, (day, item) in enumerate(zip(days, ("tea", "rum"), strict=True)):
        folder = tmp_path / f"day={day}" / f"user=00{number} %25"
        folder.mkdir(parents=True)
        as_parquet(pa.table({"u": ["ann"], "i": [item]}), folder / "part.x")
    log = from_frame(tmp_path, "u", "i", "day")
    assert names_of(log) == {"ann": ["rum", "tea"]} and log.times[1] == np.datetime64("2024-01-02")
    log = from_frame(tmp_path, "user", "i", columns=["day"])
    assert log.user_ids == ["001 %", "000 %"]
    assert (log.columns["day"].vocabulary is None) == ("-" not in days[0])


def test_folders_that_name_numbers_and_texts_name_texts(tmp_path):
    for shop in ("7", "north", "__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / f"shop={shop}").mkdir()
        as_parquet(pa.table({"u": [shop], "i": ["tea"]}), tmp_path / f"shop={shop}" / "part.x")
    column = from_frame(tmp_path, "u", "i", columns=["shop"]).columns["shop"]
    assert column.vocabulary.names == ["7", "north"] and column.values.tolist() == [0, -1, 1]


def test_names_of_columns_are_texts():
    frame = pandas.DataFrame([["ann", "tea", 1]])  # as of a file without a header
    for roles in ((0, 1), (0, 1, 2)):
        refused("which are texts, but got 0: rename|but is 2", from_frame, frame, *roles)
    assert from_frame(frame.rename(columns=str), "0", "1", "2").user_ids == ["ann"]


@pytest.mark.parametrize("read", [from_frame, read_csv])
def test_spellings_of_nothing_from_a_generator(read, written):
    path = written("u,i\nNULL,tea\nann,NA\nbob,rum\n")
    assert names_of(read(path, "u", "i", missing=iter(["NULL", "NA"]))) == {"bob": ["rum"]}
    refused("missing must be several texts, .* but is None", read, path, "u", "i", missing=None)
