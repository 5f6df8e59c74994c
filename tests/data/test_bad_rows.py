import warnings

import pytest

from tfxc.data.bad_rows import BadRows


def test_the_first_are_shown_in_whatever_order_they_come():
    bad = BadRows("log.csv", "row")
    for row in (*range(1, 12), 0):
        bad.reject(row, "why")
    message = r"(?s)12 bad of 12 rows, counted from 0\n  row 0: why\n  row 1: .*row 9: why\n  \.\.\.\n"
    with pytest.raises(ValueError, match=message):
        bad.report(12)


def test_skipping_warns_once_and_nothing_bad_says_nothing():
    bad = BadRows("x", "row", "skip")
    with warnings.catch_warnings(record=True, action="always") as caught:
        bad.report(5)
        bad.reject(1, "why")
        bad.report(5)
    assert [str(one.message) for one in caught] == [
        "x: 1 bad of 5 rows, counted from 0\n  row 1: why\nThese rows were left out."
    ]


def test_unknown_on_error():
    with pytest.raises(ValueError, match="on_error must be one of .'raise', 'skip'., but got 'ignore'"):
        BadRows("x", "row", "ignore")
