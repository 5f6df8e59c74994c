import numpy as np
import pytest
import tensorflow as tf

from tfxc.catalogue.class_map import ClassMap
from tfxc.data import Vocabulary


def test_names_are_matched_and_rows_sent_where_they_belong():
    classes = ClassMap(Vocabulary(["a", "b", "c", "d"]).names, np.array(["d", "x", "a"]))
    assert classes.old_ids.tolist() == [3, -1, 0] and classes.new_ids.tolist() == [2, -1, -1, 0]
    assert classes.added.tolist() == [1] and classes.kept.tolist() == [0, 2] and classes.num_added == -1
    assert classes.names_of(np.array([2, 1])) == ["a", "x"]
    # Two rows in front, one behind.
    assert classes.destinations(7, 2).tolist() == [0, 1, 4, -1, -1, 2, 5]


def test_numbers_are_names_too():
    assert ClassMap(["7", "8"], [8, 9]).old_ids.tolist() == [1, -1]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "empty list"),
        (["a", "b", "a"], "'a' twice"),
        *((wrong, "must be a list of names") for wrong in ("a", iter("a"), {"a": 0}, {"a"}, 7)),
        (Vocabulary(["a"]), "must be a list of names"),
        (["a", "7.0"], "1 names are classes.*'7.0' of '7'.*write integers"),
        (["a", "caf\u00e9 "], "1 names are classes.*spell them as in model.class_names"),
        (["7.0", "8.0"], "1 names are classes"),
        (range(2), "None of the 2 names is a class.* is 'a', yours '0'. Pass names, not class ids"),
    ],
)
def test_other_names_are_refused(names, message):
    with pytest.raises(ValueError, match=message):
        ClassMap(["a", "b", "7", "cafe\u0301"], names)


def test_bytes_and_tensors_are_names():
    for names in ([b"d", b"x"], np.array([b"d", b"x"]), tf.constant(["d", "x"])):
        assert ClassMap(["a", "d"], names).old_ids.tolist() == [1, -1]
