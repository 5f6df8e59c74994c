import pickle

import numpy as np
import pyarrow as pa
import pytest

from tfxc.data.names import Names


def test_reads_like_a_list():
    names = Names(["b", "", 7, "é"])
    assert list(names) == ["b", "", "7", "é"] == names and names == ("b", "", "7", "é")
    assert names[0] == "b" and names[np.int64(-1)] == "é" and type(names[0]) is str
    assert names[1:3] == ["", "7"] and names[np.array([3, 3])] == ["é", "é"] and names[[]] == []
    assert names[np.array([False, True, False, True])] == ["", "é"] and names[[-1]] == ["é"]
    with pytest.raises(ValueError, match="mask of shape"):
        names[[True]]
    assert "7" in names and "x" not in names and names.index("7") == 2
    with pytest.raises(IndexError):
        names[4]


def test_equality():
    assert Names("ab") == Names(["a", "b"]) != Names("ba")
    assert Names("ab") != ["a"] and Names("ab") != "ab" and Names([]) == []


def test_more_than_a_block():
    assert list(Names(range(70_000))) == [str(i) for i in range(70_000)]


def test_arrow_arrays_of_any_string_type():
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        assert Names(pa.array(["x", "y"], kind)) == ["x", "y"]
    with pytest.raises(ValueError, match="1 of 2 names are null"):
        Names(pa.array(["x", None]))


def test_pickle_and_repr():
    assert pickle.loads(pickle.dumps(Names("abcd"))) == list("abcd")
    assert repr(Names("ab")) == "['a', 'b']"
    assert repr(Names(range(11))).endswith("'8', '9', ... 11 names]")
