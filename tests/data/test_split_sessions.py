from datetime import timedelta

import numpy as np
import pytest

from tfxc.data import Column, Sequences, Vocabulary, split_sessions

SECONDS = np.array([0, 60, 1860, 1861, 9, 5000.0])


def log(times):
    columns = {"n": Column(np.arange(6))}
    return Sequences([0, 1, 2, 0, 1, 2], [0, 0, 4, 6, 6], Vocabulary("abc"), [*"wxyz"], times, columns)


@pytest.mark.parametrize(
    "gap", ["30min", "1800 s", "0.5h", 1800, timedelta(minutes=30), np.timedelta64(30, "m")]
)
@pytest.mark.parametrize("kind", ["float", "datetime64[s]", "datetime64[ns]"])
def test_a_longer_silence_ends_a_session(gap, kind):
    times = SECONDS if kind == "float" else SECONDS.astype("datetime64[s]").astype(kind)
    sessions = split_sessions(log(times), gap)
    assert [own.tolist() for own in sessions] == [[0, 1, 2, 0], [1], [2]]
    assert sessions.user_ids == ["x", "y", "y"] and sessions.columns["n"].values.tolist() == [*range(6)]
    assert len(split_sessions(log(times), "1799s")) == 4 and len(split_sessions(log(times), "1d")) == 2


@pytest.mark.parametrize(
    "gap",
    ["half an hour", "30", "", -1, float("nan"), 1e300, f"{10**30}d", True, None, np.timedelta64("NaT")]
    + [np.timedelta64(1, "M")],
)
def test_what_is_no_gap(gap):
    with pytest.raises(ValueError, match="gap must be a duration such as '30min'"):
        split_sessions(log(SECONDS), gap)


def test_numbers_that_are_no_seconds_are_told():
    with pytest.warns(UserWarning, match='look like milliseconds since 1970.*time_format="ms"'):
        assert len(split_sessions(log(1.7e12 + 1000 * SECONDS))) == 5


def test_without_times():
    with pytest.raises(ValueError, match="needs sequences with times"):
        split_sessions(log(None))


def test_months_are_as_long_as_their_days():
    months = np.array(["2024-01", "2024-02", "2024-03"], "datetime64[M]")
    sequences = Sequences([0, 1, 2], [0, 3], Vocabulary("abc"), ["w"], months)
    assert [own.tolist() for own in split_sessions(sequences, "30d")] == [[0], [1, 2]]
