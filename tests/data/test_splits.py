from datetime import timedelta

import numpy as np
import pytest
from refusal_checks import refused

from tfxc import data


def as_lists(sequences):
    return [sequence.tolist() for sequence in sequences]


def test_leave_last_out():
    sequences = data.Sequences.from_lists(["abcd", "ab", "a", "bca", ""], user_ids=[*"vwxyz"])
    split = data.leave_last_out(sequences)
    assert as_lists(split.train) == [[0, 1], [0, 1], [0], [1], []]
    assert as_lists(split.validation) == [[0, 1, 2], [1, 2]]
    assert as_lists(split.test) == [[0, 1, 2, 3], [1, 2, 0]]
    assert split.test.user_ids == ["v", "y"] and split.num_not_evaluated == 3
    assert split.test.vocabulary is sequences.vocabulary
    refused("3 items", data.leave_last_out, data.Sequences.from_lists(["ab", "a"]))


def test_ratio_split_deals_every_user_once():
    lists = [[f"i{u}", "x"] for u in range(97)] + [["lonely"], ["lonely"], []]
    sequences = data.Sequences.from_lists(lists, user_ids=[str(u) for u in range(100)])
    split = data.ratio_split(sequences, (0.7, 0.2, 0.1), seed=4)
    parts = [split.train.user_ids, split.validation.user_ids, split.test.user_ids]
    assert [len(part) for part in parts] == [68 + 3, 19, 10] and split.num_not_evaluated == 3
    assert sorted([user for part in parts for user in part], key=int) == sequences.user_ids
    for part in (split.train, split.validation, split.test):
        assert sorted(part.user_ids, key=int) == part.user_ids
        for u, user in enumerate(part.user_ids):
            assert part[u].tolist() == sequences[int(user)].tolist()
    assert data.ratio_split(sequences, (0.7, 0.2, 0.1), seed=4).test.user_ids == parts[2]
    assert data.ratio_split(sequences, (0.7, 0.2, 0.1), seed=5).test.user_ids != parts[2]


@pytest.mark.parametrize(
    "fractions",
    [(0.8, 0.2), (0.9, 0.1, 0.0), (0.5, 0.3, 0.3), (1.2, -0.1, -0.1), (np.nan, 0.1, 0.1), None, "abc", 0.8]
    + [{"train": 0.8, "validation": 0.1, "test": 0.1}],
)
def test_fractions_that_are_no_three_numbers(fractions):
    message = "fractions must be three positive numbers that sum to 1, not"
    refused(message, data.ratio_split, data.Sequences.from_lists(["ab"] * 50), fractions)


def test_bad_arguments_of_a_ratio_split():
    sequences = data.Sequences.from_lists(["ab"] * 50)
    assert len(data.ratio_split(sequences, seed=-1).test) == 5
    refused("seed must be an integer", data.ratio_split, sequences, seed=0.5)
    refused("3 sequences .* too few", data.ratio_split, data.Sequences.from_lists(["ab"] * 3))


def test_time_split_by_hand():
    items, times = [0, 1, 2, 3, 4, 0, 1, 2, 3, 5, 0], [1, 4, 5, 8, 9, 1, 2, 6, 9, 10, 3]
    names = ["all", "old", "late", "new", "validation only"]
    sequences = data.Sequences(items, [0, 5, 7, 9, 10, 11], data.Vocabulary("abcdef"), names, times)
    split = data.time_split(sequences, validation_start=5, test_start=8)
    assert as_lists(split.train) == [[0, 1], [0, 1], [0]]
    assert split.validation.user_ids == ["all"] and as_lists(split.validation) == [[0, 1, 2]]
    assert split.test.user_ids == ["all", "late"] and as_lists(split.test) == [[0, 1, 2, 3], [2, 3]]
    assert split.num_not_evaluated == 3
    assert split.train.times.max() < 5 and (split.validation.times < 8).all()


def test_time_split_bad_input():
    timed = data.Sequences([0, 0, 0], [0, 3], data.Vocabulary("a"), times=[1, 2, 3])
    refused("with times", data.time_split, data.Sequences.from_lists(["aaa"]), 1, 2)
    refused("must be before", data.time_split, timed, 2, 2)
    refused("training part would be empty: times run from 1.0 to 3.0", data.time_split, timed, 1, 2)
    refused("test part would be empty", data.time_split, timed, 2, 4)
    sessions = data.Sequences([0] * 6, [0, 2, 4, 6], data.Vocabulary("a"), times=[1, 2, 4, 5, 7, 8])
    refused("validation part would be empty: .*: split .* by ratio_split", data.time_split, sessions, 3, 6)


def test_times_in_milliseconds_are_told_of():
    times = [1704067200e3, 1704153600e3, 1705276800e3, 1705363200e3]
    log = data.Sequences([0, 1, 2, 0], [0, 4], data.Vocabulary("abc"), ["ann"], times=times)
    message = r"test at \d+\S* Numbers .* these times look like milliseconds since 1970: .*time_format=.ms"
    refused(message, data.time_split, log, "2024-01-10", "2024-01-15")
    log = data.Sequences([0, 1, 2, 0], [0, 4], data.Vocabulary("abc"), ["ann"], times=np.array(times) / 1000)
    assert len(data.time_split(log, "2024-01-10", "2024-01-15T12:00").train)
    refused(r"validation starts at 5\d* and the test at \d+\S*\.$", data.time_split, log, 5, 6)


def test_tail_split_keeps_every_item_once():
    sequences = data.Sequences.from_lists([range(101), range(7), "x"], user_ids=[*"abc"])
    split = data.tail_split(sequences, 0.1, 0.05)
    for u in range(3):
        joined = np.concatenate([split.train[u], split.validation[u], split.test[u]])
        assert joined.tolist() == sequences[u].tolist()
    assert split.validation.lengths.tolist() == [10, 0, 0] and split.test.lengths.tolist() == [5, 0, 0]
    assert split.num_not_evaluated == 2


def test_tail_split_rounds_down_what_is_no_whole_number_alone():
    sequences = data.Sequences.from_lists([range(100), range(700), range(99)])
    split = data.tail_split(sequences, 0.29, 0.57)
    assert split.validation.lengths.tolist() == [29, 203, 28] and split.test.lengths.tolist() == [57, 399, 56]
    assert data.tail_split(sequences, 1 / 3, 1 / 3).test.lengths.tolist() == [33, 233, 33]


def test_bad_fractions_of_a_tail_split():
    short = data.Sequences.from_lists([range(39)])
    for fractions in ((0, 0.1), (0.5, 0.5), (0.1, -0.1), (2**70, np.int64(2))):
        refused("sum to less than 1", data.tail_split, short, *fractions)
    refused("must be a number, but got 'a'", data.tail_split, short, "a")
    message = "validation part would be empty: 0.05 of 39 items, the longest"
    refused(message, data.tail_split, short, 0.05, 0.1)
    refused("test part would be empty: 0.05 of .* are fewer than 2", data.tail_split, short, 0.1, 0.05)
    refused("of 0 items", data.tail_split, data.Sequences.from_lists([]))
    assert len(data.tail_split(data.Sequences.from_lists([range(40)]), 0.05, 0.05).test[0]) == 2


SECONDS = np.array([0, 60, 1860, 1861, 9, 5000.0])


def log(times):
    columns = {"n": data.Column(np.arange(6))}
    return data.Sequences(
        [0, 1, 2, 0, 1, 2], [0, 0, 4, 6, 6], data.Vocabulary("abc"), [*"wxyz"], times, columns
    )


@pytest.mark.parametrize(
    "gap", ["30min", "1800 s", "0.5h", 1800, timedelta(minutes=30), np.timedelta64(30, "m")]
)
@pytest.mark.parametrize("kind", ["float", "datetime64[s]", "datetime64[ns]"])
def test_a_longer_silence_ends_a_session(gap, kind):
    times = SECONDS if kind == "float" else SECONDS.astype("datetime64[s]").astype(kind)
    sessions = data.split_sessions(log(times), gap)
    assert as_lists(sessions) == [[0, 1, 2, 0], [1], [2]]
    assert sessions.user_ids == ["x", "y", "y"] and sessions.columns["n"].values.tolist() == [*range(6)]
    assert [len(data.split_sessions(log(times), own)) for own in ("1799s", "1d")] == [4, 2]


@pytest.mark.parametrize(
    "gap",
    ["half an hour", "30", "", -1, float("nan"), 1e300, f"{10**30}d", True, None, np.timedelta64("NaT")]
    + [np.timedelta64(1, "M")],
)
def test_what_is_no_gap(gap):
    refused("gap must be a duration such as '30min', a timedelta or", data.split_sessions, log(SECONDS), gap)


def test_sessions_need_times_in_seconds():
    refused("needs sequences with times", data.split_sessions, log(None))
    with pytest.warns(UserWarning, match='these times look like milli.*time_format="ms"'):
        assert len(data.split_sessions(log(1.7e12 + 1000 * SECONDS))) == 5


def test_months_are_as_long_as_their_days():
    months = np.array(["2024-01", "2024-02", "2024-03"], "datetime64[M]")
    sequences = data.Sequences([0, 1, 2], [0, 3], data.Vocabulary("abc"), ["w"], months)
    assert as_lists(data.split_sessions(sequences, "30d")) == [[0], [1, 2]]
