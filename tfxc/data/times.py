"""Points in time: from the columns of a table, from text, and as a user names one."""

import math
import numbers
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_EPOCH = np.datetime64(0, "us")
_LARGEST = 2**53  # beyond it not every integer is a float64


class TimeColumn:
    """Turns the blocks of one column into times, and says which values are none.

    Dates and timestamps become `datetime64` in their own unit, those with a zone in UTC. Integers and floats
    are seconds, float64. Strings are ISO 8601 dates, `datetime64[us]`, UTC where they name no zone, or
    numbers of seconds; the first of them decides which.

    Args:
        name: of the column, for messages.
        kind: its Arrow type.

    Raises:
        ValueError: for a column of another type.

    Example:
        >>> column = TimeColumn("when", pa.string())
        >>> times, reasons = column.times(pa.chunked_array([["2024-05-01T02:00+02:00", "soon"]]))
        >>> print(times, reasons)
        ['2024-05-01T00:00:00.000000' 'NaT'] {1: "the time 'soon' is not an ISO 8601 date"}
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
        """The times [M] of a block, and why some of them are no times, by position."""
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
            return column.to_numpy()  # of a zone: its UTC
        if pa.types.is_integer(column.type):
            bounds = pc.min_max(column)
            for bound in (bounds["min"].as_py() or 0, bounds["max"].as_py() or 0):
                self._refuse_inexact(bound)
        return column.cast(pa.float64()).to_numpy()

    def _refuse_inexact(self, number: int):
        if abs(number) > _LARGEST:
            raise ValueError(
                f"The integers of the column {self._name!r} reach {number}: as seconds they are not exact. "
                'Convert them to a timestamp of their unit, such as astype("datetime64[ns]").'
            )

    def _decide(self, column):
        """Numbers or dates, by the first string that is one of them; "nan" and "inf" are neither."""
        for chunk in [] if self._is_decided else column.chunks:
            for text in chunk:
                number = _number(text.as_py())
                is_number = number is not None and math.isfinite(number)
                if is_number or _date(text.as_py()) is not None:
                    self._is_seconds = is_number
                    self._is_decided = True
                    return

    def _from_text(self, column) -> np.ndarray:
        if self._is_seconds:
            try:
                values = column.cast(pa.float64()).to_numpy()
            except pa.ArrowInvalid:
                values = np.array([_number(text) for text in column.to_pylist()], np.float64)
            for position in np.flatnonzero(np.abs(values) >= _LARGEST):
                text = column[int(position)].as_py()
                if _is_integer(text):
                    self._refuse_inexact(int(text))
            return values
        for kind in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
            try:
                return column.cast(kind).to_numpy()
            except pa.ArrowInvalid:
                continue
        dates = (_date(text) for text in column.to_pylist())
        return np.array([None if day is None else _utc(day) for day in dates], "datetime64[us]")


def seconds(text: str) -> float:
    """Seconds since 1970 of a text: a number of them, or an ISO 8601 date (UTC where it names no zone).

    Raises:
        ValueError: for other text.

    Example:
        >>> seconds("1970-01-02"), seconds("7.5")
        (86400.0, 7.5)
    """
    value = _number(text)
    if value is None:
        day = _date(text)
        if day is None:
            raise ValueError(f"the time {text!r} is neither a number nor an ISO 8601 date")
        return day.timestamp()
    if not math.isfinite(value):
        raise ValueError(f"the time {text!r} is not finite")
    if abs(value) >= _LARGEST and _is_integer(text) and abs(int(text)) > _LARGEST:
        raise ValueError(f"the time {text!r} is not exact as seconds: divide it by its unit")
    return value


def moment(point, times: np.ndarray):
    """A point in time in the terms of an array of times, to compare them with.

    Args:
        point: an ISO 8601 date as text, a `datetime`, `date` or `np.datetime64` (UTC where it names no zone),
            or a number of seconds since 1970 (of the unit of the times, if these are numbers).
        times: numbers or datetime64.

    Raises:
        ValueError: for anything else.

    Example:
        >>> moment("2024-05-01", np.array(["2024-01-01"], "datetime64[D]"))
        np.datetime64('2024-05-01T00:00:00.000000')
        >>> moment("1970-01-02", np.array([5.0]))
        86400.0
    """
    instant: Any
    is_number = isinstance(point, numbers.Real) and not isinstance(point, bool | np.timedelta64)
    if is_number and math.isfinite(point):
        if times.dtype.kind != "M":
            return point
        if abs(point) * 1e6 < 2**63:  # else it may be nanoseconds
            return _EPOCH + np.timedelta64(round(point * 1e6), "us")
    instant = point
    if isinstance(point, str):
        instant = _date(point)
    elif hasattr(point, "to_datetime64"):  # of pandas, in UTC, to the nanosecond
        instant = point.to_datetime64()
    elif isinstance(point, date) and not isinstance(point, datetime):
        instant = datetime(point.year, point.month, point.day)
    if isinstance(instant, datetime):
        instant = _utc(instant)
    if not isinstance(instant, np.datetime64) or np.isnat(instant):
        raise ValueError(
            f"{point!r} is no point in time: give an ISO 8601 date such as '2024-05-01', a datetime, an "
            "np.datetime64, or a number of seconds."
        )
    return instant if times.dtype.kind == "M" else float((instant - _EPOCH) / np.timedelta64(1, "s"))


def _utc(instant: datetime) -> np.datetime64:
    # A datetime ends with the years 1 and 9999: near to them, another zone's would not go into UTC.
    offset = np.timedelta64(instant.utcoffset() or timedelta(0))
    return np.datetime64(instant.replace(tzinfo=None), "us") - offset


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _is_integer(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True


def _date(text: str | None) -> datetime | None:
    try:
        value = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return value if value.tzinfo else value.replace(tzinfo=UTC)
