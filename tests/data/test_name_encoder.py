import numpy as np
import pyarrow as pa
import pytest
from refusal_checks import refused

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


CATEGORIES = pa.DictionaryArray.from_arrays(pa.array([2, None, 1], pa.int8()), ["unused", "b", "a"])


@pytest.mark.parametrize(
    ("values", "ids", "names"),
    [
        (pa.array([None, ""]), [-1, -1], []),
        (pa.array(["a", None, "", "a"]), [0, -1, -1, 0], ["a"]),
        (CATEGORIES, [0, -1, 1], ["a", "b"]),
        (pa.array([True, None, False]), [0, -1, 1], Vocabulary([True, False]).names),
        (pa.array([2.0, float("nan"), None]), [0, -1, -1], ["2"]),
    ],
)
def test_values_of_other_types(values, ids, names):
    encoder = NameEncoder("x", values.type)
    assert encoded(encoder, values) == ids and encoder.names() == names


def test_known_names_come_first():
    encoder = NameEncoder("x", pa.int64(), Vocabulary(["7", "x"]))
    assert encoded(encoder, pa.array([8, 7])) == [2, 0]


def test_what_is_no_name():
    floats = NameEncoder("x", pa.float64())
    refused("'x' holds floats that are not integers", floats.condense, pa.array([2.5]))
    for kind, least in ((pa.float64(), 2.0**53), (pa.float32(), 2.0**24)):
        encoder, rounded = NameEncoder("x", kind), pa.array([1.0, -least], kind)
        assert encoded(encoder, pa.array([1 - least], kind)) == [0]
        refused("'x' holds names as floats up to .*read the column as strings", encoder.condense, rounded)
    for kind in (pa.date32(), pa.list_(pa.int64())):
        refused("'x' is of type .* convert it", NameEncoder, "x", kind)
