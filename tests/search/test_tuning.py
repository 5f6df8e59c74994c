import numpy as np
from sampler_checks import head_of

from tfxc.search import tuning
from tfxc.search.cells import Cells, cut_into_cells
from tfxc.search.tuning import _sample, cheapest, cheapest_step, fewest_probes, scan_steps

VECTORS = np.array([[1, 0], [0.9, 0], [0, 1], [0, 0.8], [0, 0.7]], np.float32)
CELLS = Cells(np.arange(5, dtype=np.int32), np.array([0, 2, 5]))
QUERY = np.array([[1.0, 0.1]], np.float32)


def cost(wanted, promising, recall=1.0, stands_for=1):
    """The cost of a query where the promising classes are scanned."""
    rank = np.full(5, 5)
    rank[promising] = np.arange(len(promising))
    given = head_of(VECTORS), QUERY, np.array([wanted]), recall, rank
    found, step = cheapest_step(CELLS, *given, [len(promising)], np.full(5, stands_for))
    assert step == len(promising)
    return found


def test_the_cost_of_a_recall_by_hand():
    # The two best stand in the first cell of two classes, the third in the other.
    assert cost([0, 1], []) == 2 + 2
    assert cost([0, 1, 2], []) == 2 + 5
    # Scanned, a class costs a tenth, and what is left of its cell is smaller.
    assert cost([0, 1, 2], [2]) == 2 + 1 / 10 + 2
    assert cost([0, 1], [0]) == 2 + 1 / 10 + 1
    assert cost([0, 1], [0, 1]) == 1 + 2 / 10
    assert cost([0, 1, 2], [], stands_for=10) == 2 + 50


def test_the_cheapest_number_of_scanned_classes():
    rank = np.array([1, 2, 0, 3, 4])
    given = head_of(VECTORS), QUERY, np.array([[0, 2]]), 1.0, rank
    assert cheapest_step(CELLS, *given, [0, 1, 2], np.ones(5)) == (2 + 2 / 10, 2)


def test_queries_are_looked_at_some_at_a_time(monkeypatch):
    random = np.random.default_rng(0)
    head, query = head_of(random.normal(size=(60, 4)).astype(np.float32)), random.normal(size=(50, 4))
    cells = Cells(random.permutation(60).astype(np.int32), np.arange(0, 61, 6))
    wanted = np.argsort(-query @ head.class_vectors(0, 60).numpy().T, axis=1)[:, :5]
    given = cells, head, query.astype(np.float32), wanted, 0.9, np.arange(60), [0, 3, 9], np.ones(60)
    at_once = cheapest_step(*given)
    monkeypatch.setattr(tuning, "_QUERIES_AT_ONCE", 7)
    assert cheapest_step(*given) == at_once


def test_of_many_classes_a_sample_is_compared(monkeypatch):
    random = np.random.default_rng(0)
    vectors = random.normal(size=(5000, 4)) * np.linspace(3, 0.1, 5000)[:, np.newaxis]
    head, query = head_of(vectors.astype(np.float32)), random.normal(size=(60, 4)).astype(np.float32)
    given = head, query, head.top_k(query, 5), 0.9, {20, 40, 80}, scan_steps(5000)
    monkeypatch.setattr(tuning, "_COMPARED", 900)
    asked = []

    def cut(part, num_cells, *others):
        asked.append((part.num_classes, num_cells))
        return cut_into_cells(part, num_cells, *others)

    monkeypatch.setattr(tuning, "cut_into_cells", cut)
    cells, scanned, _ = cheapest(*given)
    *compared, last = asked
    assert last == (5000, last[1]) and (*compared[-1:], last)[0][1] >= last[1]
    assert all(900 <= num_classes < 1300 for num_classes, _ in compared)
    assert sorted(cells.members) == list(range(5000))
    ids, stands_for = _sample(5000, np.array([[3, 7], [7, 9]]))
    assert np.isin([3, 7, 9], ids).all() and (stands_for[np.isin(ids, [3, 7, 9])] == 1).all()
    np.testing.assert_allclose(stands_for.sum(), 5000, rtol=1e-5)


def test_few_classes_have_few_steps():
    assert scan_steps(1) == scan_steps(127) == [0] and scan_steps(128) == [0, 32]
    assert scan_steps(1_000_000)[-1] == 249_984


def test_the_fewest_probes_that_are_enough():
    for enough in range(1, 12):
        asked = []

        def recall_of(num_probes, enough=enough, asked=asked):
            asked.append(num_probes)
            return 0.9 if num_probes >= enough else 0.1

        assert fewest_probes(recall_of, 0.9, 11) == (enough, 0.9)
        assert len(asked) == len(set(asked)) <= 8
    assert fewest_probes(lambda num_probes: 0.5, 0.9, 11) == (11, 0.5)
