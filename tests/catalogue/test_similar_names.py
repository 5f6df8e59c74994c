import numpy as np
import pytest

from tfxc.catalogue import similar_names as module
from tfxc.catalogue.similar_names import similar_names

KNOWN = ["black tea", "table salt", "green tea bags", "Sea Salt", "é"]


def test_the_likest_come_first():
    places, cosines = similar_names(["green tea", "sea salt", "zzz", "É"], KNOWN, 2)
    assert places[0].tolist() == [2, 0] and places[1].tolist() == [3, 1] and places[3, 0] == 4
    assert cosines[1, 0] > 0.99 and np.all(np.diff(cosines, axis=1) <= 0)
    assert cosines[2].tolist() == [0, 0]


def test_letters_that_few_names_have_count_more():
    known = [f"the {letter * 3}" for letter in "abcdefghijklmn"] + ["qqq xyz"]
    places, _ = similar_names(["the xyz"], known, 1)  # it shares three runs of letters with each of them
    assert known[places[0, 0]] == "qqq xyz"


def test_neither_the_size_of_a_block_nor_the_number_of_names_matters(monkeypatch):
    names = ["tea", "salt", "tea"]
    want = similar_names(names, KNOWN, 9)
    assert want[0].shape == (3, len(KNOWN))
    monkeypatch.setattr(module, "_AT_ONCE", 2)
    for got, wanted in zip(similar_names(names, KNOWN, 9), want, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("count", [1, 7, 300])
def test_the_likest_of_many_that_are_alike(count):
    known = [f"tea {number % 10} {'x' * (number % 3)}" for number in range(300)]
    places, cosines = similar_names(["tea 7"], known, count)
    every = similar_names(["tea 7"], known, len(known))
    np.testing.assert_array_equal(places, every[0][:, :count])
    np.testing.assert_array_equal(cosines, every[1][:, :count])
