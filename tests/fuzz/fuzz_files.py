"""Odd and damaged files of logs and points: no reader breaks, invents a name or loses a row silently."""

import gzip
import io
import json
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import scipy.sparse
from fuzz_arrays import Arrays
from fuzz_readers import DAMAGES, WORDS, check_sequences, damaged, folder_in_memory, read, write
from fuzz_targets import SEEDS, fuzz
from hypothesis import strategies as st

from tfxc import data

NAMES = [
    *[*WORDS, "NULL", r"\N", "None", "N/A", "7", "7.0", "7.50", "\u00e9", "e\u0301", "a ", " a", "\u00a0a"],
    *['"a"', '"a""b"', '"x \\"q\\" y"', '"a\nb"', '"a,b"', ' "a" ', '"open', 'in"side', "user_id:token", "{"],
]
TIMES = [
    *["1", "2", "2.5", "20240501", "2024-05-01", "2024-05-01 12:00 UTC", "2024-05-01T12:00:00.5+00"],
    *["05/01/2024", "2016-12-31T23:59:60", "1714564800000", "1714564800000000", "1714564800000000001"],
    *["12:00", "43200000", "nan"],
    *["-1", "1e9", "", " ", "NULL", "9999-12-31T23:59:60", "1_0", "\u0663", "24:00:00", "1" * 400],
]
HEADERS = [
    *["user,item,time", " user , item,time ", "user:token,item:token,time:float", "time,user,item"],
    *["user,item", "user,user,item", "user,item,time,price,price", "", "a,b,c"],
]
OPTIONS = {
    "ties": [None, "order", "random"],
    "missing": [(), ("NULL", r"\N", "")],
    "encoding": [None, None, None, "latin-1", "utf-16", "cp1252"],
    "time_format": [None, None, None, "ms", "ns", "s", "%Y%m%d", "%d/%m/%Y"],
}
POINTS = [
    *["0:1", "1:.5", "2: 1", " ", "0,1", "0.0", "1,", "9:1", "1:nan", "1:1e40"],
    *["x", "-1:1", "1", "1:1:1", "\u0661:1"],
]


def rows(arrays, columns, count):
    """Rows of fields, mostly usual ones."""
    usual = {"user": ["u1", "u2"], "item": ["i1", "i2", "i3"], "time": [arrays.pick(TIMES)]}
    odd = {"time": TIMES}
    for _ in range(count):
        row = [
            arrays.pick(odd.get(name, NAMES) if arrays.chance(0.1) else usual.get(name, ["p", "1", ""]))
            for name in columns
        ]
        if arrays.chance(0.03):
            row = row[:-1] if arrays.chance(0.5) else [*row, "more"]
        yield row


def log_of(arrays, suffix):
    count = int(arrays.random.integers(0, 12))
    names = arrays.pick(HEADERS).split(",")
    plain = [name.strip().partition(":")[0] for name in names]
    if suffix == ".jsonl":
        values = [dict(zip(plain, row, strict=False)) for row in rows(arrays, plain, count)]
        return "".join(json.dumps(value) + "\n" for value in values)
    between = arrays.pick([",", ",", "\t", ";", "|", ", ", " "])
    lines = [between.join(names), *(between.join(row) for row in rows(arrays, plain, count))]
    return arrays.pick(["\n", "\n", "\r\n"]).join(lines) + arrays.pick(["\n", "\n", ""])


def points_of(arrays, suffix):
    if suffix == ".json":
        found = arrays.pick([[0, 1], [5], ["x"], None, [1.5], "tea", []])
        return "".join(json.dumps({"title": "tea", "target_ind": found}) + "\n" for _ in range(2))
    count = int(arrays.random.integers(0, 4))
    header = arrays.pick([f"{count} 3", f"{count} 3 2", f"{count} 3", "", "1:1"])
    lines = [
        " ".join(arrays.pick(POINTS[:3] if arrays.chance(0.8) else POINTS) for _ in range(2))
        for _ in range(count)
    ]
    return "\n".join([header, *lines]) + "\n"


def bytes_of(arrays, suffix):
    """A binary file: Parquet of a log, or an array."""
    file, size = io.BytesIO(), int(arrays.random.integers(0, 5))
    if suffix == ".parquet":
        values = {pa.binary(): b"7", pa.string(): "7", pa.int8(): 7, pa.float64(): 7}
        values |= {pa.decimal128(9, 1): Decimal(7), pa.null(): None}
        kind = arrays.pick([*values])
        times = np.arange(size) * 10 ** int(arrays.random.integers(0, 17))
        users = [f"u{i}" for i in range(size)]
        items = pa.array([values[kind]] * size, kind)
        pa.parquet.write_table(pa.table({"user": users, "item": items, "time": times}), file)
    elif suffix == ".npz":
        scipy.sparse.save_npz(file, scipy.sparse.csr_matrix(np.eye(size + 1)))
    else:
        np.save(file, arrays.pick([np.eye(3), np.float32([1, np.nan]), np.array(["a"]), np.array([[True]])]))
    return file.getvalue()


def check_names(log, content, name):
    """Every name is in the file, as it is written there."""
    doubled = content.replace('""', '"')
    for own in [*log.vocabulary.names, *log.user_ids]:
        escaped = [json.dumps(own, ensure_ascii=to_ascii)[1:-1] for to_ascii in (True, False)]
        known = own in doubled or any(form in content for form in [own, *escaped])
        assert known, f"{name}: {own!r} is no name"


def check_log(path, content, options, on_error, arrays):
    text = content.decode(options["encoding"] or "utf-8-sig", "replace")
    is_plain = '"' not in text and not options["missing"] and options["encoding"] != "utf-16"
    is_plain &= "\r" not in text.replace("\r\n", "\n") and "\x00" not in text
    reader, time = arrays.pick([data.from_frame, data.read_csv]), arrays.pick(["time", "time", None])
    name = reader.__name__
    log, bad = read(name, reader, path, "user", "item", time, on_error=on_error, **options)
    if log is not None:
        check_sequences(log, name)
        if path.suffix != ".parquet":
            check_names(log, text, name)
        if path.suffix not in (".parquet", ".jsonl") and is_plain:
            num_rows = sum(bool(line.strip()) for line in text.split("\n")) - 1
            assert count_of(log, bad) == num_rows, f"{name}: of {num_rows} rows, {log}, {bad}"
    delimiter = arrays.pick([",", None, "\t"])
    name = "read_interactions"
    log, bad = read(name, data.read_interactions, path, None, delimiter, on_error=on_error, **options)
    if log is not None:
        check_sequences(log, name)
        check_names(log, text, name)
        if options["encoding"] is None and not options["missing"]:
            # A header with types is left out; a line that is not UTF-8 may look blank.
            num_rows = sum(any(map(str.strip, line.split(delimiter))) for line in text.split("\n"))
            assert 0 <= num_rows - count_of(log, bad) <= 1, f"of {num_rows} rows, {log}, {bad}"


def count_of(log, bad):
    return len(log.items) + (bad[0] if bad else 0)


def check_points(path, content, options, on_error, arrays):
    other = path.with_name("labels.txt")
    other.write_text("2 3\n0:1\n1:1\n")
    name, labels = "read_extreme_classification", arrays.pick([None, other])
    points, _ = read(name, data.read_extreme_classification, path, on_error, labels)
    if points is not None:
        assert np.isfinite(points.features.data).all()
        data.write_extreme_classification(other, points)
        again = data.read_extreme_classification(other)
        assert (again.labels != points.labels).nnz == (again.features != points.features).nnz == 0
    matrix, _ = read("read_sparse_matrix", data.read_sparse_matrix, path, on_error, num_columns=3)
    assert matrix is None or (matrix.dtype == np.float32 and np.isfinite(matrix.data).all())
    pairs, _ = read("read_filter_labels", data.read_filter_labels, path, on_error)
    assert pairs is None or (pairs.shape[1:] == (2,) and (pairs >= 0).all())
    texts, _ = read("read_texts", data.read_texts, path, encoding=options["encoding"])
    if texts is not None and path.suffix != ".json" and options["encoding"] is None:
        assert list(texts) == [line.strip() for line in content.decode("utf-8-sig").split("\n")][: len(texts)]


KINDS = {
    **dict.fromkeys([".csv", ".tsv", ".txt", ".inter", ".jsonl"], (log_of, check_log)),
    ".parquet": (bytes_of, check_log),
    ".dat": (points_of, check_points),
    ".json": (points_of, check_points),
    ".npz": (bytes_of, check_points),
    ".npy": (bytes_of, check_points),
}


@fuzz(
    suffix=st.sampled_from([".csv", ".csv", ".csv", *KINDS]),
    packed=st.booleans(),
    damage=st.sampled_from(DAMAGES),
    seed=SEEDS,
)
def odd_files(suffix, packed, damage, seed):
    arrays = Arrays(seed)
    make, check = KINDS[suffix]
    with folder_in_memory() as folder:
        content = make(arrays, suffix)
        options = {name: arrays.pick(choices) for name, choices in OPTIONS.items()}
        if isinstance(content, str):
            encoding = arrays.chance(0.5) and options["encoding"]
            content = content.encode(encoding or "utf-8", "replace")
        content = damaged(arrays, content, damage)
        path = Path(folder, "file" + suffix)
        write(path, content)
        for on_error in ("raise", "skip"):
            check(path, content, options, on_error, arrays)
        if packed and check is check_log and suffix != ".parquet":
            Path(f"{path}.gz").write_bytes(damaged(arrays, gzip.compress(content, 1), damage))
            for reader in (data.from_frame, data.read_csv):
                read(f"{reader.__name__} .gz", reader, f"{path}.gz", "user", "item", **options)
