import numpy as np
import pyarrow as pa
import pytest

from tfxc.data import Vocabulary
from tfxc.data.name_encoder import NameEncoder


def encoded(encoder, *batches):
    return encoder.encode([encoder.condense(batch)[0] for batch in batches]).tolist()


@pytest.mark.parametrize("kind", [pa.string(), pa.int64(), pa.uint64()], ids=str)
def test_first_appearance_over_blocks(kind):
    random = np.random.default_rng(0)
    encoder, seen = NameEncoder("x", kind), {}
    for _ in range(5):
        values = [random.integers(0, 50, size) for size in (0, 1, 30)]
        want = [seen.setdefault(str(value), len(seen)) for batch in values for value in batch]
        assert encoded(encoder, *(pa.array(batch).cast(kind) for batch in values)) == want
    assert encoder.names() == list(seen) and len(encoder) == len(seen)


def test_what_is_no_name():
    encoder = NameEncoder("x", pa.string())
    assert encoded(encoder, pa.array([None, ""])) == [-1, -1]
    assert encoded(encoder, pa.array(["a", None, "", "a"])) == [0, -1, -1, 0]
    assert encoder.names() == ["a"]


def test_known_names_come_first():
    encoder = NameEncoder("x", pa.int64(), Vocabulary(["7", "x"]))
    assert encoded(encoder, pa.array([8, 7])) == [2, 0]


def test_categories_by_appearance():
    encoder = NameEncoder("x", pa.dictionary(pa.int8(), pa.string()))
    batch = pa.DictionaryArray.from_arrays(pa.array([2, None, 1], pa.int8()), ["unused", "b", "a"])
    assert encoded(encoder, batch) == [0, -1, 1] and encoder.names() == ["a", "b"]


def test_booleans_are_named_as_a_vocabulary_names_them():
    encoder = NameEncoder("x", pa.bool_())
    assert encoded(encoder, pa.array([True, None, False])) == [0, -1, 1]
    assert encoder.names() == Vocabulary([True, False]).names == ["True", "False"]


def test_floats():
    encoder = NameEncoder("x", pa.float64())
    assert encoded(encoder, pa.array([2.0, float("nan"), None])) == [0, -1, -1]
    with pytest.raises(ValueError, match="'x' holds floats that are not integers"):
        encoder.condense(pa.array([2.5]))
    for kind, least in ((pa.float64(), 2.0**53), (pa.float32(), 2.0**24)):
        encoder = NameEncoder("x", kind)
        assert encoded(encoder, pa.array([1 - least], kind)) == [0]
        with pytest.raises(ValueError, match="'x' holds names as floats up to .*read the column as strings"):
            encoder.condense(pa.array([1.0, -least], kind))


@pytest.mark.parametrize("kind", [pa.date32(), pa.list_(pa.int64())], ids=str)
def test_other_types_are_refused(kind):
    with pytest.raises(ValueError, match="'x' is of type .* convert it"):
        NameEncoder("x", kind)
