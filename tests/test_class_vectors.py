import faiss
import numpy as np
import pytest
from sampler_checks import clustered, head_of

from tfxc import class_vectors
from tfxc.class_vectors import (
    SomeClasses,
    blocks,
    changed_classes,
    one_thread,
    require_finite,
    shared_by_queries,
    subsample,
    vectors_of,
)


def test_blocks_and_subsample_cover_the_head(monkeypatch):
    vectors = clustered(23, 3)
    head = head_of(vectors)
    parts = list(blocks(head, rows=5))
    assert [start for start, _ in parts] == [0, 5, 10, 15, 20]
    np.testing.assert_array_equal(np.concatenate([part for _, part in parts]), vectors)
    monkeypatch.setattr(class_vectors, "_BLOCK_ROWS", 5)
    ids, rows = subsample(head, 9, seed=1)
    assert len(np.unique(ids)) == 9
    np.testing.assert_array_equal(rows, vectors[ids])
    np.testing.assert_array_equal(subsample(head, 100, seed=1)[1], vectors)


def test_some_classes_are_a_head_of_their_own(monkeypatch):
    monkeypatch.setattr(class_vectors, "_BLOCK_ROWS", 3)
    vectors, ids = clustered(23, 3), np.array([1, 4, 5, 20, 22])
    some = SomeClasses(head_of(vectors, use_bias=True), ids)
    np.testing.assert_array_equal(np.concatenate([part for _, part in blocks(some)])[:, :3], vectors[ids])
    np.testing.assert_array_equal(vectors_of(some, [3, 0])[:, :3], vectors[[20, 1]])
    np.testing.assert_array_equal(shared_by_queries(some), [0, 0, 0, 1])


def test_what_is_not_finite_is_named_and_large_numbers_are_fine():
    vectors = np.full([5, 3], 3e38, np.float32)  # their squares are infinite
    require_finite(vectors, range(5))
    for wrong in (np.nan, np.inf, -np.inf):
        vectors[3, 1] = wrong
        with pytest.raises(ValueError, match=r"vector of class 13 is not finite"):
            require_finite(vectors, range(10, 15))


def test_rows_whose_bits_changed_are_found(monkeypatch):
    monkeypatch.setattr(class_vectors, "_BLOCK_ROWS", 5)
    vectors, fingerprint = clustered(23, 3), np.zeros(23, np.int64)
    for changed in (np.arange(23), np.arange(0), np.array([4, 5, 22])):
        vectors[changed, 1] = np.nextafter(vectors[changed, 1], 9)
        ids = np.concatenate([*changed_classes(head_of(vectors), fingerprint)])
        np.testing.assert_array_equal(ids, changed)


def test_faiss_runs_on_one_thread_and_is_put_back():
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(2)  # tests run on one
    try:
        with pytest.raises(KeyError), one_thread():
            assert faiss.omp_get_max_threads() == 1
            raise KeyError
        assert faiss.omp_get_max_threads() == 2
    finally:
        faiss.omp_set_num_threads(before)
