import numpy as np
import pytest
import tensorflow as tf
from memory_checks import with_peak
from sampler_checks import clustered, head_of, index_of, queries

from tfxc.scored import BestClasses


@pytest.fixture(scope="module")
def small():
    head = head_of(clustered(60, 6), use_bias=True)
    return head, index_of(head, 6, 2)


def test_recall_is_the_share_of_the_best_that_are_found(small):
    head, index = small
    query = queries(9, 6)
    found = index.top_k(head.effective_query(query), 20).ids.numpy()
    shares = [np.isin(*rows).mean() for rows in zip(head.top_k(query, 20).ids.numpy(), found, strict=True)]
    np.testing.assert_allclose(index.recall(head, query, 20), np.mean(shares), rtol=1e-6)
    assert 0 < np.mean(shares) < 1


def test_a_recall_that_is_reached_exactly_is_enough(small, monkeypatch):
    head, index = small
    query = queries(10, 6)
    found = head.top_k(query, 11)
    ids = found.ids.numpy()[:, :10].copy()
    ids[:5, 0] = found.ids.numpy()[:5, 10]  # the 11th best in place of the best
    monkeypatch.setattr(index, "top_k", lambda *_, **__: BestClasses(found.scores, tf.constant(ids)))
    assert index.recall(head, query, 10) == 0.95


@pytest.mark.long
def test_recall_is_that_of_what_is_not_excluded():
    head, query = head_of(clustered(4000, 8, num_clusters=60)), queries(200, 8)
    index = index_of(head, 60, 2)
    best = head.top_k(query, 30).ids.numpy()
    found = index.top_k(head.effective_query(query), 10, exclude=best[:, :20]).ids.numpy()
    share = np.mean([np.isin(*rows).mean() for rows in zip(best[:, 20:], found, strict=True)])
    assert index.recall(head, query, exclude=best[:, :20]) == pytest.approx(share)
    assert share < index.recall(head, query) - 0.02
    assert index.tune(head, query, recall=0.95, exclude=best[:, :20]) >= 0.95
    assert index.recall(head, query, exclude=best[:, :20]) >= 0.95
    message = "Recall is that of k=3981 classes, but exclude leaves a query fewer"
    with pytest.raises(ValueError, match=message):
        index.recall(head, query, k=3981, exclude=best[:, :20])


def test_recall_of_many_classes_holds_no_table_of_all_pairs():
    head = head_of(clustered(8000, 4))
    index = index_of(head, 10, 10)
    recall, peak = with_peak(lambda: index.recall(head, queries(16, 4), 8000))
    assert recall == 1 and peak < 500e6  # of all pairs a GB


@pytest.mark.parametrize("bad", [np.zeros([0, 6], np.float32), np.full([3, 6], np.nan, np.float32)])
def test_recall_of_queries_that_say_nothing_is_refused(bad, small):
    head, index = small
    for measure in (index.recall, index.tune):
        with pytest.raises(ValueError, match="finite, at least one"):
            measure(head, bad)


def test_exclude_has_a_row_for_each_query(small):
    head, index = small
    with pytest.raises(ValueError, match="one row, or one for each of 300 queries, but has 257"):
        index.recall(head, queries(300, 6), 3, exclude=np.zeros((257, 1), np.int32))
