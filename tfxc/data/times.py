"""Points in time: parsed from text, read from the columns of a table, and given by a user."""

import math
import numbers
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_EPOCH = np.datetime64(0, "us")
_LARGEST = 2**53  # beyond it, float64 does not hold every integer


class TimeColumn:
    """Converts the blocks of one column to times, and says which values are not times.

    Dates and timestamps become `datetime64` in their own unit, in UTC if they have a zone. Integers and
    floats are seconds, float64. Strings are either ISO 8601 dates, `datetime64[us]`, in UTC if they name no
    zone, or numbers of seconds. The first valid string decides which.

    Raises ValueError, with the column's name, for a column of another Arrow type.
    """

    def __init__(self, name: str, kind: pa.DataType):
        self._is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        is_date = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if not (self._is_text or is_date or is_number):
            raise ValueError(
                f"The column {name!r} of times is of type {kind}, expected timestamps, dates, ISO 8601 "
                "strings or numbers of seconds: convert it to one of these."
            )
        self._name = name
        self._is_seconds = is_number
        self._is_decided = not self._is_text

    def times(self, column: pa.ChunkedArray) -> tuple[np.ndarray, dict[int, str]]:
        """Returns the times [M] of a block, and by position the reasons why some values are not times."""
        if self._is_text:
            self._decide(column)
        values = self._from_text(column) if self._is_text else self._from_values(column)
        is_bad = ~np.isfinite(values)
        if not is_bad.any():
            return values, {}
        wanted = "a finite number" if self._is_seconds else "an ISO 8601 date"
        reasons = {}
        for position in np.flatnonzero(is_bad).tolist():
            value = column[position].as_py()
            is_null = value is None or value == ""
            reasons[position] = "the time is null" if is_null else f"the time {value!r} is not {wanted}"
        return values, reasons

    def _from_values(self, column) -> np.ndarray:
        if not self._is_seconds:
            return column.to_numpy()  # UTC, if the column has a zone
        if pa.types.is_integer(column.type):
            bounds = pc.min_max(column)
            for bound in (bounds["min"].as_py() or 0, bounds["max"].as_py() or 0):
                self._refuse_inexact(bound)
        return column.cast(pa.float64()).to_numpy()

    def _refuse_inexact(self, number: int):
        if abs(number) > _LARGEST:
            raise ValueError(
                f"The integers of the column {self._name!r} reach {number}, which is not exact as seconds. "
                'Convert them to a timestamp of their unit, such as astype("datetime64[ns]").'
            )

    def _decide(self, column):
        """Decides between numbers and dates by the first string that is either; "nan" and "inf" are not."""
        for chunk in [] if self._is_decided else column.chunks:
            for text in chunk:
                time = _parsed(text.as_py())
                is_number = isinstance(time, float)
                if time is not None and not (is_number and not math.isfinite(time)):
                    self._is_seconds, self._is_decided = is_number, True
                    return

    def _from_text(self, column) -> np.ndarray:
        if self._is_seconds:
            try:
                values = column.cast(pa.float64()).to_numpy()
            except pa.ArrowInvalid:
                values = np.array([_number(text) for text in column.to_pylist()], np.float64)
            for position in np.flatnonzero(np.abs(values) >= _LARGEST):
                self._refuse_inexact(_integer(column[int(position)].as_py()))
            return values
        for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
            try:
                return column.cast(kind).to_numpy()
            except pa.ArrowInvalid:
                continue
        dates = (_date(text) for text in column.to_pylist())
        return np.array([None if day is None else _utc(day) for day in dates], "datetime64[us]")


def seconds(text: str) -> float:
    """Returns the seconds since 1970 that a text means: a number, or an ISO 8601 date, in UTC by default.

    Raises ValueError for other text.
    """
    time = _parsed(text)
    if time is None:
        raise ValueError(f"the time {text!r} is neither a number nor an ISO 8601 date")
    if isinstance(time, datetime):
        return time.timestamp()
    if not math.isfinite(time):
        raise ValueError(f"the time {text!r} is not finite")
    if abs(time) >= _LARGEST and abs(_integer(text)) > _LARGEST:
        raise ValueError(f"the time {text!r} is not exact as seconds: divide it by its unit")
    return time


def point_in_time(point, times: np.ndarray):
    """Returns a point in time in a form that compares with an array of times, numbers or datetime64.

    The point is an ISO 8601 date as text, a `datetime`, `date` or `np.datetime64`, in UTC if it names no
    zone; or a number of seconds since 1970, or of the unit of the times if these are numbers. Raises
    ValueError for anything else.
    """
    instant: Any = point
    is_number = isinstance(point, numbers.Real) and not isinstance(point, bool | np.timedelta64)
    if is_number and math.isfinite(point):
        if times.dtype.kind != "M":
            return point
        if abs(point) * 1e6 < 2**63:  # a larger number may be in nanoseconds
            return _EPOCH + np.timedelta64(round(point * 1e6), "us")
    if isinstance(point, str):
        instant = _date(point)
    elif hasattr(point, "to_datetime64"):  # a Timestamp of pandas: UTC, in nanoseconds
        instant = point.to_datetime64()
    elif isinstance(point, date) and not isinstance(point, datetime):
        instant = datetime(point.year, point.month, point.day)
    if isinstance(instant, datetime):
        instant = _utc(instant)
    if not isinstance(instant, np.datetime64) or np.isnat(instant):
        raise ValueError(
            f"{point!r} is not a point in time: pass an ISO 8601 date such as '2024-05-01', a datetime, an "
            "np.datetime64, or a number of seconds."
        )
    return instant if times.dtype.kind == "M" else float((instant - _EPOCH) / np.timedelta64(1, "s"))


def _parsed(text: str | None) -> float | datetime | None:
    """Parses a time: a number of seconds, an ISO 8601 date with a zone, or None for other text."""
    number = _number(text)
    return _date(text) if number is None else number


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _integer(text: str) -> int:
    """Returns the integer that a text is, and 0 for a number with a fraction or an exponent."""
    try:
        return int(text)
    except ValueError:
        return 0


def _date(text: str | None) -> datetime | None:
    try:
        value = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def _utc(instant: datetime) -> np.datetime64:
    # Python's datetime ends at the years 1 and 9999. NumPy subtracts the zone's offset beyond them.
    offset = np.timedelta64(instant.utcoffset() or timedelta(0))
    return np.datetime64(instant.replace(tzinfo=None), "us") - offset
