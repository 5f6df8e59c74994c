import re

import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
from memory_checks import with_peak

from tfxc.ids import check_ids
from tfxc.labels import (
    as_array,
    flatten_examples,
    labelled_queries,
    pad_labels,
    pad_labels_of,
    weights_as_array,
)

ROWS = [[3, 1], [], [7]]
PADDED = [[3, 1], [-1, -1], [7, -1]]


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64, tf.int16, tf.uint8])
def test_forms(dtype):
    ragged = tf.cast(tf.ragged.constant(ROWS), dtype)
    for labels in (ragged, ragged.to_sparse()):
        padded = check_ids(pad_labels(labels), 8)
        assert padded.dtype == tf.int32 and padded.numpy().tolist() == PADDED
    assert check_ids(pad_labels(tf.constant([1, 2], dtype)), 8).numpy().tolist() == [1, 2]


@pytest.mark.parametrize("dtype", [tf.float32, tf.bool])
def test_only_integers(dtype):
    with pytest.raises(ValueError, match=f"integer class ids, but have dtype {dtype.name}"):
        pad_labels(tf.zeros([2, 2], dtype))
    matrix = tf.SparseTensor([[0, 4], [1, 0]], tf.cast([1, 1], dtype), [2, 9])
    with pytest.raises(ValueError, match="CSR matrix of SciPy tf.RaggedTensor.from_row_splits"):
        pad_labels(matrix)


@pytest.mark.parametrize("shape", [[3], [3, 1], [1, 3]])
def test_floats_that_hold_ids_become_ids_as_the_refusal_says(shape):
    floats = np.reshape([7.0, np.nan, 2.0], shape)
    with pytest.raises(ValueError, match="have dtype float64") as refused:
        pad_labels(floats)
    (remedy,) = re.findall(r"for floats that hold ids (np\.where.*\))\.$", str(refused.value))
    assert pad_labels(eval(remedy, {"np": np, "m": floats})).numpy().ravel().tolist() == [7, -1, 2]
    assert ("one-hot" in str(refused.value)) == (shape == [1, 3])


def test_labels_that_make_no_tensor_become_one_as_the_refusal_says():
    matrix = as_array(scipy.sparse.csc_matrix([[0, 0, 1], [1, 1, 0]]))
    assert matrix.format == "csr"  # the others cannot be cut into batches
    with pytest.raises(ValueError, match="are a SciPy matrix. Pass ids") as refused:
        pad_labels(matrix)
    (remedy,) = re.findall(r"CSR matrix of SciPy (tf\..*\))\.$", str(refused.value))
    assert pad_labels(eval(remedy, {"tf": tf, "m": matrix})).numpy().tolist() == [[2, -1], [0, 1]]
    with pytest.raises(ValueError, match=r"pass tf.ragged.constant\(lists\)"):
        pad_labels(ROWS)


def test_multi_hot_rows_become_ids_as_the_refusal_says():
    rows = np.array([[0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]])
    with pytest.raises(ValueError) as refused:
        pad_labels(tf.constant(rows, tf.float32))
    with pytest.raises(tf.errors.InvalidArgumentError) as refused_as_ids:
        labelled_queries(tf.zeros([3, 2]), rows, 4)
    for message in (str(refused.value), str(refused_as_ids.value)):
        remedies = r"multi-hot rows (tf\.SparseTensor\(.*\)), where s = (tf\.\S+\(m\))"
        remedy, given = re.search(remedies, message).groups()
        ids = eval(remedy, {"tf": tf, "s": eval(given, {"tf": tf, "m": rows})})
        assert pad_labels(ids).numpy().tolist() == [[1, 3], [0, -1], [-1, -1]]


@pytest.mark.parametrize("labels", [tf.constant([["tea"]]), tf.ragged.constant([["tea"], []])])
def test_names_are_to_be_encoded_first(labels):
    with pytest.raises(ValueError, match=r"are strings.*tfxc\.data\.Vocabulary\(names\)\.encode"):
        pad_labels(labels)


def test_a_sparse_multi_hot_matrix_is_not_mistaken_for_ids():
    with pytest.raises(tf.errors.InvalidArgumentError, match="multi-hot"):
        pad_labels(tf.sparse.from_dense([[0, 1, 1], [1, 0, 0]]))
    ones = tf.SparseTensor([[0, 0], [1, 0]], [1, 1], [2, 3])  # class 1, twice
    assert pad_labels(ones).numpy().tolist() == [[1], [1]]


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.parametrize("in_graph", [False, True])
def test_sparse_one_hot_rows_are_refused_with_what_makes_ids_of_them(in_graph):
    rows = np.eye(4, dtype=np.int64)[[3, 0, 1]]
    m, csr = tf.sparse.from_dense(rows), scipy.sparse.csr_matrix(rows)
    padded = tf.function(pad_labels) if in_graph else pad_labels
    with pytest.raises(tf.errors.InvalidArgumentError, match="all 1, as in a one-hot") as refused:
        padded(m)
    remedies = r"matrix m (tf\.SparseTensor\(.*\)), or .* (tf\.Ragged.*\))\."
    for remedy, matrix in zip(re.search(remedies, str(refused.value)).groups(), (m, csr), strict=True):
        ids = eval(remedy, {"tf": tf, "m": matrix})
        assert padded(ids).numpy().tolist() == [[3], [0], [1]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="all 1, as in a one-hot"):
        padded(tf.sparse.from_dense([[[0, 0, 1], [1, 0, 0]]]))


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.parametrize(
    ("shape", "given", "want"),
    [
        ([3, 9], {(0, 1): 5, (0, 8): 7, (2, 4): 1}, [[5, 7], [-1, -1], [1, -1]]),
        ([2, 3], {}, [[], []]),
        ([2, 0], {}, [[], []]),
        ([0, 3], {}, []),
        ([2, 2, 9], {(0, 1, 8): 5, (1, 0, 0): 2, (1, 0, 3): 4}, [[[-1, -1], [5, -1]], [[2, 4], [-1, -1]]]),
        ([2, 0, 3], {}, [[], []]),
    ],
)
def test_ids_of_sparse_rows_move_to_the_front(shape, given, want):
    places = np.array(list(given), np.int64).reshape(-1, len(shape))
    labels = tf.SparseTensor(places, np.array(list(given.values()), np.int64), shape)
    assert pad_labels(labels).numpy().tolist() == want
    for known in (shape, [None] * len(shape)):
        padded = tf.function(pad_labels, input_signature=[tf.SparseTensorSpec(known, tf.int64)])
        assert padded(labels).numpy().tolist() == want
        assert padded.get_concrete_function().output_shapes.as_list()[:-1] == known[:-1]


def test_sparse_columns_that_are_positions_stay_where_they_are():
    labels = tf.SparseTensor([[0, 2], [1, 0], [1, 2]], [1, 1, 1], [2, 3])  # class 1, not a matrix of classes
    padded = pad_labels_of(tf.zeros([2, 4, 5]), labels)
    assert padded.numpy().tolist() == [[-1, -1, 1, -1], [1, -1, 1, -1]]
    of_examples = tf.SparseTensor([[1], [3]], [1, 1], [4])
    assert pad_labels_of(tf.zeros([4, 5]), of_examples).numpy().tolist() == [-1, 1, -1, 1]


@pytest.mark.parametrize("lead", [[8], [2, 4]])
def test_sparse_rows_as_wide_as_there_are_classes_take_little_memory(lead):
    def padded(num_classes):
        ids = np.repeat(np.arange(5, num_classes, num_classes // 3)[np.newaxis], 8, 0)
        places = np.stack([*np.unravel_index(np.repeat(np.arange(8), ids.shape[1]), lead), ids.ravel()], 1)
        labels = tf.SparseTensor(places, ids.ravel(), [*lead, num_classes])
        return with_peak(lambda: pad_labels_of(tf.zeros([*lead, 2]), labels))

    padded(9)
    labels, peak = padded(8_000_000)
    assert labels.shape == (*lead, 3) and peak < 16 << 20  # a number a class and row would be 512 MB


def test_examples_of_one_query_stay_as_they_are():
    query, labels = tf.ones([3, 2]), tf.constant([1, -1, 2])
    flat, ids, weights, where = flatten_examples(query, labels, tf.constant([[1.0], [2], [3]]))
    assert flat is query and ids.numpy().tolist() == [[1], [-1], [2]]
    assert weights.numpy().tolist() == [1, 2, 3] and where is None


def test_sequences_keep_what_is_labelled_and_unmasked():
    query = tf.reshape(tf.range(12.0), [2, 3, 2])
    labels = tf.constant([[[1, -1], [-1, -1], [2, 3]], [[4, 5], [6, -1], [7, 8]]])
    mask = tf.constant([[True, True, False], [True, True, True]])
    flat, ids, weights, where = flatten_examples(query, labels, tf.constant([10.0, 20.0]), mask)
    assert flat.numpy().tolist() == [[0, 1], [6, 7], [8, 9], [10, 11]]
    assert ids.numpy().tolist() == [[1, -1], [4, 5], [6, -1], [7, 8]]
    assert weights.numpy().tolist() == [10, 20, 20, 20]
    assert where.numpy().tolist() == [[0, 0], [1, 0], [1, 1], [1, 2]]
    by_position = tf.reshape(tf.range(6.0), [2, 3])
    assert flatten_examples(query, labels, by_position, mask)[2].numpy().tolist() == [0, 3, 4, 5]


@pytest.mark.traced
@pytest.mark.parametrize("weights", [[1.0, 2.0], [[1.0], [2.0]], [[1.0, 2.0], [3.0, 4.0]]])
def test_weights_of_sequences_whose_rank_is_not_known(weights):
    query, labels = tf.zeros([2, 2, 3]), tf.constant([[0, 1], [2, -1]])
    _, _, want, _ = flatten_examples(query, labels, tf.constant(weights))

    @tf.function(input_signature=[tf.TensorSpec(None)])
    def traced(given):
        return flatten_examples(query, labels, given)[2]

    np.testing.assert_array_equal(traced(tf.constant(weights)), want)


@pytest.mark.traced
@pytest.mark.parametrize(
    ("query", "labels"),
    [((4, 5, 3), (4,)), ((4, 5, 3), (4, 10)), ((4, 5, 3), (4, 5, 2, 1)), ((4, 3), (4, 2, 2))],
)
def test_ranks_are_checked(query, labels):
    @tf.function(input_signature=[tf.TensorSpec(None, tf.int32)])
    def flatten(labels):
        return flatten_examples(tf.zeros(query), labels)[1]

    wanted = r"\[B, T\] or \[B, T, P\]" if len(query) == 3 else r"\[B\] or \[B, P\]"
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"need labels of shape {wanted}"):
        flatten(tf.zeros(labels, tf.int32))
    if labels != (4, 10):  # whose rank is right
        with pytest.raises(ValueError, match=f"need labels of shape {wanted}"):
            flatten_examples(tf.zeros(query), tf.zeros(labels, tf.int32))
    np.testing.assert_array_equal(flatten(tf.ones(query[:-1], tf.int32)), np.ones([np.prod(query[:-1]), 1]))


OF_LABELS = "There must be one row of labels for each query"
OF_POSITIONS = "Queries need a label for each of their positions, -1 for none"
OF_WEIGHTS = "sample_weight must hold a (number for each example|row for each sequence), .*"
OF_WEIGHTED_POSITIONS = "sample_weight of sequences must hold a number for each position, or one for all"


@pytest.mark.traced
@pytest.mark.parametrize(
    ("query", "labels", "weights", "wanted"),
    [
        *[([4, *of, 2], [rows, *of], [4], OF_LABELS) for rows in (1, 3, 8) for of in ([], [5])],
        *[([4, *of, 2], [4, *of], [3], OF_WEIGHTS) for of in ([], [5])],
        *[([2, 3, 4], [2, positions], [2], OF_POSITIONS) for positions in (2, 4)],
        *[([2, 3, 4], [2, 3], [2, width], OF_WEIGHTED_POSITIONS) for width in (2, 4)],
    ],
)
def test_each_query_has_labels_and_a_weight(query, labels, weights, wanted):
    given = tf.zeros(query), tf.zeros(labels, tf.int32), tf.ones(weights)
    with pytest.raises(ValueError, match=rf"{wanted}, but there are \d instead of \d"):
        flatten_examples(*given)
    specs = [tf.TensorSpec([None] * part.shape.rank, part.dtype) for part in given]
    of_any_rank = [specs[0], tf.TensorSpec(None, tf.int32), specs[2]]
    for shapes in (specs, of_any_rank) if wanted == OF_LABELS else (specs,):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"{wanted}, but there are"):
            tf.function(flatten_examples, input_signature=shapes)(*given)
    right = [query[:-1], [query[0]]]
    known = tf.function(flatten_examples).get_concrete_function(
        given[0], tf.zeros(right[0], tf.int32), tf.ones(right[1])
    )
    assert not [op for op in known.graph.get_operations() if op.type == "Assert"]  # it costs nothing


@pytest.mark.traced
@pytest.mark.parametrize("weights", [[[2.0], [3.0]], [[2.0] * 3, [3.0] * 3]])
def test_a_sequence_has_a_weight_for_each_position_or_one(weights):
    query, labels, weights = tf.zeros([2, 3, 4]), tf.zeros([2, 3], tf.int32), tf.constant(weights)
    specs = [tf.TensorSpec([None] * part.shape.rank, part.dtype) for part in (query, labels, weights)]
    for run in (flatten_examples, tf.function(flatten_examples, input_signature=specs)):
        assert run(query, labels, weights)[2].numpy().tolist() == [2.0] * 3 + [3.0] * 3


def test_labels_whose_longest_row_ends_early_are_padded():
    query = tf.reshape(tf.range(12.0), [2, 3, 2])
    ragged = tf.ragged.constant([[5], [6, 7]], dtype=tf.int32)
    for labels in (ragged, ragged.to_sparse(), tf.expand_dims(ragged, 2)):
        flat, ids, _, _ = labelled_queries(query, labels, 9)
        assert flat.numpy().tolist() == [[0, 1], [6, 7], [8, 9]] and ids.numpy().tolist() == [[5], [6], [7]]


def test_weights_below_0_are_told():
    with pytest.warns(UserWarning, match="sample_weight holds 1 numbers below 0, .* pass 0"):
        assert weights_as_array([1, -1, 0]).tolist() == [1.0, -1.0, 0.0]
    assert weights_as_array(None) is None
