import numpy as np
import pytest
import tensorflow as tf
from sampler_checks import clustered, head_of, queries

from tfxc.search import Attributes, InvertedIndex
from tfxc.search.attributes_in_cells import AttributesInCells
from tfxc.search.candidates import ranked_best


@pytest.mark.parametrize("num_values", [3, 900])
def test_cells_count_what_passes(num_values):
    random = np.random.default_rng(0)
    kind, price = random.integers(num_values, size=(2000, 2)), random.normal(size=2000).astype("float32")
    index = InvertedIndex(num_cells=30, num_scanned=100)
    index.build_from(head_of(clustered(2000, 6)))
    in_cells = AttributesInCells(Attributes({"kind": kind, "price": price}), index._parts)
    members, offsets = index.members.numpy(), index.offsets.numpy()
    cells = [members[start:stop].ravel() for start, stop in zip(offsets[:-1], offsets[1:], strict=True)]
    cells = [ids[ids >= 0] for ids in cells]
    for where, passes in (
        ({"where_kind": [[2]]}, (kind == 2).any(1)),
        ({"where_price_min": [[0.3]], "where_price_max": [[0.5]]}, (price >= 0.3) & (price <= 0.5)),
        ({"where_kind": [[2]], "where_price_max": [[-3.0]]}, (kind == 2).any(1) & (price <= -3)),
        ({"where_kind": [[num_values]]}, np.zeros(2000, bool)),
        ({}, np.ones(2000, bool)),
    ):
        wanted = in_cells.attributes.wanted(where, queries(1, 6))
        expected = in_cells.expected(wanted).numpy()[0]
        count = np.array([passes[ids].sum() for ids in cells])
        assert (expected > 0)[count > 0].all() and (expected <= in_cells.sizes.numpy()).all()
        if "where_price_max" not in where and num_values == 3:
            assert (expected >= count).all()
        tiles = tf.range(len(members))[tf.newaxis]
        in_tiles = in_cells.in_tiles(tiles, wanted).numpy()[0]
        np.testing.assert_array_equal(in_tiles[members >= 0], passes[members[members >= 0]])
        np.testing.assert_array_equal(in_cells.scanned(wanted)[0], passes[index.scanned.numpy()])
    wanted = in_cells.attributes.wanted({"where_kind": [[-7]]}, queries(1, 6))
    assert not in_cells.expected(wanted).numpy().any()


@pytest.mark.parametrize("size", [127, 128, 129])
def test_cells_of_any_number_of_classes_are_found(size):
    """128 is one more than the largest number of int8."""
    index = InvertedIndex(num_cells=1, num_scanned=0)
    index.build_from(head_of(np.ones((size, 6), np.float32)))
    in_cells = AttributesInCells(Attributes({"price": np.arange(size, dtype="float32")}), index._parts)
    wanted = in_cells.attributes.wanted({"where_price_min": [[size - 2.0]]}, queries(1, 6))
    np.testing.assert_array_equal(in_cells.expected(wanted), [[2]])


@pytest.mark.long
def test_requests_of_padding_or_of_no_queries_find_what_a_head_finds():
    head, query = head_of(clustered(60, 6)), queries(3, 6)
    index, attributes = InvertedIndex(num_cells=5, num_scanned=10), Attributes({"kind": [*"abc"] * 20})
    index.build_from(head)
    search = index.for_serving(attributes)
    for num_queries, wanted in ((3, [[""]]), (3, [["", ""]] * 3), (3, [["b"]]), (0, [["a", "c"]])):
        own, where = query[:num_queries], attributes.rows({"where_kind": wanted})
        best = ranked_best(head, search, own, 4, tf.zeros([1, 0], tf.int32), None, tf.constant(5), **where)
        np.testing.assert_array_equal(best.ids, head.top_k(own, 4, attributes=attributes, **where).ids)
