import re

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from memory_checks import all_shapes

from tfxc.ids import check_ids, drop_duplicates, fitting_int32, hits, int32_ids, is_among


@pytest.mark.traced
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("bad", [8, -2, 2**33])
def test_an_id_outside_the_range_is_named_with_its_place(traced, bad):
    check = tf.function(check_ids) if traced else check_ids
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        check(tf.constant([[0, 7], [-1, bad], [99, 0]], tf.int64), 8)
    message = re.sub(r"[^\w-]+", " ", re.sub(r"\bb'", "'", str(error.value)))
    assert "outside 0 8" in message and "for the 100 of PyTorch pass" in message.replace("-100", "100")
    assert f"The id is {bad} at flat position 3 of shape 3 2" in message


@pytest.mark.traced
def test_ids_are_integers_and_no_ids_of_any_type():
    for ids in ([[1.7]], [[True]]):
        with pytest.raises(ValueError, match="must be an integer"):
            check_ids(ids, 8)
    assert check_ids([[]], 8).shape == (1, 0)
    check = tf.function(lambda ids: check_ids(ids, 8), reduce_retracing=True, autograph=False)
    for num_rows in (1, 2, 3):  # of which a graph knows nothing
        assert check(tf.zeros([num_rows, 0])).shape == (num_rows, 0)


def test_ids_for_an_op_that_checks_the_range_itself():
    for ids in ([[0, 7]], np.array([[0, 7]]), np.array([[0, 7]], np.uint8), tf.constant([[0, 7]], tf.int64)):
        assert int32_ids(ids, 8).dtype == tf.int32 and int32_ids(ids, 8).numpy().tolist() == [[0, 7]]
    given = tf.constant([99])
    assert int32_ids(given, 8) is given
    with pytest.raises(tf.errors.InvalidArgumentError, match="outside"):
        int32_ids(np.array([2**32 + 3]), 8)
    with pytest.raises(ValueError, match="A class id must be an integer, but the ids are float32"):
        int32_ids([0.5], 8)


@pytest.mark.parametrize("ids", [[[0, 2**32 + 1]], np.array([-(2**31) - 1]), np.array([2**31], np.uint64)])
def test_ids_of_a_list_or_an_array_are_not_cut(ids):
    with pytest.raises(ValueError, match=f"class_ids must fit into int32, but hold {np.ravel(ids)[-1]}"):
        fitting_int32(ids, "class_ids")
    given = tf.constant([1], tf.int64)
    assert fitting_int32(given, "class_ids") is given
    for fits in [[1]], np.array([[1]]), []:
        assert fitting_int32(fits, "class_ids").dtype == tf.int32


def test_duplicates():
    assert drop_duplicates(tf.zeros([3, 0], tf.int32)).shape == (3, 0)
    ids = np.random.default_rng(0).integers(-1, 5, size=(50, 7)).astype(np.int32)
    repeats = [pd.Series(row).duplicated() for row in ids]
    np.testing.assert_array_equal(drop_duplicates(tf.constant(ids)), np.where(repeats, -1, ids))


@pytest.mark.traced
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("width", [0, 1, 2, 9])
def test_hits_are_those_of_each_id_compared_with_each_label(width, shared):
    random = np.random.default_rng(width)
    ids = random.integers(-1, 12, size=30 if shared else (40, 30)).astype(np.int32)
    labels = random.integers(-1, 12, size=(40, width)).astype(np.int32)
    same = np.broadcast_to(ids, (40, 30))[:, :, np.newaxis] == labels[:, np.newaxis]
    columns = np.where(same & (labels >= 0)[:, np.newaxis], np.arange(width), -1)
    want = columns.max(-1, initial=-1)
    of_any_width = [tf.TensorSpec(ids.shape, tf.int32), tf.TensorSpec([None, None], tf.int32)]
    for run in (hits, tf.function(hits), tf.function(hits, input_signature=of_any_width)):
        found = run(tf.constant(ids), tf.constant(labels))
        np.testing.assert_array_equal(found, want)
        assert found.dtype == tf.int32


@pytest.mark.traced
def test_hits_of_many_candidates_and_labels_take_little_memory():
    labels = tf.range(256 * 64) % 5000
    shapes = all_shapes(tf.function(hits).get_concrete_function(labels, tf.reshape(labels, [256, 64])))
    assert all(shape.is_fully_defined() for shape in shapes)
    assert max(shape.num_elements() for shape in shapes) == 256 * 256 * 64


@pytest.mark.parametrize("shape", [(0, 0), (2, 0), (0, 3)])
def test_of_no_ids_none_is_hit_nor_among_others(shape):
    ids, labels = tf.zeros(shape, tf.int32), tf.zeros([shape[0], 2], tf.int32)
    assert hits(ids, labels).shape == is_among(ids, labels).shape == shape


@pytest.mark.parametrize("width", [0, 1, 9])
def test_membership_in_a_set(width):
    random = np.random.default_rng(width)
    ids, sets = random.integers(0, 12, size=(40, 7)), random.integers(-1, 12, size=(40, width))
    want = [np.isin(row, own) for row, own in zip(ids, sets, strict=True)]
    np.testing.assert_array_equal(is_among(tf.constant(ids, tf.int32), tf.constant(sets, tf.int32)), want)


@pytest.mark.traced
@pytest.mark.parametrize("width", [1, None])
def test_a_graph_that_does_not_know_the_sizes_knows_how_many_there_are(width):
    """Samplers ask for the rank of what these give, as a ``Mixture`` does."""

    @tf.function(input_signature=[tf.TensorSpec(shape, tf.int32) for shape in ([None, None], [2, width])])
    def ranks(ids, labels):
        found = hits(ids, labels), is_among(ids, labels)
        assert [part.shape.rank for part in found] == [2] * 2
        return found

    found = ranks([[1, 2], [3, 1]], [[2], [5]])
    assert found[0].numpy().tolist() == [[-1, 0], [-1, -1]]
    assert found[1].numpy().tolist() == [[False, True], [False, False]]
