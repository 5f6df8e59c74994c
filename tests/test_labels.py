"""Labels of every form, at the door."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tfxc.labels import check_ids, count_hits, drop_duplicates, flatten_examples, is_positive, pad_labels

ROWS = [[3, 1], [], [7]]
PADDED = [[3, 1], [-1, -1], [7, -1]]


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64, tf.int16, tf.uint8])
def test_forms(dtype):
    ragged = tf.cast(tf.ragged.constant(ROWS), dtype)
    for labels in (ragged, ragged.to_sparse()):
        padded = check_ids(pad_labels(labels), 8)
        assert padded.dtype == tf.int32 and padded.numpy().tolist() == PADDED
    assert check_ids(pad_labels(tf.constant([1, 2], dtype)), 8).numpy().tolist() == [1, 2]


@pytest.mark.parametrize("dtype", [tf.float32, tf.bool, tf.string])
def test_only_integers(dtype):
    labels = tf.zeros([2, 2], dtype) if dtype != tf.string else tf.constant([["a"]])
    with pytest.raises(ValueError, match=f"integer class ids, but have dtype {dtype.name}"):
        pad_labels(labels)


def test_a_sparse_multi_hot_matrix_is_not_mistaken_for_ids():
    with pytest.raises(tf.errors.InvalidArgumentError, match="multi-hot"):
        pad_labels(tf.sparse.from_dense([[0, 1, 1], [1, 0, 0]]))
    ones = tf.SparseTensor([[0, 0], [1, 0]], [1, 1], [2, 3])  # class 1, twice
    assert pad_labels(ones).numpy().tolist() == [[1, -1, -1], [1, -1, -1]]


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("bad", [8, -2, 2**33])
def test_an_id_outside_the_range_is_named_with_its_place(traced, bad):
    check = tf.function(check_ids) if traced else check_ids
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        check(tf.constant([[0, 7], [-1, bad], [99, 0]], tf.int64), 8)
    message = re.sub(r"[^\w-]+", " ", re.sub(r"\bb'", "'", str(error.value)))
    assert "outside 0 8" in message and f"The id is {bad} at flat position 3 of shape 3 2" in message


def test_an_id_that_would_wrap_around_is_not_let_through():
    with pytest.raises(tf.errors.InvalidArgumentError):
        check_ids(tf.constant([2**32 + 3], tf.int64), 8)


def test_empty_labels():
    assert check_ids(tf.zeros([0], tf.int64), 8).shape == (0,)
    assert drop_duplicates(tf.zeros([3, 0], tf.int32)).shape == (3, 0)


def test_duplicates():
    ids = np.random.default_rng(0).integers(-1, 5, size=(50, 7)).astype(np.int32)
    got = drop_duplicates(tf.constant(ids)).numpy()
    for row, new in zip(ids, got, strict=True):
        seen, want = set(), []
        for label in row:
            want.append(-1 if label in seen else label)
            seen.add(label)
        assert new.tolist() == want


def test_examples_of_one_query_stay_as_they_are():
    query, labels = tf.ones([3, 2]), tf.constant([1, -1, 2])
    flat, ids, weights, where = flatten_examples(query, labels, tf.constant([[1.0], [2], [3]]))
    assert flat is query and ids.numpy().tolist() == [[1], [-1], [2]]
    assert weights.numpy().tolist() == [1, 2, 3] and where is None


def test_sequences_keep_what_is_labelled_and_unmasked():
    query = tf.reshape(tf.range(12.0), [2, 3, 2])
    labels = tf.constant([[[1, -1], [-1, -1], [2, 3]], [[4, 5], [6, -1], [7, 8]]])
    mask = tf.constant([[True, True, False], [True, True, True]])
    flat, ids, weights, where = flatten_examples(query, labels, tf.constant([10.0, 20.0]), mask)
    assert flat.numpy().tolist() == [[0, 1], [6, 7], [8, 9], [10, 11]]
    assert ids.numpy().tolist() == [[1, -1], [4, 5], [6, -1], [7, 8]]
    assert weights.numpy().tolist() == [10, 20, 20, 20] and where.numpy().tolist() == [
        [0, 0],
        [1, 0],
        [1, 1],
        [1, 2],
    ]
    by_position = tf.reshape(tf.range(6.0), [2, 3])
    assert flatten_examples(query, labels, by_position, mask)[2].numpy().tolist() == [0, 3, 4, 5]


@pytest.mark.parametrize(
    ("query", "labels"), [([2, 3], [2, 1, 1]), ([2, 3, 4], [2]), ([2, 3, 4], [2, 3, 1, 1])]
)
def test_ranks_are_checked(query, labels):
    with pytest.raises(ValueError, match="need labels of shape"):
        flatten_examples(tf.zeros(query), tf.zeros(labels, tf.int32))


def test_positives_among_candidates():
    labels = tf.constant([[1, -1], [2, 3]])
    assert is_positive(tf.constant([1, 3, 4]), labels).numpy().tolist() == [
        [True, False, False],
        [False, True, False],
    ]
    own = is_positive(tf.constant([[2, 1], [3, 0]]), labels)
    assert own.numpy().tolist() == [[False, True], [True, False]]
    one = is_positive(tf.constant([[2, 1], [3, 0]]), labels[:, :1])
    assert one.numpy().tolist() == [[False, True], [False, False]]


def test_hits_are_counted_by_positive():
    labels = tf.constant([[3, -1], [5, 2]])
    ids = tf.constant([[3, 3, -1, 7], [2, 4, 2, 2]])
    assert count_hits(ids, labels).numpy().tolist() == [[2, 0], [0, 3]]
    assert count_hits(tf.constant([2, 3, 3]), labels).numpy().tolist() == [[2, 0], [0, 1]]
