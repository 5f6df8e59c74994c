import numpy as np
import pytest
import tensorflow as tf

from tfxc.catalogue import new_rows
from tfxc.catalogue.class_map import ClassMap
from tfxc.catalogue.new_rows import NewRows, neighbour_shares, similar_names
from tfxc.class_rows import AS_BUILT, BY_MEAN, BY_RULE, ClassRows
from tfxc.data import Sequences, Vocabulary

CLASSES = ClassMap(["black tea", "salt", "gone"], ["rum", "black tea", "salt", "green tea"])
TABLE = np.array([[9.0, 9], [0, 0], [1, 2], [3, 6], [0, 0]], np.float32)  # row 0 is padding


def filled(rule, how=BY_RULE):
    table = tf.Variable(TABLE)
    NewRows(rule, CLASSES).fill(ClassRows(table, 1, how))
    np.testing.assert_array_equal(table.numpy()[[0, 2, 3]], TABLE[[0, 2, 3]])
    return table.numpy()[[1, 4]].tolist()


def test_each_rule():
    assert filled("mean") == [[2, 4], [2, 4]]
    assert filled("similar") == [[2, 4], [1, 2]]  # nothing is like rum
    assert filled(lambda names: [[len(name), 0] for name in names]) == [[3, 0], [9, 0]]
    assert filled(lambda names: 1 / 0, BY_MEAN) == [[2, 4], [2, 4]]
    assert filled("similar", BY_MEAN)[1] == [1, 2]
    assert filled("mean", AS_BUILT) == [[0, 0], [0, 0]]
    bias = tf.Variable([0.0, 1.0, 3.0, 0.0])
    NewRows("similar", CLASSES).fill(ClassRows(bias, filled=BY_MEAN))
    assert bias.numpy().tolist() == [2, 1, 3, 1]


def test_a_mean_of_those_that_occur_beside():
    sequences = Sequences.from_lists([["salt", "green tea", "salt"], ["black tea", "green tea"], ["rum"]])
    table = filled(sequences)
    assert table[0] == [2, 4]  # nothing stands beside rum
    np.testing.assert_allclose(table[1], np.float32([1 + 2 * 3, 2 + 2 * 6]) / 3, rtol=1e-6)  # all on a line
    assert filled(sequences, BY_MEAN)[0] == [2, 4]
    bias = tf.Variable([0.0, 1.0, 3.0, 0.0])
    NewRows(sequences, CLASSES).fill(ClassRows(bias, filled=BY_MEAN))
    np.testing.assert_allclose(bias, [2, 1, 3, 7 / 3], rtol=1e-6)


def test_a_mean_of_neighbours_is_as_long_as_they_are():
    table = tf.Variable([[3.0, 0], [0, 0], [0, 5], [0, 0]])
    classes = ClassMap(["tea", "salt"], ["tea", "rum", "salt", "milk"])
    sequences = Sequences.from_lists([["tea", "rum", "salt"]])
    NewRows(sequences, classes).fill(ClassRows(table, filled=BY_RULE))
    rum, milk = table.numpy()[[1, 3]]
    np.testing.assert_allclose(rum, np.array([3, 5]) / np.hypot(3, 5) * 4, rtol=1e-6)
    assert milk.tolist() == [1.5, 2.5]  # the mean of all


NO_RULE = "new_rows must be 'mean', 'similar', .* or a function"


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        *((rule, NO_RULE) for rule in ("median", np.zeros([2, 2]), None)),
        (lambda names: [[0, 0], [np.nan, 0]], "must return finite numbers, but those for 'green tea'"),
        (lambda names: np.zeros([2, 3]), r"asked for the class vectors \[2, 2\]"),
    ],
)
def test_other_rules_and_what_is_no_vector_are_refused(rule, message):
    with pytest.raises(ValueError, match=message):
        filled(rule)


@pytest.mark.parametrize("rule", ["similar", Sequences.from_lists([["salt", "gone"]])])
def test_new_classes_that_share_nothing_take_the_mean(rule):
    table = tf.Variable([[1.0, 2], [3, 6], [0, 0]])
    classes = ClassMap(["black tea", "salt"], ["black tea", "salt", "zzz"])
    NewRows(rule, classes).fill(ClassRows(table, filled=BY_RULE))
    assert table.numpy()[2].tolist() == [2, 4]


ITEMS = [f"item {i}" for i in range(30)]
OF_ITEMS = ClassMap(ITEMS[:20], ITEMS[3:27])  # 0, 1, 2 go and 20 ... 26 come


def shares_of(lists):
    counts = np.zeros((OF_ITEMS.num_added + 3, 24))
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
    lists = [[ITEMS[i] for i in generator.integers(0, 30, size)] for size in sizes]
    vocabulary = Vocabulary(generator.permutation(ITEMS))  # ids in another order
    found = neighbour_shares(Sequences.from_lists(lists, vocabulary), OF_ITEMS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.toarray(), shares_of(lists), rtol=1e-6)


@pytest.mark.parametrize("lists", [[], [[]], [["item 20"]], [["item 3", "item 4"]], [["else", "item 21"]]])
def test_without_neighbours_rows_are_empty(lists):
    assert neighbour_shares(Sequences.from_lists(lists), OF_ITEMS).nnz == 0


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
    monkeypatch.setattr(new_rows, "_NAMES_AT_ONCE", 2)
    for got, wanted in zip(similar_names(names, KNOWN, 9), want, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("count", [1, 7, 300])
def test_the_likest_of_many_that_are_alike(count):
    known = [f"tea {number % 10} {'x' * (number % 3)}" for number in range(300)]
    places, cosines = similar_names(["tea 7"], known, count)
    every = similar_names(["tea 7"], known, len(known))
    np.testing.assert_array_equal(places, every[0][:, :count])
    np.testing.assert_array_equal(cosines, every[1][:, :count])
