import numpy as np
import pytest
import tensorflow as tf
from long_cases import long_after
from sampler_checks import clustered, head_of, index_of, queries

from tfxc.search import Attributes, InvertedIndex, cell_search


def ranked(logits, k, exclude=(), allow=None):
    allowed = range(len(logits)) if allow is None else {i for i in allow if i >= 0}
    left = sorted(set(allowed) - set(exclude), key=lambda i: (-logits[i], i))
    return (left + [-1] * k)[:k]


@pytest.mark.parametrize("num_classes, num_scanned", long_after(3, (1, 0), (7, 6), (300, 80), (300, 0)))
def test_random_requests_are_ranked_as_by_brute_force(num_classes, num_scanned):
    """With all cells probed: equal. With one: nothing forbidden, and k wherever there are k."""
    random = np.random.default_rng(num_classes)
    vectors, query = clustered(num_classes, 6), queries(150, 6)
    logits = query.astype(np.float64) @ vectors.T
    index = index_of(head_of(vectors), min(25, num_classes), num_scanned=num_scanned)
    for request in range(6):
        size = [150, 1, 33][request % 3]
        rows = random.integers(150, size=size)
        k = int(random.choice([1, 3, 10, 1000]))
        width = int(random.choice([0, 2, 40]))
        exclude = random.integers(-1, num_classes, size=(size, width)).astype(np.int32)
        allow = None
        if request % 2:
            shape = (1 if request % 4 == 1 else size, int(random.choice([1, 5, 60])))
            allow = random.integers(-1, num_classes, size=shape).astype(np.int32)
        best = index.top_k(query[rows], tf.constant(k), exclude, allow, index.num_cells)
        few = index.top_k(query[rows], tf.constant(k), exclude, allow, num_probes=1).ids.numpy()
        k = min(k, num_classes)
        own = np.broadcast_to(allow, (size, allow.shape[1])) if allow is not None else [None] * size
        want = [ranked(logits[row], k, *given) for row, *given in zip(rows, exclude, own, strict=True)]
        np.testing.assert_array_equal(best.ids, want)
        scores = np.take_along_axis(logits[rows], np.maximum(want, 0), 1)
        scores = np.where(np.array(want) >= 0, scores, -np.inf)
        np.testing.assert_allclose(best.scores, scores, rtol=1e-3, atol=1e-4)
        for got, wanted, out, only in zip(few, want, exclude, own, strict=True):
            found = got[got >= 0]
            assert len(found) == len(set(found)) == np.sum(np.array(wanted) >= 0)
            assert not set(found) & set(out) and (only is None or set(found) <= set(only))


@pytest.mark.parametrize("num_scanned", [0, 300])
def test_blocks_of_queries_change_nothing(monkeypatch, num_scanned):
    head, query = head_of(clustered(500, 8)), queries(70, 8)
    exclude = head.top_k(query, 4).ids
    want = index_of(head, 20, 3, num_scanned=num_scanned).top_k(query, 7, exclude)
    monkeypatch.setattr(cell_search, "_READ_ELEMENTS", 1 << 11)
    monkeypatch.setattr(cell_search, "_CELL_ELEMENTS", 1 << 13)
    monkeypatch.setattr(cell_search, "_SCANNED_ELEMENTS", 1 << 12)
    got = index_of(head, 20, 3, num_scanned=num_scanned).top_k(query, 7, exclude)
    np.testing.assert_array_equal(got.ids, want.ids)


@pytest.mark.long
def test_cells_that_are_excluded_as_a_whole_are_replaced_by_others():
    vectors = clustered(200, 4, num_clusters=10)
    head, query = head_of(vectors), queries(3, 4)
    exclude = head.top_k(query, 150).ids
    best = index_of(head, 20, 1).top_k(query, 50, exclude)
    assert (best.ids.numpy() >= 0).all()
    np.testing.assert_array_equal(np.sort(best.ids), np.sort(head.top_k(query, 50, exclude).ids))
    assert index_of(head, 20, 1).top_k(query, 60, exclude).ids.numpy()[:, -10:].max() == -1


@pytest.mark.long
def test_among_many_cells_the_best_are_read():
    vectors, query = clustered(3000, 8, num_clusters=100), queries(50, 8)
    index = index_of(head_of(vectors), 300)
    fit = query @ index.centres.numpy().T
    fit += np.linalg.norm(query, axis=1, keepdims=True) * index.reaches.numpy()
    cell_of = np.empty(3000, int)
    for cell, (start, stop) in enumerate(zip(index.offsets[:-1], index.offsets[1:], strict=True)):
        members = np.ravel(index.members[start:stop])
        cell_of[members[members >= 0]] = cell
    best = index.top_k(query, 1, num_probes=1).ids.numpy()[:, 0]
    logits = query @ vectors.T
    for row, found in enumerate(best):
        own = np.flatnonzero(cell_of == np.argmax(fit[row]))
        assert logits[row, found] >= logits[row, own].max() - 1e-4
        assert cell_of[found] in np.argsort(-fit[row])[:2]


@pytest.mark.parametrize("num_cells, num_scanned", [(10, 0), (200, 0), (10, 500)])
def test_queries_that_diverged_find_nothing_and_disturb_no_other(num_cells, num_scanned):
    head, query = head_of(clustered(1000, 4)), queries(3, 4)
    index = index_of(head, num_cells, 2, num_scanned=num_scanned)
    want = index.top_k(query, 5).ids.numpy()
    query[1, 2] = np.nan
    got = index.top_k(query, 5).ids.numpy()
    assert (got[1] == -1).all() and (got[[0, 2]] == want[[0, 2]]).all()


def test_classes_that_are_scanned_are_found_whatever_cells_are_probed():
    vectors, query = clustered(300, 6, num_clusters=30), queries(40, 6)
    vectors[::10] *= 9
    index = index_of(head_of(vectors), 30, 1, num_scanned=30)
    assert index.scanned.numpy().tolist() == list(range(0, 300, 10))
    best = index.top_k(query, 30).ids.numpy()
    logits = query @ vectors.T
    assert (best[:, 0] % 10 == 0).all()
    np.testing.assert_array_equal(best[:, 0], 10 * logits[:, ::10].argmax(1))


def test_one_row_of_exclude_is_for_all_queries():
    head, query = head_of(clustered(60, 6), use_bias=True), queries(5, 6)
    index = index_of(head, 6, 2)
    want = [ranked(logits, 4, [3, 9]) for logits in head(query).numpy()]
    found = index.top_k(head.effective_query(query), np.int64(4), [[3, 9]], num_probes=np.int64(99))
    np.testing.assert_array_equal(found.ids, want)


@pytest.mark.parametrize("dtype, num_scanned", long_after(1, ("float32", 60), ("int8", 0)))
def test_those_that_pass_are_ranked_as_by_brute_force(monkeypatch, dtype, num_scanned):
    """With all cells probed: equal. With one: only those that pass, and k wherever there are k."""
    monkeypatch.setattr(cell_search, "_SCANNED_ELEMENTS", 1 << 12)  # few queries in a block
    random, vectors, query = np.random.default_rng(0), clustered(600, 6), queries(40, 6)
    kind, size = random.choice(5, 600, p=[0.6, 0.3, 0.08, 0.015, 0.005]), random.random(600).astype("float32")
    vectors[0] *= 9  # is scanned
    index = InvertedIndex(25, 1, dtype, num_scanned)
    index.build_from(head_of(vectors))
    search = index.for_serving(Attributes({"kind": kind, "size": size}))
    logits = query @ search.vectors(tf.range(600), search.columns()).numpy().T
    kinds = np.sort(random.integers(-1, 6, (40, 2)).astype("int32"), axis=0)  # in the last blocks none pass
    most = random.random((1, 1)).astype("float32")
    for where, passes in (
        ({"where_kind": kinds}, (kind == kinds[..., None]).any(1) | (kinds < 0).all(1)[:, None]),
        ({"where_size_max": most}, np.repeat(size[None] <= most, 40, 0)),
        (
            {"where_kind": [[2, 4]], "where_size_max": most},
            np.repeat((size[None] <= most) & np.isin(kind, [2, 4]), 40, 0),
        ),
    ):
        want = np.array(
            [ranked(row, 8, allow=np.flatnonzero(own)) for row, own in zip(logits, passes, strict=True)]
        )
        exclude = want[:, :1]
        for k, out in ((8, np.full([40, 1], -1, np.int32)), (7, exclude.astype("int32"))):
            given = tf.constant(query), tf.constant(k), tf.constant(out), None
            best = search.top_k(*given, tf.constant(index.num_cells), **where).ids
            np.testing.assert_array_equal(best, want[:, 8 - k :])
            few = search.top_k(*given, tf.constant(1), **where).ids.numpy()
            assert ((few >= 0).sum(1) == (want[:, 8 - k :] >= 0).sum(1)).all()
            assert all(own[ids[ids >= 0]].all() for ids, own in zip(few, passes, strict=True))
