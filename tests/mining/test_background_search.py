import os
import threading

import numpy as np
import pytest

from tfxc.background import lower_priority
from tfxc.mining import background_search
from tfxc.mining.background_search import BackgroundSearch, given_vectors
from tfxc.mining.hard_negative_table import HardNegativeTable

VECTORS = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
QUERIES = np.random.default_rng(1).normal(size=(9, 4)).astype(np.float32)
BEST = np.argsort(-(QUERIES @ VECTORS.T), axis=1)[:, :5]


def collected(folder, ids=range(9)):
    table = HardNegativeTable(folder, (9, 5), query_dim=4, num_classes=30)
    table.start_collecting(epoch=1)
    ids = np.array(ids, int)
    table.collect(ids, QUERIES[ids])
    return table, table.finish_collecting()


def begun(table, queries, vectors=VECTORS):
    return BackgroundSearch(given_vectors(vectors, 4), queries, table, "Flat")


def searched(*args):
    search = begun(*args)
    search.wait()
    assert not search.running
    return search


def test_it_writes_the_best_classes(tmp_path, monkeypatch):
    monkeypatch.setattr(background_search, "_BLOCK_ROWS", 4)
    table, queries = collected(tmp_path)
    search = searched(table, queries)
    np.testing.assert_array_equal(table.mapped(epoch=1), BEST)
    assert search.recall == 1 and search.seconds > 0


def test_recall_is_that_of_what_the_head_ranks_best(tmp_path):
    table, queries = collected(tmp_path)
    queries.checked.update({3: QUERIES[3], 5: QUERIES[5]})
    wanted = {3: BEST[3], 5: [*BEST[5][:2], *np.setdiff1d(np.arange(30), BEST[5])[:3]]}

    def best(query, k):
        np.testing.assert_array_equal(query, QUERIES[[3, 5]])
        return np.array([wanted[3], wanted[5]])

    search = BackgroundSearch(given_vectors(VECTORS, 4)._replace(best=best), queries, table, "Flat")
    search.wait()
    assert search.recall == pytest.approx(0.7)


def test_rows_of_examples_without_a_query_stay(tmp_path):
    table, queries = collected(tmp_path)
    searched(table, queries._replace(epoch=0), -VECTORS)
    table.swap(0)
    table, queries = collected(tmp_path, [2, 7])
    table.resume(epoch=0)
    searched(table, queries)
    rows = table.mapped(epoch=1)
    np.testing.assert_array_equal(rows[[2, 7]], BEST[[2, 7]])
    np.testing.assert_array_equal(rows[[0, 8]], table.rows(np.array([0, 8])))


def test_vectors_narrower_than_the_queries_count_as_padded():
    padded = given_vectors(VECTORS[:, :3], 4).class_vectors(3, 5).numpy()
    np.testing.assert_array_equal(padded, np.pad(VECTORS[3:5, :3], [(0, 0), (0, 1)]))


@pytest.mark.parametrize(
    ("ids", "vectors", "message"),
    [([], VECTORS, "no example of the epoch gave a query"), (range(9), VECTORS * np.nan, "is not finite")],
)
def test_what_went_wrong_is_told_and_nothing_is_left(tmp_path, ids, vectors, message):
    search = searched(*collected(tmp_path, ids), vectors)
    assert not search.found and message in search.error
    assert os.listdir(tmp_path) == []


def test_it_runs_at_low_priority_and_stops_when_told(tmp_path, monkeypatch):
    monkeypatch.setattr(background_search, "lower_priority", lower_priority)  # as it is outside of tests
    started, assigned, policies = threading.Event(), threading.Event(), []

    def slow(index, queries, k):
        policies.append(os.sched_getscheduler(threading.get_native_id()))
        started.set()
        assigned.wait()
        search._stopped.wait()
        return BEST[:1]

    monkeypatch.setattr(background_search, "_BLOCK_ROWS", 1)
    monkeypatch.setattr(background_search, "search", slow)
    search = begun(*collected(tmp_path))
    assigned.set()
    started.wait()
    assert search.running
    search.stop()
    assert not search.running and "was stopped" in search.error and os.listdir(tmp_path) == []
    assert policies == [os.SCHED_IDLE]
    assert os.sched_getscheduler(threading.get_native_id()) == os.SCHED_OTHER  # training's own


def test_it_runs_where_priorities_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(background_search, "lower_priority", lower_priority)  # as it is outside of tests

    def refuse(*args):
        raise PermissionError("not here")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    search = searched(*collected(tmp_path))
    assert search.found and search.recall == 1
