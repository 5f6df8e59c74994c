"""Sets of class ids: checked, without duplicates, compared."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tfxc.ids import check_ids, count_hits, drop_duplicates, is_positive


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


def test_duplicates():
    ids = np.random.default_rng(0).integers(-1, 5, size=(50, 7)).astype(np.int32)
    got = drop_duplicates(tf.constant(ids)).numpy()
    for row, new in zip(ids, got, strict=True):
        seen, want = set(), []
        for label in row:
            want.append(-1 if label in seen else label)
            seen.add(label)
        assert new.tolist() == want


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
