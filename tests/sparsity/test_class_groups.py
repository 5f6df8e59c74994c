import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

from tfxc.sparsity import group_classes


@pytest.mark.parametrize(("num_classes", "group_size"), [(1, 1), (7, 3), (40, 16), (5, 100)])
def test_each_class_has_one_place(num_classes, group_size):
    labels = np.random.default_rng(0).integers(-1, num_classes, size=(30, 4))
    assert sorted(group_classes(labels, num_classes, group_size)) == list(range(num_classes))


def test_classes_that_share_labels_share_a_group():
    random = np.random.default_rng(1)
    topics = random.permutation(80).reshape(20, 4)
    labels = np.array([random.choice(topic, 2, replace=False) for topic in topics for _ in range(30)])
    groups = group_classes(labels, 80, 4).reshape(20, 4)
    assert {tuple(sorted(group)) for group in groups} == {tuple(sorted(topic)) for topic in topics}
    matrix = np.zeros((len(labels), 80))
    np.put_along_axis(matrix, labels, 2.5, 1)
    order = group_classes(scipy.sparse.coo_matrix(matrix), 80, 4)
    np.testing.assert_array_equal(order.reshape(20, 4), groups)


@pytest.mark.parametrize("seed", range(10))
def test_groups_are_those_of_a_slow_search(seed):
    labels = np.random.default_rng(seed).integers(-1, 9, (12, 3))
    sets = [set(row) - {-1} for row in labels.tolist()]
    frequency = [sum(label in own for own in sets) for label in range(9)]
    free, want = set(range(9)), []
    for place in range(9):
        group = want[place - place % 3 :]
        together = {c: sum(c in own and other in own for own in sets for other in group) for c in free}
        beside = [c for c in free if together[c]]
        share = {c: round(together[c] / frequency[c], 6) for c in beside}
        weight = share if beside else dict(enumerate(frequency))
        want.append(min(beside or free, key=lambda c: (-weight[c], c)))
        free.remove(want[-1])
    assert group_classes(labels, 9, 3).tolist() == want


def test_ragged_and_sparse_labels_are_their_padded_ones():
    padded = np.array([[0, 2], [2, 0], [1, 3], [3, -1]])
    order = group_classes(padded, 4, 2)
    assert order.tolist() == [0, 2, 3, 1]
    ragged = tf.ragged.constant([[0, 2], [2, 0], [1, 3], [3]])
    np.testing.assert_array_equal(group_classes(ragged, 4, 2), order)
    np.testing.assert_array_equal(group_classes(ragged.to_sparse(), 4, 2), order)


def test_a_stored_zero_is_no_label():
    labels = scipy.sparse.csr_matrix(np.array([[1, 2, 1, 2], [1, 2, 1, 2], [2, 1, 2, 1], [2, 1, 2, 1]]))
    labels.data -= 1  # a matrix of which zeros are stored
    assert labels.nnz == 16
    without = scipy.sparse.csr_matrix(labels.toarray())
    np.testing.assert_array_equal(group_classes(labels, 4, 2), group_classes(without, 4, 2))


def test_long_lists_of_labels_and_repeated_ones_say_nothing_and_then_the_frequent_come_first():
    labels = np.array([[0, 1, 2, 3], [0, 3, -1, -1], [0, -1, -1, -1], [1, 1, -1, -1]])
    assert group_classes(labels, 4, 2, max_labels=3).tolist() == [0, 3, 1, 2]
    labels = np.array([[3], [3], [3], [1], [1], [0]])
    assert group_classes(labels, 4, 2).tolist() == [3, 1, 0, 2]


@pytest.mark.parametrize(
    ("labels", "group_size", "message"),
    [
        (np.zeros(3, int), 2, r"labels must be \[N, P\]"),
        (np.zeros((2, 2)), 2, "labels must be integers, but are float64"),
        *((np.array([[label]]), 2, r"labels must be integers in \[-1, 4\)") for label in (4, -2)),
        (scipy.sparse.eye(5), 2, r"labels must be \[N, 4\]"),
        *((np.array([[0]]), bad, f"group_size must be .* 1, but got {bad}") for bad in (0, 2.5)),
    ],
)
def test_arguments_are_checked(labels, group_size, message):
    with pytest.raises(ValueError, match=message):
        group_classes(labels, 4, group_size)
