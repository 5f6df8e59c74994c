import numpy as np
import pytest
from sampler_checks import clustered, head_of, queries

from tfxc.search.faiss_index import build_index, empty_index, faiss_index, index_for, search


def best(vectors, query, k):
    return np.argsort(-(query @ vectors.T), axis=1, kind="stable")[:, :k]


@pytest.mark.parametrize("use_bias", [False, True])
def test_exact_search_finds_the_best_in_order(use_bias):
    head, query = head_of(clustered(500, 7), use_bias=use_bias), queries(40, 7)
    if use_bias:
        head.bias.assign(np.linspace(-9, 9, 500))
    query, vectors = head.effective_query(query).numpy(), head.class_vectors(0, 500).numpy()
    index, recall = build_index(head, "Flat", query[:10], k=6)
    found = search(index, query, 6)
    np.testing.assert_array_equal(found, best(vectors, query, 6))
    assert found.dtype == np.int32 and recall == 1


@pytest.mark.parametrize("factory", ["IVF16,Flat", "IVF32_HNSW8,Flat", "HNSW16", "PCA4,IVF16,Flat"])
def test_the_recall_is_that_of_the_search(factory):
    vectors, query = clustered(3000, 8), queries(200, 8)
    index, recall = build_index(head_of(vectors), factory, query, k=10)
    pairs = zip(best(vectors, query, 10), search(index, query, 10), strict=True)
    assert recall == pytest.approx(np.mean([np.isin(want, found).mean() for want, found in pairs]), abs=1e-3)
    assert recall > (0.7 if factory.startswith("IVF") else 0.1)  # HNSW is weak at inner products


def test_any_seed_makes_an_index_and_what_is_none_is_named():
    head = head_of(clustered(50, 4))
    assert faiss_index(head, seed=-1).ntotal == faiss_index(head, seed=None).ntotal == 50
    with pytest.raises(ValueError, match="seed must be an integer .* but got 1.5"):
        faiss_index(head, seed=1.5)


def test_an_index_for_users_holds_all_classes_by_their_ids():
    vectors, query = clustered(500, 7), queries(20, 7)
    for factory in (None, "IVF4,Flat"):
        index = faiss_index(head_of(vectors), factory)
        assert not factory or index.nprobe == 4
        np.testing.assert_array_equal(index.search(query, 6)[1], best(vectors, query, 6))


@pytest.mark.parametrize("use_bias", [False, True])
def test_the_effort_finds_nearly_all_classes_of_queries_like_those_given(use_bias):
    head = head_of(clustered(3000, 8), use_bias=use_bias)
    given, others = queries(100, 8), queries(100, 8, seed=1)
    index = faiss_index(head, "IVF64,Flat", queries=given)
    found = index.search(head.effective_query(others).numpy(), 100)[1]
    pairs = zip(head.top_k(others, 100).ids.numpy(), found, strict=True)
    assert np.mean([np.isin(want, own).mean() for want, own in pairs]) > 0.93 and 1 < index.nprobe < 64
    assert (found >= 0).all()
    assert faiss_index(head, "IVF64,Flat").nprobe >= index.nprobe  # random directions
    assert faiss_index(head, "IVF6,Flat").nprobe == 6  # all, where twice four would be too many


@pytest.mark.long
def test_by_default_many_classes_are_found_as_well_as_few():
    head, query = head_of(clustered(20_001, 4)), queries(50, 4)
    index = faiss_index(head)
    found = index.search(query, 100)[1]
    pairs = zip(head.top_k(query, 100).ids.numpy(), found, strict=True)
    assert np.mean([np.isin(want, own).mean() for want, own in pairs]) > 0.93
    assert 1 < index.nprobe < index.nlist and (found >= 0).all()


def test_an_index_whose_effort_is_never_enough_says_so():
    with pytest.warns(UserWarning, match=r"'PCA2,IVF16,Flat' finds \d+% .*'Flat' would find 95%"):
        faiss_index(head_of(clustered(3000, 8)), "PCA2,IVF16,Flat")


def test_fewer_classes_than_wanted_leave_empty_slots():
    vectors, query = clustered(3, 4), queries(2, 4)
    index, recall = build_index(head_of(vectors), "Flat", query, k=5)
    assert (search(index, query, 5)[:, 3:] == -1).all() and recall == 1


def test_the_index_suits_the_number_of_classes():
    assert [index_for(size) for size in (2, 20_000)] == ["Flat"] * 2
    assert index_for(100_000) == "IVF512,Flat" and index_for(5_000_000) == "IVF4096_HNSW32,Flat"


def test_numbers_that_are_not_finite_are_refused():
    vectors, query = clustered(50, 4), queries(5, 4)
    index, _ = build_index(head_of(vectors), "Flat", query, k=2)
    query[3, 1] = np.nan
    with pytest.raises(ValueError, match="query is not finite"):
        search(index, query, 2)
    vectors[7, 0] = np.inf
    with pytest.raises(ValueError, match="vector of class 7 is not finite"):
        build_index(head_of(vectors), "Flat", queries(5, 4), k=2)


@pytest.mark.parametrize(
    ("shape", "message"),
    [((5, 3), "built for queries .N, 4."), ((4,), "must be .N, D."), ((0, 4), "There are no queries")],
)
def test_queries_that_do_not_fit_are_refused(shape, message):
    with pytest.raises(ValueError, match=message):
        faiss_index(head_of(clustered(50, 4)), queries=np.ones(shape, np.float32))
    with pytest.raises(ValueError, match="factory must be a string.* queries=queries"):
        faiss_index(head_of(clustered(50, 4)), np.ones([5, 4], np.float32))


@pytest.mark.parametrize("factory", ["foo", "PQ7", "", 5])
def test_a_string_that_faiss_does_not_know_is_refused(factory):
    with pytest.raises(ValueError, match=f"index={factory!r} is no factory string .* width 8, such as"):
        empty_index(factory, 8)


@pytest.mark.parametrize(
    ("factory", "why"),
    [("IVF64,Flat", r"training points \(50\)"), ("PCA9,Flat", "cannot output 9 dimensions")],
)
def test_an_index_that_so_few_or_short_vectors_cannot_train_is_refused(factory, why):
    message = f"index='{factory}' cannot be trained on 50 class vectors of width 8; 'Flat' would .* {why}"
    with pytest.raises(ValueError, match=message):
        faiss_index(head_of(clustered(50, 8)), factory)
