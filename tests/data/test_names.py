import datetime
import pickle

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tensorflow as tf
from memory_checks import with_peak
from refusal_checks import refused

import tfxc
from tfxc._keras import keras
from tfxc.data.names import Names, first_repeated, texts


def test_reads_like_a_list():
    names = Names(["b", "", 7, "é"])
    assert list(names) == ["b", "", "7", "é"] == names and names == ("b", "", "7", "é")
    assert names[0] == "b" and names[np.int64(-1)] == "é" and type(names[0]) is str
    assert names[1:3] == ["", "7"] and names[np.array([3, 3])] == ["é", "é"] and names[[]] == []
    assert names[np.array([False, True, False, True])] == ["", "é"] and names[[-1]] == ["é"]
    refused("mask of shape", names.__getitem__, [True])
    assert "7" in names and "x" not in names and names.index("7") == 2
    with pytest.raises(IndexError):
        names[4]


def test_equality():
    assert Names("ab") == Names(["a", "b"]) != Names("ba")
    assert Names("ab") != ["a"] and Names("ab") != "ab" and Names([]) == []
    assert list(Names(range(70_000))) == [str(i) for i in range(70_000)]  # more than a block


def test_arrow_arrays_give_what_lists_do():
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        assert Names(pa.array(["x", "y"], kind)) == ["x", "y"]
    refused("1 of 2 names are null, the first at position 1", Names, pa.array(["x", None]))
    for values in ([True, False], [b"tea", b"rum"], [datetime.date(2024, 5, 1)]):
        assert Names(pa.array(values)) == Names(values)
    assert Names(pa.array(["tea", "rum"]).dictionary_encode()) == ["tea", "rum"]
    refused("is not UTF-8: decode names first", Names, pa.array([b"\xff"]))


def test_pickle_and_repr():
    assert pickle.loads(pickle.dumps(Names("abcd"))) == list("abcd")
    assert repr(Names("ab")) == "['a', 'b']"
    assert repr(Names(range(11))).endswith("'8', '9', ... 11 names]")


TEXTS = ["tea", "Käse", "7", " space "]


@pytest.mark.parametrize("form", [list, np.array, tf.constant, pa.array, pd.Series, iter])
def test_names_as_bytes_are_text(form):
    given = [name.encode() for name in TEXTS]
    assert texts(form(given)) == TEXTS and Names(form(given)) == TEXTS
    assert texts(TEXTS) is TEXTS  # ten million cost no copy


def test_bytes_are_text_wherever_they_stand():
    assert texts(["tea", b"milk", 7]) == texts(np.array(["tea", b"milk", 7], object)) == ["tea", "milk", "7"]
    assert texts([np.bytes_(b"tea"), np.str_("milk"), np.int8(7)]) == ["tea", "milk", "7"]
    tensors = tf.data.Dataset.from_tensor_slices(["tea", "Käse"])
    assert Names(tensors) == Names(text.numpy() for text in tensors) == ["tea", "Käse"]
    assert Names(tf.constant([7, 8])) == Names(pa.chunked_array([["7"], ["8"]])) == ["7", "8"]
    refused("is not UTF-8: decode names first", texts, ["tea", b"\xff"])
    refused(r"^The name at position 1, '.ud83d', holds half a character", Names, ["tea", "\ud83d"])


def test_names_of_a_pandas_series_stand_in_its_order_not_in_that_of_its_labels():
    names = pd.Series({2: "tea", 0: "milk", 1: "salt"})
    for given in (names, names.astype("category"), names.astype("string"), names.str.encode("utf-8")):
        assert texts(given) == ["tea", "milk", "salt"]


@pytest.mark.parametrize("missing", [None, np.float32("nan"), pd.NA, pd.NaT, pa.scalar(None, pa.string())])
def test_a_missing_name_is_refused_by_its_position(missing):
    refused("^The name at position 1 is missing: leave it out, or give it", Names, ["tea", missing, b"milk"])
    assert texts(["tea", missing, 7], keep_missing=True) == ["tea", None, "7"]


def test_masked_names_are_missing():
    names = np.ma.array(["tea", "rum"], mask=[False, True])
    assert texts(names, keep_missing=True) == ["tea", None]
    refused("name at position 1 is missing", Names, names)


@pytest.mark.parametrize("form", [list, np.float32, pd.Series, tf.constant, pa.array])
def test_floats_are_no_names(form):
    given = form([float("nan"), 17.0, 5.0])
    refused("the one at position 1 is the float 17.0: convert .*Int64", Names, given)


def test_names_of_several_dimensions_are_refused():
    for names in (pd.DataFrame({"name": ["a"]}), tf.constant([["a"]])):
        refused(r"Names must have one dimension, but are of shape \(1, 1\)", Names, names)
    rows = [("tea",), ("rum",)]  # of a database
    for names in ([["tea"]], pa.array([["tea"]]), [np.array(["tea"])], [{"name": "tea"}], rows):
        refused("Names must have one dimension, but hold ", Names, names)


@pytest.mark.parametrize("names", [None, 5, b"tea", tf.constant("tea"), tfxc.data.Vocabulary(["tea"])])
def test_what_is_no_list_of_names_is_refused(names):
    refused("Names must be a list of names, but are .*: pass a list", Names, names)


@pytest.mark.parametrize("form", [set, frozenset])
def test_a_set_has_no_order_but_the_keys_of_a_dict_have(form):
    for of_names in (texts, Names):
        refused(r"^Names are a set, which has no order: pass sorted\(names\)", of_names, form(TEXTS))
        assert of_names(dict.fromkeys(TEXTS)) == of_names(dict.fromkeys(TEXTS).keys()) == TEXTS


def test_first_repeated():
    assert first_repeated(pa.array(["b", "", "a", "", "b"])) == ""
    for names in (["b", "", "a"], []):
        assert first_repeated(pa.array(names, pa.string())) is None


def test_distinct_names_are_found_in_little_memory():
    names = Names(f"item-{number}" for number in range(400_000)).array
    first_repeated(names[:1000])
    found, peak = with_peak(lambda: first_repeated(names))
    # The strings, a table of their hashes and a number each; counted by Arrow they take 180 bytes each.
    assert found is None and peak < 120 * len(names)


@pytest.mark.traced
def test_names_of_a_graph_are_refused_with_what_looks_them_up():
    data = tf.data.Dataset.from_tensor_slices(["b", "a"]).batch(2)
    vocabulary = tfxc.data.Vocabulary(["a", "b"])
    refused("tensor of a graph.* map keras.layers.StringLookup", data.map, vocabulary.encode)
    lookup = keras.layers.StringLookup(num_oov_indices=0, vocabulary=list(vocabulary.names))
    assert next(iter(data.map(lookup))).numpy().tolist() == [1, 0]
