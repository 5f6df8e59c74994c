import os

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from refusal_checks import refused

from tfxc import data
from tfxc.data import Vocabulary

ODD_NAMES = ["", "plain", "two\nlines", "back\\slash", "\\n", "\\\\n", "cr\r", "tab\t", "é\u2028界", "\\"]


def test_encode_and_decode():
    vocabulary = Vocabulary(["b", "a", 17])
    ids = vocabulary.encode([17, "b", "17"])
    assert ids.dtype == np.int32 and ids.tolist() == [2, 0, 2]
    assert vocabulary.decode([[1, 2], [0, 0]]) == [["a", "17"], ["b", "b"]]
    assert vocabulary.decode(np.int64(1)) == "a"
    assert vocabulary.decode([]) == [] and vocabulary.encode([]).shape == (0,)
    assert len(vocabulary) == 3 and "a" in vocabulary and "z" not in vocabulary


def test_bytes_and_tensors_are_text():
    vocabulary = Vocabulary(tf.constant(["tea", "Käse"]))
    assert vocabulary.names == ["tea", "Käse"] and b"tea" in vocabulary and tf.constant("tea") in vocabulary
    assert vocabulary.encode(tf.constant(["Käse", "tea"])).tolist() == [1, 0]
    assert vocabulary.encode([b"tea", "rum"], unknown=-1).tolist() == [0, -1]


@pytest.mark.parametrize("given", [["tea", "rum"], Vocabulary(["tea", "rum"]).names], ids=["list", "names"])
def test_names_in_the_place_of_a_vocabulary_are_refused(given, tmp_path):
    rows = pd.DataFrame({"user": ["u", "u"], "item": ["tea", "rum"], "shop": ["tea", "rum"]})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    message = "must be a tfxc.data.Vocabulary, but got (list|Names): pass tfxc.data.Vocabulary"
    for read in (
        lambda: data.from_frame(rows, "user", "item", vocabulary=given),
        lambda: data.read_csv(tmp_path / "rows.csv", "user", "item", vocabulary=given),
        lambda: data.Sequences.from_lists([["tea"]], vocabulary=given),
        lambda: data.Sequences([0, 1], [0, 2], given),
        lambda: data.Column([0, 1], given),
        lambda: data.read_tokens(tmp_path / "rows.csv", vocabulary=given),
        lambda: data.read_sequences(tmp_path / "rows.csv", vocabulary=given),
    ):
        refused(message, read)
    with pytest.raises(ValueError, match="those of other sequences.* the value of 'shop' is of (list|Names)"):
        data.from_frame(rows, "user", "item", columns={"shop": given})


def test_unknown_names():
    vocabulary = Vocabulary(["tea"])
    assert vocabulary.encode(["tea", "rum"], unknown=-1).tolist() == [0, -1]
    refused("'rum'.*unknown=-1", vocabulary.encode, ["tea", "rum"])
    refused("is the text 'tea': pass .'tea'.", vocabulary.encode, "tea", unknown=-1)
    for unknown in (1.5, True, "x", 2**40):
        refused("unknown must be an integer in", vocabulary.encode, ["rum"], unknown=unknown)


def test_missing_names_and_floats():
    vocabulary = Vocabulary(["None", "nan", "<NA>", "17"])
    missing = [None, np.nan, pd.NA]
    assert vocabulary.encode([*missing, "17", 17], unknown=-1).tolist() == [-1, -1, -1, 3, 3]
    assert not any(name in vocabulary for name in missing)
    refused("name at position 1 is missing", vocabulary.encode, ["17", None])
    with pytest.raises(ValueError, match=r"position 0 is the float 17.0: convert them, .* astype\(\"Int64"):
        vocabulary.encode(pd.Series([17, np.nan]), unknown=-1)
    refused("is the float 17.0", vocabulary.__contains__, 17.0)


def test_what_is_no_id():
    names, ids = Vocabulary("abc"), np.array([2, -1, 0])
    for wrong in ([-2], [3], [[0, 7]]):
        refused(r"outside \[0, 3\)\.$", names.decode, wrong)
    refused("integers, but are float64", names.decode, [0.0])
    refused(r"-1 is outside \[0, 3\). A model returns -1 .*: decode ids\[ids >= 0\]", names.decode, ids)
    assert names.decode(ids[ids >= 0]) == ["c", "a"]


@pytest.mark.parametrize("form", [None, "NFC", "NFKD"])
@pytest.mark.parametrize("names", [ODD_NAMES, ["one"], []])
def test_save_and_load(tmp_path, names, form):
    path = tmp_path / "vocabulary.txt"
    path.write_text("an older file")
    Vocabulary(names, form).save(path)
    assert Vocabulary.load(path) == Vocabulary(names, form)
    assert len(path.read_bytes().split(b"\n")) == len(names) + 2
    assert os.listdir(tmp_path) == ["vocabulary.txt"]


def test_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "vocabulary.txt"
    Vocabulary(["old"]).save(path)

    def full(aside):
        raise OSError("the disk is full")

    monkeypatch.setattr("tfxc.atomic_write.sync", full)  # by then all is written
    with pytest.raises(OSError, match="the disk is full"):
        Vocabulary(["new"]).save(path)
    assert Vocabulary.load(path).names == ["old"] and os.listdir(tmp_path) == ["vocabulary.txt"]


def test_truncated_or_edited_file(tmp_path):
    path = tmp_path / "vocabulary.txt"
    Vocabulary(["one", "two", "three"]).save(path)
    whole = path.read_bytes()
    other = b"tfxc-vocabulary 2 1 ff000000\n\xff\n"
    changed = whole.replace(b"\n", b"\r\n"), whole.replace(b"two", b"twp")
    for damaged in (whole[:-1], whole[:-4], whole + b"x\n", *changed, other):
        path.write_bytes(damaged)
        refused("vocabulary.txt is damaged, .* lacks the [13] names or the c", Vocabulary.load, path)
    for text in (b"", b"a\nb\n", b"tfxc-vocabulary 2 x\n", b"\xff"):
        path.write_bytes(text)
        refused("vocabulary.txt is not a vocabulary", Vocabulary.load, path)


def test_merge_keeps_ids_and_gives_those_of_retired_names_to_new_ones():
    old = Vocabulary(["a", "b", "c", "d"])
    assert Vocabulary.merge(old, ["y", "d", "x", "b", "a"]).names == ["a", "b", "y", "d", "x"]
    assert Vocabulary.merge(old, ["d", "c", "b", "a"]).names == ["a", "b", "c", "d"]
    assert Vocabulary.merge(["a", "b", "c", "d"], ["d", "x"]).names == ["d", "x"]  # fewer: the last one moves
    assert Vocabulary.merge(old, ["x", "y"]).names == ["x", "y"]
    refused("'a' occurs twice", Vocabulary.merge, old, ["a", "a"])
    assert Vocabulary.merge(Vocabulary(["a"], "NFC"), ["a ", "b"]) == Vocabulary(["a", "b"], "NFC")
