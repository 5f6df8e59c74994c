import numpy as np
import pytest

from tfxc.data import Column, Vocabulary


def test_numbers_keep_their_type_and_ids_are_int32():
    assert Column(np.array([1, 2], np.uint8)).values.dtype == np.uint8
    assert Column([0, -1], Vocabulary("a")).values.dtype == np.int32
    cut = Column([0, 1, -1], Vocabulary("ab")).take(np.array([2, 0]))
    assert cut.values.tolist() == [-1, 0] and cut.vocabulary.names == ["a", "b"]
    assert len(Column([], Vocabulary("a")).values) == 0


@pytest.mark.parametrize("values", [["a"], [[1.0]], np.array(["2024"], "datetime64[Y]")])
def test_values_that_are_no_numbers(values):
    with pytest.raises(ValueError, match="values must be numbers"):
        Column(values)


@pytest.mark.parametrize("ids", [[1], [-2], [2**32], [0.5, 0.2]])
def test_what_is_no_id(ids):
    with pytest.raises(ValueError, match=r"must be integers( in \[-1, 1\), but range|, but are float64)"):
        Column(ids, Vocabulary("a"))
