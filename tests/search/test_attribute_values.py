import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest
import tensorflow as tf

from tfxc.search import Attributes
from tfxc.search.attribute_values import part_of

SETS = [["new"], ["new", "sale"], [], ["sale"], ["old", ""], ["new"]]
GIVEN = {
    "strings": (["a", "b", "a", "", "c", "b"], "where_x", [["a", ""], ["c", "b"]], [[0, 2], [1, 4, 5]]),
    "series": (pd.Series(["a", "b"] * 3, dtype="category"), "where_x", [["b"]], [[1, 3, 5]]),
    "integers": (np.int64([7, -1, 3, 3, 9, 7]), "where_x", [[3, 7], [-1, 5]], [[0, 2, 3, 5], []]),
    "booleans": ([True, False, False, True, True, False], "where_x", [[True]], [[0, 3, 4]]),
    "lists": (SETS, "where_x", [["sale", "old"]], [[1, 3, 4]]),
    "lists of Polars": (polars.Series(SETS), "where_x", [["sale", "old"]], [[1, 3, 4]]),
    "lists of Arrow": (pa.array(SETS), "where_x", [["sale", "old"]], [[1, 3, 4]]),
    "ragged": (tf.ragged.constant(SETS), "where_x", tf.ragged.constant([["new"], []]), [[0, 1, 5], range(6)]),
    "padded": (np.int32([[1, 2], [2, -1], [-1, -1], [3, 1], [4, -1], [5, 6]]), "where_x", [[1]], [[0, 3]]),
    "at least": ([1.0, 2, 3, 4, 5, 6], "where_x_min", [[4, 2], [np.nan, np.nan]], [[3, 4, 5], range(6)]),
    "at most": (np.array([np.inf, 2, -np.inf, 4, 5, 6]), "where_x_max", [[4.0], [-7]], [[1, 2, 3], [2]]),
    "ragged limits": (np.arange(6.0), "where_x_max", tf.ragged.constant([[1, 3], [2]]), [[0, 1], [0, 1, 2]]),
    "ragged bytes": ([*range(6)], "where_x", tf.ragged.constant([[3, 5], []], "uint8"), [[3, 5], range(6)]),
    "no lists": (["a", "b"] * 3, "where_x", [[], []], [range(6)]),
    "integers as limits": (2e9 + 2e8 * np.arange(6), "where_x_max", [[2_500_000_000]], [[0, 1, 2]]),
    "unknown": (["a", "b", "a", "", "c", "b"], "where_x", [["no such"], [""]], [[], range(6)]),
}


def which(attributes, num_queries=2, **where):
    wanted = attributes.wanted(where, tf.zeros([num_queries, 3]))
    passes = attributes.passes(tf.range(6)[tf.newaxis], wanted)
    return [np.flatnonzero(row).tolist() for row in np.broadcast_to(passes, (num_queries, 6))]


@pytest.mark.parametrize("kind", GIVEN)
def test_classes_pass_that_have_a_value_or_meet_a_limit(kind):
    values, name, wanted, want = GIVEN[kind]
    attributes = Attributes({"x": values, "other": list("aabbcc")})
    assert which(attributes, **{name: wanted}) == [[*row] for row in want] * (2 // len(want))
    both = which(attributes, **{name: wanted, "where_other": [["a"]]})
    assert both == [[i for i in row if i < 2] for row in want] * (2 // len(want))
    for nothing in ({}, {"where_other": tf.zeros([2, 0], tf.string)}):
        assert which(attributes, **nothing) == [[*range(6)]] * 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, np.nan], "'a' hold NaN for class 1: give it a number, such as inf"),
        (
            ["a", None],
            "'a' must be strings, integers, booleans or floats.*: class 1 has none: give it \"\", -1",
        ),
        (np.array(["a", "b", np.nan], object), "class 2 has none: give it"),
        ([["a"], None], "class 1 has none: give it"),
        (pd.Series(["a", None], dtype="string"), "class 1 has none: give it"),
        ([[1.0], [2.0]], "but are several floats for each class"),
        ([1 << 40], "must fit into int32, but hold 1099511627776"),
        ([[1]] + [[*range(65)]], "are 65 for class 1, but .* at most 64"),
        (3, "one for each class"),
        ([["new"], "sale"], "got single strings among lists"),
        (tf.sparse.from_dense([[1, 2]]), "must be strings"),
        (tf.ragged.constant([[["a", "b"]]]), "must be strings"),
        ([[[1]]], "got int32"),
        (pd.Series([1, 2], index=[3, 4]), "come from pandas, but their index"),
    ],
)
def test_values_that_are_no_attribute_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        part_of("a", values)


@pytest.mark.parametrize("form", [list, np.array, pd.Series])
def test_numbers_that_float32_rounds_are_told_of(form):
    with pytest.warns(UserWarning, match="'when' are kept as float32, which rounds 1700000001, so that li"):
        Attributes({"when": form([1.5, 1.7e9 + 1])})
    Attributes({"when": form([1.7e9 / 3, 2.0**40, np.inf])})
