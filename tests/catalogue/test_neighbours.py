import numpy as np
import pytest

from tfxc.catalogue.class_map import ClassMap
from tfxc.catalogue.neighbours import neighbour_shares
from tfxc.data import Sequences, Vocabulary

NAMES = [f"item {i}" for i in range(30)]
CLASSES = ClassMap(NAMES[:20], NAMES[3:27])  # 0, 1, 2 go and 20 ... 26 come


def shares_of(lists):
    counts = np.zeros((CLASSES.num_added + 3, 24))
    for names in lists:
        for i, name in enumerate(names):
            for other in [*names[max(i - 5, 0) : i], *names[i + 1 : i + 6]]:
                new, old = int(name[5:]) - 20, int(other[5:])
                if 0 <= new < 7 and 3 <= old < 20:
                    counts[new, old - 3] += 1
    return counts / np.maximum(counts.sum(1, keepdims=True), 1)


@pytest.mark.parametrize("seed", range(3))
def test_shares_are_those_of_all_pairs(seed):
    generator = np.random.default_rng(seed)
    sizes = generator.integers(0, 20, 40)
    lists = [[NAMES[i] for i in generator.integers(0, 30, size)] for size in sizes]
    vocabulary = Vocabulary(generator.permutation(NAMES))  # ids in another order
    found = neighbour_shares(Sequences.from_lists(lists, vocabulary), CLASSES)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.toarray(), shares_of(lists), rtol=1e-6)


@pytest.mark.parametrize("lists", [[], [[]], [["item 20"]], [["item 3", "item 4"]], [["else", "item 21"]]])
def test_without_neighbours_rows_are_empty(lists):
    assert neighbour_shares(Sequences.from_lists(lists), CLASSES).nnz == 0
