import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from tfxc.data import Vocabulary
from tfxc.serving.class_names import ClassIds, ClassNames, names_array

NAMES = ["tea", "Käse", "7", " space ", "milk"]


@pytest.fixture
def class_ids(tmp_path):
    return ClassIds(NAMES, str(tmp_path / "names.txt"))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"a", "b"}, "must be a list of names in the order .*, but are set.* sorted.names. of a set"),
        ({"a": 0}, "but are dict"),
        (Vocabulary(["a", "b"]), "but are Vocabulary. Pass the names of a tfxc.data.Vocabulary"),
        (pd.DataFrame({"name": ["a", "b"]}), "but are DataFrame"),
        (np.array([["a"], ["b"]]), "but are ndarray"),
        (["a", float("nan"), None], "hold none for class 1: give it a name"),
        ([], "empty list"),
    ],
)
def test_what_is_no_list_of_names_is_refused(names, message):
    with pytest.raises(ValueError, match=f"^The names .*{message}"):
        names_array(names, "The names")
    assert names_array(Vocabulary(["a", "b"]).names, "The names").to_pylist() == ["a", "b"]


def test_half_a_character_is_named_by_its_class():
    with pytest.raises(ValueError, match=r"^The name of class 1, '.ud83d', holds half a character"):
        names_array(["a", "\ud83d"], "The names")


def test_names_of_ids():
    got = ClassNames(NAMES).of(tf.constant([[4, -1], [1, 2]])).numpy()
    assert got.tolist() == [[b"milk", b""], ["Käse".encode(), b"7"]]


def test_ids_of_names(class_ids):
    names = tf.constant([[*NAMES, "tea ", "", "beer"]])
    assert class_ids.of(names).numpy().tolist() == [[0, 1, 2, 3, 4, -1, -1, -1]]


@pytest.mark.parametrize("length", [None, 2, 5])
def test_histories_pass_over_what_is_no_class(class_ids, length):
    random = np.random.default_rng(0)
    names = random.choice([*NAMES, "gone", ""], size=(50, 4))
    got = class_ids.histories(tf.constant(names), length, row_offset=3).numpy()
    for row, own in zip(got, names, strict=True):
        want = [NAMES.index(name) + 3 for name in own if name in NAMES]
        wide = [0] * 9 + want
        assert row.tolist() == wide[len(wide) - (length or 4) :]


@pytest.mark.parametrize("length", [None, 3])
def test_a_history_of_no_items_is_padding(class_ids, length):
    got = class_ids.histories(tf.zeros([2, 0], tf.string), length).numpy()
    assert got.tolist() == [[0] * (length or 1)] * 2


def test_names_that_are_no_distinct_lines_are_refused(tmp_path):
    for names, message in (
        (["a", "b", "a"], "'a' occurs twice"),
        (["a\r"], "line break"),
        (["a", ""], "Class 1 has an empty name"),
        ([1, "1"], "'1' occurs"),
    ):
        with pytest.raises(ValueError, match=message):
            ClassIds(names, str(tmp_path / "names.txt"))
