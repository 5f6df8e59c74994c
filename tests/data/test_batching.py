import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
from refusal_checks import refused

from tfxc.data import LabeledPoints, classification_dataset, row_batches, with_example_ids


def rows_of(dataset):
    batches = [batch.numpy().tolist() for batch in dataset]
    assert len(batches) == int(dataset.cardinality())
    return batches


@pytest.mark.parametrize(("num_rows", "batch_size"), [(1, 1), (5, 2), (6, 3), (3, 10)])
@pytest.mark.parametrize("seed", [None, 3])
def test_every_row_once_an_epoch(num_rows, batch_size, seed):
    dataset = row_batches(num_rows, batch_size, lambda rows: rows, seed)
    for _ in range(2):
        batches = rows_of(dataset)
        assert sorted(sum(batches, [])) == list(range(num_rows))
        assert [len(batch) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    assert not dataset.options().autotune.enabled  # else fit would end late


def test_each_epoch_its_own_order_and_the_seed_decides():
    first, again, other = (row_batches(50, 7, lambda rows: rows, seed) for seed in (1, 1, 2))
    orders = [rows_of(first), rows_of(first)]
    assert orders[0] != orders[1] and rows_of(again) == orders[0] and rows_of(other) != orders[0]
    assert rows_of(row_batches(4, 4, lambda rows: rows)) == [[0, 1, 2, 3]]


@pytest.mark.long
def test_rows_that_share_a_batch_share_the_next_epochs_by_chance_alone():
    num_rows, batch_size = 1 << 18, 64
    dataset = row_batches(num_rows, num_rows, lambda rows: rows, seed=0)
    batch_of_row = np.empty([2, num_rows], np.int64)
    for epoch in range(2):
        batch_of_row[epoch, next(iter(dataset))] = np.arange(num_rows) // batch_size
    together = np.unique(batch_of_row, axis=1, return_counts=True)[1]
    num_pairs = (together * (together - 1) // 2).sum()
    by_chance = num_rows * (batch_size - 1) / 2 * (batch_size - 1) / (num_rows - 1)
    assert abs(num_pairs - by_chance) < 5 * by_chance**0.5


@pytest.mark.long
def test_seeds_and_epochs_that_are_far_apart_have_orders_of_their_own():
    orders = []
    for seed in (0, 256, 2**16, 2**40, -(2**63)):
        dataset = row_batches(50, 50, lambda rows: rows, seed)
        for epoch in (0, 256, 2**32):
            dataset.epoch_order.next = epoch
            orders += rows_of(dataset)
    assert len(set(map(tuple, orders))) == 15


@pytest.mark.parametrize("bad", [0, -1, 2.5])
def test_bad_arguments(bad):
    refused("batch_size must be", row_batches, 4, bad, lambda rows: rows)
    refused("num_rows must be", row_batches, bad, 4, lambda rows: rows)
    for seed in (1.5, 2**64, True):
        refused("seed must be an integer", row_batches, 4, 2, lambda rows: rows, seed)


def test_arrays_of_examples_are_numbered():
    assert with_example_ids(np.zeros([3, 2]))["inputs"].shape == (3, 2)
    numbered = with_example_ids({"a": np.zeros([4, 2]), "b": np.ones(4)})
    assert set(numbered) == {"a", "b", "example_ids"} and numbered["example_ids"].tolist() == [0, 1, 2, 3]
    assert with_example_ids([[1.0, 2.0], [3.0, 4.0]])["example_ids"].tolist() == [0, 1]  # lists, too
    ragged, matrix = tf.ragged.constant([[1], [], [2, 3]]), scipy.sparse.csr_matrix(np.eye(3))
    assert with_example_ids({"words": ragged, "tags": matrix})["example_ids"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("weights", [(), (np.arange(20.0),)])
def test_a_dataset_keeps_ids_through_shuffles(weights):
    values = np.arange(20) * 10
    examples = tf.data.Dataset.from_tensor_slices(({"x": values}, values, *weights))
    dataset = with_example_ids(examples).shuffle(20, seed=1).batch(6)
    for _ in range(2):
        batches = list(dataset)
        ids = np.concatenate([batch[0]["example_ids"] for batch in batches])
        assert sorted(ids) == list(range(20)) and list(ids) != list(range(20))
        np.testing.assert_array_equal(np.concatenate([batch[0]["x"] for batch in batches]), ids * 10)
        np.testing.assert_array_equal(np.concatenate([batch[1] for batch in batches]), ids * 10)
    assert len(batches[0]) == 2 + len(weights)


def test_classification_points_are_numbered_by_row():
    points = LabeledPoints(scipy.sparse.diags(np.arange(1.0, 8.0)), scipy.sparse.eye(7))
    inputs, labels = next(iter(classification_dataset(points, 7, seed=3, example_ids=True)))
    ids = inputs["example_ids"].numpy()
    assert sorted(ids) == list(range(7)) and ids.tolist() != list(range(7))
    np.testing.assert_array_equal(labels[:, 0], ids)
    np.testing.assert_array_equal(inputs["values"][:, 0], ids + 1.0)
    assert "example_ids" not in next(iter(classification_dataset(points, 7)))[0]


def test_what_cannot_be_numbered_is_refused():
    examples = tf.data.Dataset.from_tensor_slices((np.zeros([4, 2]), np.zeros(4)))
    options = tf.data.Options()
    options.deterministic = False
    mapped = examples.map(lambda *example: example, num_parallel_calls=2, deterministic=False)
    for later in (examples.shuffle(4).batch(2), examples.repeat(), mapped, examples.with_options(options)):
        refused("deterministic=False, .*: call with_example_ids first", with_example_ids, later)
    pipeline = row_batches(4, 2, lambda rows: (rows, rows), seed=0)
    refused("make it with seed=None", with_example_ids, pipeline.unbatch())
    for wrong, shapes in (({"a": np.zeros(3), "b": np.zeros(4)}, r"\(3,\), \(4,\)"), (None, r"\(\)")):
        refused(rf"arrays of one length N, but have the shapes \[{shapes}\]", with_example_ids, wrong)
    refused("already have 'example_ids'", with_example_ids, with_example_ids(np.zeros(3)))
    refused(r"must be \(x, y\) or .*, not TensorSpec", with_example_ids, tf.data.Dataset.range(3))
