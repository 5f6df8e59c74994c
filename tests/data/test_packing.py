import numpy as np
import pytest

from tfxc.data.packing import packed_rows


def rows_of(lengths, max_length, seed=0):
    order, splits = packed_rows(np.asarray(lengths), max_length, seed)
    assert sorted(order.tolist()) == list(range(len(lengths))) and splits[-1] == len(lengths)
    return [order[start:stop].tolist() for start, stop in zip(splits, splits[1:], strict=False)]


def first_fit(lengths, max_length):
    rooms = []
    for length in sorted(lengths, reverse=True):
        fitting = next((row for row, room in enumerate(rooms) if room > length), None)
        if fitting is None:
            fitting = len(rooms)
            rooms.append(max_length + 1)
        rooms[fitting] -= length + 1
    return len(rooms)


@pytest.mark.parametrize("max_length", [1, 2, 7, 50])
def test_takes_the_rows_of_a_slow_first_fit(max_length):
    random = np.random.default_rng(max_length)
    for num_histories in (1, 2, 30, 300):
        lengths = np.minimum(random.geometric(0.2, num_histories), max_length)
        rows = rows_of(lengths, max_length)
        assert all(row and lengths[row].sum() + len(row) - 1 <= max_length for row in rows)
        assert len(rows) == first_fit(lengths.tolist(), max_length)


def test_the_seed_decides_which_histories_share_a_row():
    lengths = np.tile([1, 2, 3], 50)
    assert rows_of(lengths, 9) == rows_of(lengths, 9) != rows_of(lengths, 9, seed=1)
    assert rows_of(lengths, 9, seed=None)[0] == [2, 5, 0] and rows_of(lengths, 9, seed=-(2**63))
    with pytest.raises(ValueError, match="seed must be an integer"):
        rows_of(lengths, 9, seed=0.5)
