import numpy as np
import pytest

from tfxc.data.batching import row_batches


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


@pytest.mark.parametrize("batch_size", [0, -1, 2.5])
def test_a_batch_has_rows(batch_size):
    with pytest.raises(ValueError, match="batch_size must be"):
        row_batches(4, batch_size, lambda rows: rows)
    with pytest.raises(ValueError, match="num_rows must be"):
        row_batches(batch_size, 4, lambda rows: rows)


@pytest.mark.parametrize("seed", [1.5, 2**64, True])
def test_seeds_are_integers(seed):
    with pytest.raises(ValueError, match="seed must be an integer"):
        row_batches(4, 2, lambda rows: rows, seed)
