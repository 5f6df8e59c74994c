import numpy as np
import pytest
from scipy.stats import chisquare

from tfxc.sparsity import check_topology, grow, random_topology, smallest


@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 3, 3), (5, 4, 6), (20, 3, 200), (3, 1, 2)])
def test_rows_are_distinct_and_in_range(shape):
    topology = random_topology(*shape, seed=1)
    assert topology.shape == shape[:2] and topology.dtype == np.int32
    check_topology(topology, shape[2])
    np.testing.assert_array_equal(topology, random_topology(*shape, seed=1))


@pytest.mark.parametrize(("fan_in", "num_inputs"), [(3, 40), (3, 5)])  # by rejection, and by keys
def test_inputs_are_uniform(fan_in, num_inputs):
    topology = random_topology(4000, fan_in, num_inputs, seed=0)
    assert chisquare(np.bincount(topology.ravel(), minlength=num_inputs)).pvalue > 1e-3
    assert chisquare(np.bincount(topology[:, -1], minlength=num_inputs)).pvalue > 1e-3


def test_a_bad_topology_is_told_and_its_row_named():
    for bad in (0, 6):
        with pytest.raises(ValueError, match=rf"fan_in must be in \[1, 5\].*got {bad}"):
            random_topology(3, bad, 5, seed=0)
    for bad in ([2, 2], [-1, 0], [0, 3]):
        with pytest.raises(ValueError, match=rf"Class 1 reads \[{bad[0]}, {bad[1]}\]"):
            check_topology(np.array([[0, 1], bad, [9, 9]]), 3)
    for bad in (np.zeros(3, np.int32), np.zeros((3, 1))):
        with pytest.raises(ValueError, match=r"Expected integers \[L, K\]"):
            check_topology(bad, 3)


def test_the_smallest_by_hand():
    weights = np.array([[0.5, -0.1, 0.1, 2.0], [-3.0, 0.0, 1.0, 0.0]], np.float32)
    assert smallest(weights, 0).shape == (2, 0)
    assert smallest(weights, 2).tolist() == [[1, 2], [1, 3]]
    assert smallest(weights, 4).tolist() == [[1, 2, 0, 3], [1, 3, 2, 0]]
    assert weights[0, 1] == np.float32(-0.1)  # the argument stays as it was


def test_weights_that_are_not_finite_and_the_number_to_drop_are_told():
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match="weights of class 1 are not finite"):
            smallest(np.array([[1.0, 2.0], [0.0, bad]], np.float32), 2)
    for bad in (-1, 3):
        with pytest.raises(ValueError, match=rf"num_drop must be in \[0, 2\].*got {bad}"):
            smallest(np.ones((4, 2)), bad)


def test_growing_by_hand():
    indices = np.int32([[0, 1, 2], [3, 1, 0]])
    grown = grow(indices, np.array([[1], [0]]), 4, np.random.default_rng(0))
    assert grown.tolist() == [[0, 3, 2], [2, 1, 0]] and indices[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("num_inputs", [4, 8, 50])
def test_grown_inputs_are_uniform_among_the_unread(num_inputs):
    indices = np.tile(np.int32([[2, 0]]), (6000, 1))
    grown = grow(indices, np.tile([[1]], (6000, 1)), num_inputs, np.random.default_rng(3))
    assert (grown[:, 0] == 2).all()
    counts = np.bincount(grown[:, 1], minlength=num_inputs)
    assert counts[0] == counts[2] == 0
    assert chisquare(np.delete(counts, [0, 2])).pvalue > 1e-3


def test_dropped_positions_are_checked():
    indices, rng = np.int32([[0, 1], [4, 5]]), np.random.default_rng(0)
    for bad in ([0, 0], [-1, 1], [1, 2]):
        with pytest.raises(ValueError, match=rf"Class 1 drops \[{bad[0]}, {bad[1]}\].*in \[0, 2\)"):
            grow(indices, np.array([[0, 1], bad]), 6, rng)
    with pytest.raises(ValueError, match="positions for 2 classes, but got 1 rows"):
        grow(indices, np.array([[0]]), 6, rng)
    with pytest.raises(ValueError, match="Cannot move 2 connections of a class.*leaves 1"):
        grow(np.int32([[0, 1, 2]]), np.array([[0, 1]]), 4, rng)


def test_a_thousand_rewires_keep_every_invariant():
    rng = np.random.default_rng(0)
    for round_ in range(1000):
        num_inputs = int(rng.integers(2, 40))
        fan_in = int(rng.integers(1, num_inputs))
        num_moved = int(rng.integers(0, min(fan_in, num_inputs - fan_in) + 1))
        indices = random_topology(6, fan_in, num_inputs, seed=round_)
        dropped = smallest(rng.normal(size=indices.shape), num_moved)
        grown = grow(indices, dropped, num_inputs, rng)
        check_topology(grown, num_inputs)
        moved = grown != indices
        assert (moved.sum(1) == num_moved).all() and np.take_along_axis(moved, dropped, 1).all()


def test_blocks_of_keys_do_not_change_the_draw_and_blocks_of_rows(monkeypatch):
    whole = random_topology(10, 4, 6, seed=0)
    monkeypatch.setattr("tfxc.sparsity.topology._BLOCK_KEYS", 20)
    np.testing.assert_array_equal(random_topology(10, 4, 6, seed=0), whole)
    monkeypatch.setattr("tfxc.sparsity.topology._BLOCK_ROWS", 3)
    indices = random_topology(10, 2, 9, seed=0)
    check_topology(indices, 9)
    weights = np.random.default_rng(1).normal(size=(10, 2))
    dropped = smallest(weights, 1)
    np.testing.assert_array_equal(dropped[:, 0], np.argmin(np.abs(weights), 1))
    check_topology(grow(indices, dropped, 9, np.random.default_rng(2)), 9)
