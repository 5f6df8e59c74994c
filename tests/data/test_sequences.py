from datetime import datetime

import numpy as np
import pandas
import pytest
import tensorflow as tf
from refusal_checks import refused

from tfxc.data import (
    Column,
    Sequences,
    Vocabulary,
    describe,
    k_core,
    leave_last_out,
    ratio_split,
    sequence_evaluation_dataset,
    sequence_training_dataset,
    split_sessions,
    stream_dataset,
    tail_split,
    time_split,
)

LETTERS = Vocabulary("abcd")


def as_lists(sequences):
    return [sequence.tolist() for sequence in sequences]


def test_parts():
    sequences = Sequences([0, 1, 1, 3], [0, 3, 3, 4], LETTERS, ["u", "v", "w"])
    assert as_lists(sequences) == [[0, 1, 1], [], [3]] and sequences[-1].tolist() == [3]
    assert sequences.lengths.tolist() == [3, 0, 1]
    assert sequences.counts().tolist() == [1, 2, 0, 1] and sequences.num_classes == 4
    assert sequences.items.dtype == np.int32 and sequences.offsets.dtype == np.int64
    with pytest.raises(IndexError):
        sequences[3]
    Sequences([0, 1, 2], [0, 0, 2, 3, 3], LETTERS, times=[5, 6, 1])  # which may jump back between them


@pytest.mark.parametrize(
    ("items", "offsets", "extra", "message"),
    [
        ([0, 4], [0, 2], {}, r"in \[0, 4\), but range from 0 to 4"),
        ([-1], [0, 1], {}, "range from -1"),
        ([[0, 1], [1, 0]], [0, 2], {}, r"items must be \[M\], .* but are of shape \(2, 2\)"),
        ([2**32, 1], [0, 2], {}, "range from 1 to 4294967296"),
        ([0.7, 1.2], [0, 2], {}, "items must be integers, but are float64"),
        ([0, 1], [0, 1.5, 2], {}, "offsets must be integers"),
        ([0, 1], [0, 1], {}, "run from 0 to the number of items 2"),
        ([0, 1], [1, 2], {}, "run from 0"),
        ([0], [], {}, "run from 0"),
        ([0, 1], [0, 2, 1, 2], {}, "never decrease"),
        ([0], [0, 1], {"user_ids": ["u", "v"]}, "1 sequences but 2 user_ids"),
        ([0, 1], [0, 2], {"times": [1.0]}, "2 items but times"),
        ([0, 1], [0, 2], {"times": [1.0, np.nan]}, "finite"),
        ([0, 1], [0, 2], {"times": [2.0, 1.0]}, "from_interactions"),
        ([0, 1], [0, 2], {"columns": {"price": np.ones(2)}}, "'price' is of ndarray: pass Column.values."),
        ([0, 1], [0, 2], {"columns": {"n": Column([1])}}, "2 items but 1 values of 'n'"),
        ([0, 1], [0, 2], {"columns": {5: Column(np.ones(2))}}, "names, which are texts, but got 5"),
        ([0, 1], [0, 2], {"columns": {"new_classes": Column([1, 1])}}, "not be called 'new_classes'"),
        ([[0], [0, 1]], [0, 2], {}, "items must be an array of integers, but: .*inhomogeneous"),
    ],
)
def test_parts_that_do_not_fit(items, offsets, extra, message):
    refused(message, Sequences, items, offsets, LETTERS, **extra)


def test_from_lists():
    sequences = Sequences.from_lists([[7, "x"], [], ["x"]])
    assert sequences.vocabulary.names == ["7", "x"]
    assert as_lists(sequences) == [[0, 1], [], [1]]
    assert Sequences.from_lists(["da"], LETTERS)[0].tolist() == [3, 0]
    assert len(Sequences.from_lists([])) == 0
    refused("'7.0' is not in the vocabulary, but '7' is", Sequences.from_lists, [["7.0"]], Vocabulary("7"))
    refused("'z' is not in the vocabulary", Sequences.from_lists, ["az"], LETTERS)


def test_from_lists_refuses_what_is_no_name():
    sequences = Sequences.from_lists([["a", b"a"], tf.constant(["b"])])
    assert sequences.vocabulary.names == ["a", "b"] and sequences.items.tolist() == [0, 0, 1]
    refused("The name at position 1 of list 1 is missing", Sequences.from_lists, [["a"], ["b", None]])
    floats = [["a"], [17.0, float("nan")]]
    refused(r"the one at position 0 of list 1 is the float 17.0", Sequences.from_lists, floats)
    refused("The name at position 0 is missing", Sequences.from_lists, [["a"]], user_ids=[None])


def test_a_dict_of_lists_and_a_slice_are_refused_with_the_way():
    lists = {"ann": ["milk", "tea"]}
    refused(r"is a dict: pass dict.values\(\) and user_ids=", Sequences.from_lists, lists)
    frame = pandas.DataFrame({"items": [["milk"]]})
    refused("is a DataFrame: .* the column of a data frame that holds", Sequences.from_lists, frame)
    sequences = Sequences.from_lists(lists.values(), user_ids=[*lists])
    with pytest.raises(TypeError, match=r"for several sequences use select\(index\)"):
        sequences[0:1]


def test_from_interactions_sorts_stably():
    users, items, times = [1, 0, 1, 1, 0], [0, 1, 2, 3, 0], [9, 5, 3, 9, 5]
    sequences = Sequences.from_interactions(users, items, LETTERS, ["u", "v", "w"], times)
    assert as_lists(sequences) == [[1, 0], [2, 0, 3], []]
    assert sequences.times.tolist() == [5, 5, 3, 9, 9]
    untimed = Sequences.from_interactions(users, items, LETTERS, ["u", "v", "w"])
    assert as_lists(untimed) == [[1, 0], [0, 2, 3], []]
    assert len(Sequences.from_interactions([], [], LETTERS, ["u"])[0]) == 0


@pytest.mark.parametrize(
    ("users", "items", "times", "message"),
    [
        ([0, 0], [0, 1, 1], None, r"must both be .*, but are \(2,\) and \(3,\)"),
        ([0, 0, 0], [0, 1], None, r"must both be .*, but are \(3,\) and \(2,\)"),
        ([0, 0], [0, 1], [3, 1, 2], r"2 interactions but times of shape \(3,\)"),
        ([0, 0], [0, 1], [np.inf, 3], "finite"),
        ([0, 0], [0, 1], np.array([2, 1], "timedelta64[ns]"), "numbers or datetime64, but are timedelta64"),
        ([0], [0], [datetime(2024, 5, 2)], "numbers or datetime64, but are object"),
        ([0, 3], [0, 1], None, r"users must be integers in \[0, 1\), but range from 0 to 3"),
        ([0, -1], [0, 1], None, "range from -1"),
        ([0, 0], [0, 2**32], None, "range from 0 to 4294967296"),
        ([0, 0.5], [0, 1], None, "users must be integers"),
    ],
)
def test_interactions_that_do_not_fit(users, items, times, message):
    refused(message, Sequences.from_interactions, users, items, LETTERS, ["u"], times)


def test_slices_match_python_slices():
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 6, 20)
    items, offsets = rng.integers(0, 4, lengths.sum()), np.concatenate([[0], np.cumsum(lengths)])
    sequences = Sequences(items, offsets, LETTERS, [str(u) for u in range(20)], np.zeros(len(items)))
    index = rng.integers(0, 20, 30)
    starts = rng.integers(0, lengths[index] + 1)
    stops = rng.integers(starts, lengths[index] + 1)
    cut = sequences.slices(index, starts, stops)
    for row, (u, start, stop) in enumerate(zip(index, starts, stops, strict=True)):
        assert cut[row].tolist() == sequences[u][start:stop].tolist()
    assert cut.user_ids == [str(u) for u in index]
    refused("0 <= start <= stop <= length", sequences.slices, [0], 0, [lengths[0] + 1])


def test_select_by_mask_and_position():
    sequences = Sequences.from_lists(["ab", "c", "d"], LETTERS)
    assert as_lists(sequences.select([2, 0])) == [[3], [0, 1]]
    assert as_lists(sequences.select(sequences.lengths > 1)) == [[0, 1]]
    assert as_lists(sequences.select([-1])) == [[3]]
    assert len(sequences.select([])) == 0
    assert as_lists(sequences.slices([False, True, True], 0, 1)) == [[2], [3]]
    assert as_lists(sequences.slices(np.uint64([2, 0]), np.uint64(0), np.uint64([1, 2]))) == [[3], [0, 1]]
    for index, message in (
        ([True, False], r"mask of shape \(2,\), but it must be of shape \(3,\)"),
        ([0.7], "must be integers"),
        ([3], r"integers in \[-3, 3\)"),
        ([[0]], r"index must have one dimension, but is of shape \(1, 1\)"),
    ):
        refused(message, sequences.select, index)
    refused("stops must be integers, but are float64", sequences.slices, [0], 0, [1.5])


SPLIT = leave_last_out(Sequences.from_lists(["abcd"]))


@pytest.mark.parametrize(("given", "kind"), [(SPLIT, "Split"), ([[1, 2, 3]], "list")])
@pytest.mark.parametrize(
    ("function", "options"),
    [
        *((own, ()) for own in (leave_last_out, ratio_split, tail_split, split_sessions, k_core, describe)),
        *((own, (1, 2)) for own in (time_split, stream_dataset, sequence_evaluation_dataset)),
        (sequence_training_dataset, (2, 2)),
    ],
)
def test_what_are_no_sequences_is_refused(function, options, given, kind):
    message = f"sequences must be tfxc.data.Sequences, but got {kind}: pass a part"
    refused(message, function, given, *options)


def test_columns_keep_their_type_and_ids_are_int32():
    assert Column(np.array([1, 2], np.uint8)).values.dtype == np.uint8
    assert Column([0, -1], Vocabulary("a")).values.dtype == np.int32
    cut = Column([0, 1, -1], Vocabulary("ab")).take(np.array([2, 0]))
    assert cut.values.tolist() == [-1, 0] and cut.vocabulary.names == ["a", "b"]
    assert len(Column([], Vocabulary("a")).values) == 0


@pytest.mark.parametrize(
    ("values", "vocabulary", "message"),
    [
        *((own, None, "numbers") for own in (["a"], [[1.0]], np.array(["2024"], "datetime64[Y]"))),
        *((own, Vocabulary("a"), r"integers in \[-1, 1\), but range") for own in ([1], [-2], [2**32])),
        ([0.5, 0.2], Vocabulary("a"), "integers, but are float64"),
    ],
)
def test_values_that_make_no_column(values, vocabulary, message):
    refused(f"values must be {message}", Column, values, vocabulary)
