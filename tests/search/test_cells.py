import numpy as np
import pytest
from sampler_checks import clustered, head_of, queries

from tfxc.search import cells as module
from tfxc.search.cells import Cells, cut_into_cells, gather_around, promise_of_cells


def test_every_class_is_in_one_cell_and_no_cell_is_large():
    vectors = np.concatenate([clustered(900, 6, num_clusters=3), clustered(100, 6, num_clusters=30, seed=1)])
    cells = cut_into_cells(head_of(vectors), 20)
    sizes = np.diff(cells.offsets)
    assert sorted(cells.members) == list(range(1000)) and cells.offsets[-1] == 1000
    assert sizes.min() >= 1 and sizes.max() <= 2 * 1000 / 20


def test_directions_stay_together_whatever_their_lengths():
    random = np.random.default_rng(0)
    directions = np.eye(4, dtype=np.float32)[random.integers(4, size=200)]
    vectors = directions * random.uniform(0.1, 9, size=(200, 1)).astype(np.float32)
    cells = cut_into_cells(head_of(vectors), 4)
    for part in np.split(cells.members, cells.offsets[1:-1]):
        assert len(np.unique(directions[part].argmax(1))) == 1


def skewed():
    random = np.random.default_rng(0)
    vectors = random.standard_normal((6000, 8)) + 1.5 * np.eye(8)[0]
    lengths = 6 / np.sqrt(10 + np.arange(6000))
    return (vectors * lengths[:, np.newaxis]).astype(np.float32), queries(60, 8)


def long_by_cell(cells, vectors):
    lengths = np.linalg.norm(vectors, axis=1)
    is_long = lengths >= np.quantile(lengths, 0.9)
    return [is_long[part] for part in np.split(cells.members, cells.offsets[1:-1])]


@pytest.mark.parametrize("use_bias", [False, True])
def test_long_vectors_have_cells_of_their_own(use_bias):
    vectors, _ = skewed()
    head = head_of(vectors, use_bias=use_bias)
    if use_bias:  # classes of large negative biases are rare, not long
        head.bias.assign(-5 - 10 * np.arange(6000) / 6000)
    parts = long_by_cell(cut_into_cells(head, 40), vectors)
    assert all(part.all() or not part.any() for part in parts)
    assert len(parts) > 40 and sum(part.all() for part in parts) > 10


def order_of(cells, vectors, query):
    return np.argsort(-promise_of_cells(*cells.moments(head_of(vectors)), query), axis=1)


def num_read(cells, vectors, query):
    """How many members a query reads to find .95 of its ten best classes."""
    order, sizes = order_of(cells, vectors, query), np.diff(cells.offsets)
    cell_of = np.repeat(np.arange(len(sizes)), sizes)[np.argsort(cells.members)]
    wanted = np.argsort(-(query @ vectors.T), axis=1)[:, :10]
    stop = np.cumsum(sizes[order], axis=1)
    return np.quantile([stop[i][order[i] == cell_of[j]] for i in range(len(query)) for j in wanted[i]], 0.95)


def test_of_skewed_lengths_the_best_are_found_in_a_fraction():
    vectors, query = skewed()
    apart, together = (
        cut_into_cells(head_of(vectors), num_cells, is_skewed)
        for num_cells, is_skewed in ((60, True), (120, False))
    )
    assert num_read(apart, vectors, query) < 0.6 * num_read(together, vectors, query)


def test_where_lengths_are_not_skewed_long_vectors_stay_with_short_ones():
    vectors, _ = skewed()
    cells = cut_into_cells(head_of(vectors), 40, skewed=False)
    parts = long_by_cell(cells, vectors)
    assert sum(part.any() and not part.all() for part in parts) > 30


def test_classes_gather_around_the_nearest_mean():
    vectors, centres = clustered(300, 5), queries(9, 5)
    cells = gather_around(head_of(vectors), centres)
    nearest = np.square(vectors[:, np.newaxis] - centres).sum(2).argmin(1)
    parts = np.split(cells.members, cells.offsets[1:-1])
    want = [np.flatnonzero(nearest == cell).tolist() for cell in np.unique(nearest)]
    assert [sorted(part) for part in parts] == want


@pytest.mark.parametrize("num_classes", [1, 2, 40])
def test_equal_vectors_are_cut_all_the_same(num_classes):
    cells = cut_into_cells(head_of(np.zeros((num_classes, 3), np.float32)), min(8, num_classes))
    assert sorted(cells.members) == list(range(num_classes))
    assert np.diff(cells.offsets).max() <= 2 * num_classes / min(8, num_classes)


def test_chunks_of_whole_cells(monkeypatch):
    monkeypatch.setattr(module, "_CHUNK_ROWS", 10)
    vectors = clustered(50, 3)
    cells = Cells(np.random.default_rng(0).permutation(50).astype(np.int32), np.array([0, 3, 10, 33, 50]))
    chunks = list(cells.chunks(head_of(vectors), ""))
    assert [chunk[:2] for chunk in chunks] == [(0, 2), (2, 3), (3, 4)]
    np.testing.assert_array_equal(np.concatenate([chunk[2] for chunk in chunks]), vectors[cells.members])
    means, reaches = cells.moments(head_of(vectors))
    parts = np.split(vectors[cells.members], cells.offsets[1:-1])
    np.testing.assert_allclose(means, [part.mean(0) for part in parts], rtol=1e-4)
    deviations = [np.sqrt(part.astype(np.float64).var(0).mean()) for part in parts]
    np.testing.assert_allclose(reaches, 3 * np.array(deviations), rtol=1e-5)


def test_a_cell_of_unlike_members_is_read_before_a_nearer_one():
    vectors = np.array([[1, 0.1], [1, -0.1], [2, 0], [-1.2, 0], [-1.2, 0.1]], np.float32)
    cells = Cells(np.arange(5, dtype=np.int32), np.array([0, 2, 5]))
    assert order_of(cells, vectors, np.array([[1.0, 0]], np.float32)).tolist() == [[1, 0]]


def test_cells_without_some_classes_are_those_of_the_others():
    cells = Cells(np.array([4, 1, 0, 2, 3], np.int32), np.array([0, 2, 3, 5]))
    fewer = cells.without([0, 4])
    assert [part.tolist() for part in np.split(fewer.members, fewer.offsets[1:-1])] == [[1], [2, 3]]
    for part, same in zip(cells, cells.without(np.zeros(0, np.int32)), strict=True):
        np.testing.assert_array_equal(part, same)


def test_a_vector_that_is_not_finite_is_named():
    vectors = queries(30, 4)
    vectors[7, 1] = np.nan
    with pytest.raises(ValueError, match="vector of class 7 is not finite"):
        cut_into_cells(head_of(vectors), 3)
