"""Streams: every target once, in order, and rows that go on in the next batch."""

import numpy as np
import pytest

from tfxc.data import Sequences, stream_dataset


def sequences(*lengths):
    names = [str(i) for i in range(max(1, sum(lengths)))]
    starts = np.cumsum([0, *lengths])
    return Sequences.from_lists([names[a:b] for a, b in zip(starts, starts[1:], strict=False)])


def batches(*arguments):
    return [(items.numpy(), labels.numpy()) for items, labels in stream_dataset(*arguments)]


@pytest.mark.parametrize(
    ("lengths", "max_length", "batch_size"),
    [((100,), 7, 3), ((40, 33, 2), 5, 4), ((2,), 1, 1), ((2,), 6, 5), ((9,), 2, 4), ((7,), 1, 3)],
)
def test_every_item_but_the_first_is_a_target_once(lengths, max_length, batch_size):
    got = batches(sequences(*lengths), max_length, batch_size)
    assert len(got) == len(stream_dataset(sequences(*lengths), max_length, batch_size))
    rows = [np.concatenate([part[i] for part in got], 1) for i in (0, 1)]
    assert all(part.shape == (batch_size, max_length) for pair in got for part in pair)
    items, labels = (row.ravel()[row.ravel() >= least] for row, least in zip(rows, (1, 0), strict=True))
    total = sum(lengths)
    np.testing.assert_array_equal(items - 1, np.arange(total - 1))  # streams one after the other
    np.testing.assert_array_equal(labels, np.arange(1, total))
    np.testing.assert_array_equal(rows[0] == 0, rows[1] == -1)
    for row in rows[0]:  # padding stands at the end alone
        assert (row[np.count_nonzero(row) :] == 0).all()


def test_a_row_goes_on_in_the_next_batch():
    first, second = batches(sequences(41), 5, 4)
    np.testing.assert_array_equal(first[0][:, 0], [1, 11, 21, 31])
    np.testing.assert_array_equal(second[0][:, 0], first[0][:, -1] + 1)
    np.testing.assert_array_equal(first[1][:, -1] + 1, second[0][:, 0])


def test_the_dataset_repeats_in_the_same_order():
    dataset = stream_dataset(sequences(30), 4, 2)
    first, again = ([items.numpy() for items, _ in dataset] for _ in range(2))
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((sequences(5), 0, 2), "max_length must be an integer of at least 1, but got 0"),
        ((sequences(5), 2, 0), "batch_size must be an integer of at least 1, but got 0"),
        ((sequences(1), 2, 2), "needs 2 items"),
        ((sequences(0), 2, 2), "needs 2 items"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        stream_dataset(*arguments)
