import numpy as np
from sampler_checks import head_of

from tfxc.search import tuning
from tfxc.search.cells import Cells
from tfxc.search.tuning import cheapest_of, fewest_probes, scan_steps

VECTORS = np.array([[1, 0], [0.9, 0], [0, 1], [0, 0.8], [0, 0.7]], np.float32)
CELLS = Cells(np.arange(5, dtype=np.int32), np.array([0, 2, 5]))
QUERY = np.array([[1.0, 0.1]], np.float32)


def costs(wanted, promising, recall=1.0, cells=CELLS):
    every = range(len(promising) + 1)
    head = head_of(VECTORS)
    promising = np.array(promising, int)
    return [cheapest_of([cells], head, QUERY, np.array([wanted]), recall, promising, [n])[1:] for n in every]


def test_the_cost_of_a_recall_by_hand():
    # The two best stand in the first cell of two classes, the third in the other.
    assert costs([0, 1], []) == [(0, 2 + 2)]
    assert costs([0, 1, 2], []) == [(0, 2 + 5)]
    # Scanned, a class costs a tenth, and what is left of its cell is smaller.
    assert costs([0, 1, 2], [2]) == [(0, 2 + 5), (1, 2 + 1 / 10 + 2)]
    assert costs([0, 1], [0, 1]) == [(0, 2 + 2), (1, 2 + 1 / 10 + 1), (2, 1 + 2 / 10)]


def test_the_cheapest_of_all_is_chosen():
    alone = Cells(np.arange(5, dtype=np.int32), np.arange(6))
    head, wanted = head_of(VECTORS), np.array([[0, 2]])
    cells, num_scanned, cost = cheapest_of(
        [CELLS, alone], head, QUERY, wanted, 1.0, np.array([2, 0]), [0, 1, 2]
    )
    assert cells is CELLS and num_scanned == 2 and cost == 2 + 2 / 10


def test_queries_are_looked_at_some_at_a_time(monkeypatch):
    random = np.random.default_rng(0)
    head, query = head_of(random.normal(size=(60, 4)).astype(np.float32)), random.normal(size=(50, 4))
    cells = Cells(random.permutation(60).astype(np.int32), np.arange(0, 61, 6))
    wanted = np.argsort(-query @ head.class_vectors(0, 60).numpy().T, axis=1)[:, :5]
    given = [cells], head, query.astype(np.float32), wanted, 0.9, np.arange(9), [0, 3, 9]
    at_once = cheapest_of(*given)[1:]
    monkeypatch.setattr(tuning, "_QUERIES_AT_ONCE", 7)
    assert cheapest_of(*given)[1:] == at_once


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
