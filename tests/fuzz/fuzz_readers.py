import gzip
import lzma
import os
import re
import tempfile
import warnings
import zlib
from pathlib import Path

import numpy as np
from fuzz_arrays import Arrays
from fuzz_targets import CALLS, SEEDS, fuzz
from hypothesis import strategies as st

from tfxc import data
from tfxc.mining.hard_negative_table import HardNegativeTable

WORDS = [
    *["a", "b", "c", "tea", "milk", "1", "2", "3", "0", "17"],
    *["", " ", "\t", ",", ":", '"', "'", "\\", "\\n", "=", "=== x ===", "<unk>", "#"],
    *["nan", "inf", "-1", "1e400", "1e-400", "0x10", "1_0", "99999999999999999999", "2147483648"],
    *["-0", "1.5"],
    *["2020-01-01", "2020-13-45", "0001-01-01", "9999-12-31T23:59:59.999999+23:59", "1e308", "-1e308"],
    *["\x00", "\u2028", "\x85", "\ufeff", "é", "ß", "\U0001f600", "İ", "٣", "²", "x" * 300],
]
ENDS = ["\n", "\n", "\n", "\r\n", "\r", "\n\n", ""]
DAMAGES = ("none", "none", "none", "byte", "cut", "insert")
SUFFIXES = (".txt", ".txt", ".txt", ".gz", ".xz")


def lines_of(arrays, kind):
    def word(usual):
        return arrays.pick(WORDS) if arrays.chance(0.08) else str(usual)

    number = arrays.random.integers
    count = int(number(0, 6))
    lines = [" ".join(word(f"w{number(5)}") for _ in range(number(5))) for _ in range(count)]
    if kind == "vocabulary":
        text = "".join(line + "\n" for line in lines)
        return f"tfxc-vocabulary 2 {word(count)} {zlib.crc32(text.encode()):08x}\n{text}"
    return "".join(line + arrays.pick(ENDS) for line in lines)


def damaged(arrays, content, damage):
    if damage == "none" or not content:
        return content
    at = int(arrays.random.integers(len(content)))
    if damage == "cut":
        return content[:at]
    own = bytes(arrays.random.integers(256, size=1 if damage == "byte" else 3, dtype=np.uint8))
    return content[:at] + own + content[at + (damage == "byte") :]


def write(path, content):
    pack = {".gz": lambda raw: gzip.compress(raw, 1), ".xz": lambda raw: lzma.compress(raw, preset=0)}
    Path(path).write_bytes(pack.get(os.path.splitext(path)[1], bytes)(content))


def read(name, function, *args, **kwargs):
    """The result, or None if it was refused in words; and the number of bad rows and of all, or None."""
    CALLS[name] += 1
    with warnings.catch_warnings(record=True, action="always") as told:
        try:
            result = function(*args, **kwargs)
        except ValueError as error:
            assert not isinstance(error, UnicodeError) and len(str(error)) > 20, f"{name}: {error!r}"
            return None, None
    counts = [re.search(r": (\d+) bad of (\d+) ", str(one.message)) for one in told]
    assert all(one.category is UserWarning for one in told), [str(one.message) for one in told]
    return result, next((tuple(map(int, one.groups())) for one in counts if one), None)


def folder_in_memory():
    return tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)


def check_sequences(sequences, name):
    if sequences is None:
        return
    assert len(sequences.items) and len(sequences.vocabulary)
    parts = sequences.items, sequences.offsets, sequences.vocabulary, sequences.user_ids, sequences.times
    data.Sequences(*parts)
    user_ids = sequences.user_ids or []
    assert len(set(user_ids)) == len(user_ids) or name == "read_text"


@fuzz(
    kind=st.sampled_from(["lines", "vocabulary"]),
    suffix=st.sampled_from(SUFFIXES),
    damage=st.sampled_from(DAMAGES),
    seed=SEEDS,
)
def readers(kind, suffix, damage, seed):
    arrays = Arrays(seed)
    with folder_in_memory() as folder:
        content = damaged(arrays, lines_of(arrays, kind).encode(), damage if arrays.chance(0.5) else "none")
        suffix = ".txt" if kind == "vocabulary" else suffix  # which is never packed
        path = os.path.join(folder, "file" + suffix)
        write(path, content)
        if suffix != ".txt":
            Path(path).write_bytes(damaged(arrays, Path(path).read_bytes(), damage))
        for on_error in ("raise", "skip"):
            READERS[kind](path, on_error)


def read_lines(path, on_error):
    vocabulary = data.Vocabulary(["w0", "w1", "w2", "<unk>"])
    for name in ("read_sequences", "read_sessions", "read_text", "read_tokens"):
        for given in (None, vocabulary):
            found, _ = read(name, getattr(data, name), path, vocabulary=given, on_error=on_error)
            check_sequences(found, name)


def read_vocabulary(path, _):
    vocabulary, _ = read("Vocabulary.load", data.Vocabulary.load, path)
    if vocabulary is not None:
        vocabulary.save(path + ".again")
        assert data.Vocabulary.load(path + ".again") == vocabulary


READERS = {"lines": read_lines, "vocabulary": read_vocabulary}


@fuzz(
    rows=st.sampled_from([1, 2, 7]),
    columns=st.sampled_from([1, 3]),
    damage=st.sampled_from([*DAMAGES, "index", "empty", "other"]),
    seed=SEEDS,
)
def hard_negative_files(rows, columns, damage, seed):
    arrays = Arrays(seed)
    with folder_in_memory() as folder:
        first = HardNegativeTable(folder, (rows, columns), query_dim=2, num_classes=100)
        wanted = arrays.ids((rows, columns), 100, low=-1)
        first.write([wanted], epoch=3)
        path = Path(folder, os.listdir(folder)[0])
        content = path.read_bytes()
        if damage == "index":
            payload = 4 * rows * columns
            kind = arrays.pick(["byte", "insert", "cut"])
            content = content[:payload] + damaged(arrays, content[payload:], kind)
        elif damage == "empty":
            content = b""
        elif damage == "other":
            content = bytes(arrays.random.integers(256, size=200, dtype=np.uint8))
        else:
            content = damaged(arrays, content, damage)
        del first  # the map of the old bytes
        path.write_bytes(content)
        again = HardNegativeTable(folder, (rows, columns), query_dim=2, num_classes=100)
        CALLS["HardNegativeTable.resume"] += 1
        try:
            again.resume(epoch=5)
        except ValueError as error:
            assert str(path) in str(error), f"no file is named: {error!r}"
            return
        found = again.rows(np.arange(rows))
        np.testing.assert_array_equal(found, wanted)  # whatever was damaged
