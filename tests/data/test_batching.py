"""Batches of rows, in order and shuffled."""

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


def test_each_epoch_its_own_order_and_the_seed_decides():
    first, again, other = (row_batches(50, 7, lambda rows: rows, seed) for seed in (1, 1, 2))
    orders = [rows_of(first), rows_of(first)]
    assert orders[0] != orders[1] and rows_of(again) == orders[0] and rows_of(other) != orders[0]
    assert rows_of(row_batches(4, 4, lambda rows: rows)) == [[0, 1, 2, 3]]
