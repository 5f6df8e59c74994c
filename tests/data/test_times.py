import time
import zoneinfo
from datetime import UTC, date, datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from refusal_checks import refused

from tfxc.data.times import TimeColumn, point_in_time

MAY = datetime(2024, 5, 1, tzinfo=UTC)


def read(values, kind=None, form=None):
    column = pa.chunked_array([pa.array(values, kind)])
    return TimeColumn(("when",), [column.type], form).times(column)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Tokyo"])
def test_timestamps_keep_their_unit_and_become_utc(unit, zone):
    times, reasons = read([MAY, None], pa.timestamp(unit, zone))
    assert times.dtype == f"datetime64[{unit}]" and times[0] == np.datetime64("2024-05-01")
    assert reasons == {1: "the time is null"}


@pytest.mark.parametrize(("kind", "unit"), [(pa.date32(), "D"), (pa.date64(), "ms")])
def test_dates(kind, unit):
    times, _ = read([MAY], kind)
    assert times.dtype == f"datetime64[{unit}]" and times[0] == np.datetime64("2024-05-01")


def test_numbers_are_seconds():
    times, reasons = read([1.5, float("nan"), None, float("inf")])
    assert times[0] == 1.5 and times.dtype == np.float64
    assert reasons[1] == "the time nan is not a finite number" and reasons[2] == "the time is null"
    assert read([2**53 - 1, -5], pa.int64())[0].tolist() == [2.0**53 - 1, -5]
    refused(r"'when' reach \d+, .* pass time_format=.ns.", read, [10**18], pa.int64())
    refused("not exact", read, ["5", "9007199254740993"])
    assert read([5.0, float("inf")], pa.float32())[0][0] == 5
    rounded = [1714521600.0, float("inf"), None]
    refused("'when' reach 1714521600, which is not exact as float: read it as", read, rounded, pa.float32())


@pytest.mark.parametrize(
    "texts",
    [
        ["2024-05-01", "2024-05-01 00:00", "2024-05-01T00:00:00.000"],
        ["2024-05-01T00:00Z", "2024-05-01T02:00+02:00"],
        ["2024/05/01", "2024/5/1 0:00", "2024.05.01 00:00:00", "2024-5-1T0:00:00Z", "2024/5/1 2:00 +0200"],
        ["2024-05-01  00:00", f"2024-05-01{' ' * 100_000}02:00 +02 "],
        ["2024-05-01", "2024-05-01T00:00Z", "20240501T000000", " 2024-05-01 "],  # one by one
    ],
)
def test_iso_text(texts):
    times, reasons = read(texts)
    assert (times == np.datetime64("2024-05-01")).all() and times.dtype == "datetime64[us]" and not reasons
    assert read(["2024-05-01", "2024/05-01", "2024/13/01", "2024/5/123"])[1].keys() == {1, 2, 3}


def test_the_first_text_decides_between_dates_and_seconds():
    column = TimeColumn(("when",), [pa.string()])
    blocks = [["", None], ["7", "8.5"], ["2024-05-01", "9"]]
    results = [column.times(pa.chunked_array([block], pa.string())) for block in blocks]
    assert results[0][1] == {0: "the time is null", 1: "the time is null"}
    assert results[1][0].tolist() == [7, 8.5]
    assert results[2][1] == {0: "the time '2024-05-01' is not a finite number"} and results[2][0][1] == 9


def test_text_keeps_each_nanosecond_beside_what_is_no_number():
    whole = 1714521600_123456789
    for texts in ([f" {whole} "], [str(whole), "soon", "1.6"]):
        times, reasons = read(texts, form="ns")
        assert times[0] == np.datetime64(whole, "ns") and list(reasons) == [1][: len(texts) - 1]
    assert times[2] == np.datetime64(2, "ns")


def test_times_of_day_that_are_no_numbers_are_not_read_as_such(recwarn):
    days, clocks = (pa.chunked_array([texts]) for texts in (["2024-05-01"] * 2, ["093000Z", ""]))
    times, reasons = TimeColumn(("day", "clock"), [days.type, clocks.type]).times(days, clocks)
    assert times[0] == np.datetime64("2024-05-01T09:30") and list(reasons) == [1] and not recwarn.list


def test_numbers_that_are_no_dates_beside_some():
    times, reasons = read([20240501.0, 1.5, float("inf"), float("nan"), 1e300], form="%Y%m%d")
    assert times[0] == np.datetime64("2024-05-01") and [*reasons] == [1, 2, 3, 4]


@pytest.mark.parametrize("text", ["NaN", "inf", "-Infinity"])
def test_what_is_no_time_does_not_decide(text):
    times, reasons = read([text, "2024-05-01"])
    assert times.dtype == "datetime64[us]" and times[1] == np.datetime64("2024-05-01")
    assert list(reasons) == [0]


def test_other_types_and_forms_are_refused():
    refused("'when' of times is of type duration", TimeColumn, ("when",), [pa.duration("s")])
    refused(r"time_format must be a unit .* but got \['%d'\]", read, ["2024"], form=["%d"])


POINTS = [
    *("2024-05-01", "2024-05-01T02:00+02:00", date(2024, 5, 1), datetime(2024, 5, 1), MAY),
    *(MAY.astimezone(zoneinfo.ZoneInfo("Asia/Tokyo")), np.datetime64("2024-05-01")),
    *(kind(MAY.timestamp()) for kind in (float, int, np.int64)),
]


@pytest.mark.parametrize("point", POINTS)
def test_a_moment_in_any_form(point):
    assert point_in_time(point, np.array([], "datetime64[ms]")) == np.datetime64("2024-05-01")
    assert point_in_time(point, np.array([], float)) == MAY.timestamp()


@pytest.mark.parametrize("zone", ["", "+02:00"])
def test_a_timestamp_of_pandas_keeps_its_nanoseconds(zone):
    point = pd.Timestamp(f"2024-05-01T02:00:00.000000500{zone}")
    instant = np.datetime64("2024-05-01T00:00:00.000000500" if zone else "2024-05-01T02:00:00.000000500")
    assert point_in_time(point, np.array([], "datetime64[ns]")) == instant
    refused("is not a point in time", point_in_time, pd.NaT, np.array([], "datetime64[ns]"))


def test_times_at_the_ends_of_the_calendar():
    texts = ["9999-12-31T23:59:59-05:00", "0001-01-01T00:00:00+01:00", "2024-05-01"]
    times, reasons = read(texts)
    want = "10000-01-01T04:59:59", "0000-12-31T23:00:00", "2024-05-01T00:00:00"
    assert [str(time) for time in times] == [f"{time}.000000" for time in want]
    assert not reasons and point_in_time(texts[0], times) == times[0]


def test_zones_that_a_machine_knows_alone_are_no_times(monkeypatch):
    monkeypatch.setenv("TZ", "EST5EDT")
    time.tzset()
    texts = ["2024-05-01 10:00 EST", "2024-05-01 10:00 EDT", "2024-05-01 10:00 utc", "2024-05-01 10:00 GMT"]
    times, reasons = read(texts, form="%Y-%m-%d %H:%M %Z")
    assert list(reasons) == [0, 1] and (times[2:] == np.datetime64("2024-05-01T10:00")).all()
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("kind", ["D", "s", "us", "ns"])
@pytest.mark.parametrize("unit", ["D", "s", "us", "ns"])
def test_points_and_times_of_units_that_do_not_reach_as_far(kind, unit):
    days = ["1700-01-01", "1969-12-31", "2024-05-01", "2262-01-01"]
    texts, points = (days if own == "ns" else ["0001-01-01", *days, "9999-12-31"] for own in (kind, unit))
    times = np.array(texts, f"datetime64[{kind}]")
    for day in points:
        point = np.datetime64(day, unit)
        assert (times < point_in_time(point, times)).tolist() == [text < day for text in texts]
        assert (times < point_in_time(point + 1, times)).tolist() == [text <= day for text in texts]


@pytest.mark.parametrize("point", ["soon", "", None, True, float("nan"), np.datetime64("NaT"), [1], 10**18])
def test_what_is_no_point_in_time(point):
    times = np.array([], "datetime64[us]")
    refused("is not a point in time.*a number of seconds", point_in_time, point, times)
