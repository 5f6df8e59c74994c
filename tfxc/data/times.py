"""Points in time: parsed from text, read from the columns of a table, and given by a user."""

import contextlib
import math
import numbers
import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfxc.data.line_reader import num_line_ends
from tfxc.data.name_encoder import holds_text, line_break
from tfxc.data.table import without_categories
from tfxc.data.warn import warn

UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_MICROSECONDS = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}
_EPOCH = np.datetime64(0, "us")
_LARGEST_NARROW = {pa.float16(): 2**11, pa.float32(): 2**24}  # beyond it they lack integers
_LATEST_SECOND = 1e11  # in the year 5138: larger numbers are not seconds
_NUM_SAMPLED = 1000
_TEXT = pa.large_string()
_NO_TEXTS = pa.array([], _TEXT)
_UTC = r"(?i)\s*(?:[+-]00:?00\s*)?(?:UTC|GMT|Z)$"
_ISO = "an ISO 8601 date; pass time_format for other dates"
_BLANKS_BEFORE_OFFSET = r"\s+([+-]\d\d(?::?\d\d)?)$"
_YEAR_FIRST = re.compile(r"^(\d{4})([-/.])(\d\d?)\2(\d\d?)(?!\d)")
_ONE_DIGIT_HOUR = re.compile(r"(?<=^.{10}[ T])(?=\d:)")
_LEAP_SECOND = re.compile(r"(?<=\d\d:\d\d:)60")


class TimeColumn:
    """Converts the blocks of one column to times, and says which values are not times.

    Dates and timestamps become `datetime64` in their own unit, in UTC if they have a zone. Integers, floats
    and decimals are seconds, float64. Strings are either ISO 8601 dates, `datetime64[us]`, in UTC if they
    name no zone, or numbers of seconds. The first valid string decides which; if most of the first ones are
    of eight digits that make a date, they are dates. Two columns, a day and a time of day, become one time.

    Args:
        names, kinds: the column, or the two columns, and their Arrow types.
        form: None, the unit of numbers (`"s"`, `"ms"`, `"us"` or `"ns"`, since 1970 or of the day), which
            then become `datetime64`, or a form of dates for `datetime.strptime`.
        missing: what else than nothing spells a missing time.
        in_text: whether they come from a text file, where a quote that is not closed may give line breaks.
    """

    def __init__(self, names: tuple, kinds: list, form=None, missing=_NO_TEXTS, in_text=False):
        self._form = form if isinstance(form, str) and "%" in form else None  # of dates
        self._unit = None if self._form else form
        if self._unit is not None and self._unit not in tuple(UNITS):
            raise ValueError(
                f"time_format must be a unit of numbers among {tuple(UNITS)} or a form of dates such as "
                f"'%d/%m/%Y %H:%M', but got {form!r}."
            )
        kinds = [without_categories(kind) for kind in kinds]
        kinds = [_TEXT if pa.types.is_null(kind) or holds_text(kind) else kind for kind in kinds]
        for number, (name, kind) in enumerate(zip(names, kinds, strict=True)):
            is_clock = number == 1 and pa.types.is_time(kind)
            if not (kind == _TEXT or _is_date(kind) or _is_number(kind) or is_clock):
                raise ValueError(
                    f"The column {name!r} of times is of type {kind}, expected timestamps, dates, ISO 8601 "
                    "strings or numbers of seconds: convert it to one of these."
                )
        self._name, self._kinds, self._missing, self._in_text = " ".join(names), kinds, missing, in_text
        are_dates = self._form is not None or len(kinds) == 2
        self._is_text = len(kinds) == 2 or kinds[0] == _TEXT or (are_dates and _is_number(kinds[0]))
        self._is_seconds = not self._is_text and _is_number(kinds[0])
        self._is_decided = are_dates or not (self._is_text or self._is_seconds)

    def times(self, *columns: pa.ChunkedArray) -> tuple[np.ndarray, dict[int, str | None]]:
        """Returns the times [M] of a block, and by position why some are none: None if spelled as missing."""
        own = [column.cast(kind) for column, kind in zip(columns, self._kinds, strict=True)]
        is_missing = np.zeros(len(own[0]), bool)
        for number, column in enumerate(own if len(self._missing) else []):
            found = pc.is_in(pc.utf8_trim_whitespace(column.cast(_TEXT)), self._missing)
            own[number] = pc.if_else(found, None, column)
            is_missing |= found.to_numpy()
        column = self._joined(*own) if len(own) == 2 else own[0]
        if self._is_text and _is_number(column.type):
            values = _numbers(column)
            is_whole = pc.and_(pc.less(pc.abs(values), 2.0**63), pc.equal(pc.round(values), values))
            column = pc.if_else(is_whole, column, None).cast(pa.int64()).cast(_TEXT)
        if column.type in _LARGEST_NARROW:
            remedy = f"{column.type}: read it as float64 or as integers"
            self._refuse_rounded(column.to_numpy(), _LARGEST_NARROW[column.type], remedy)
        if not self._is_decided:
            self._decide(column)
        if not self._is_seconds:
            values = self._dates(column) if self._is_text else column.to_numpy()  # UTC, if it has a zone
        else:
            values = _of_unit(column, self._unit) if self._unit not in (None, "s") else self._seconds(column)
        is_bad = ~np.isfinite(values)
        reasons: dict[int, str | None] = dict.fromkeys(np.flatnonzero(is_missing).tolist())
        wanted = f"of the form {self._form!r}" if self._form else _ISO
        wanted = "a finite number" if self._is_seconds else wanted
        for position in np.flatnonzero(is_bad & ~is_missing).tolist():
            parts = [column[position].as_py() for column in own]
            is_null = any(part is None or not str(part).strip() for part in parts)
            value = parts[0] if len(parts) == 1 else " ".join(map(str, parts))
            reasons[position] = "the time is null" if is_null else f"the time {value!r} is not {wanted}"
            if self._in_text and num_line_ends(str(value)):
                reasons[position] = f"the time {line_break(value)}"
        return values, reasons

    def _joined(self, days, clocks) -> pa.ChunkedArray:
        """Returns days and times of day as one text a row."""
        days, clocks = (
            pc.if_else(pc.equal(pc.utf8_trim_whitespace(own), ""), None, own) if own.type == _TEXT else own
            for own in (days, clocks)
        )
        may_be_numbers = clocks.type == _TEXT and not pc.any(pc.match_substring(clocks, ":")).as_py()
        if self._form is None and (may_be_numbers or _is_number(clocks.type)):
            numbers = _numbers(clocks)
            clocks = self._clocks(numbers) if numbers.null_count < len(numbers) else clocks
        if _is_date(days.type):
            days = days.cast(pa.date32())
        return pc.binary_join_element_wise(days.cast(_TEXT), clocks.cast(_TEXT), pa.scalar(" ", _TEXT))

    def _clocks(self, numbers) -> pa.Array:
        """Returns numbers of a unit as times of day, null for other numbers."""
        if self._unit is None:
            self._unit = "ms"
            warn(
                f"The times of day in {self._name!r} are numbers, and are read as milliseconds: pass "
                'time_format="ms", or another unit.'
            )
        micros = pc.multiply(numbers, _MICROSECONDS[self._unit])
        is_good = pc.and_(pc.greater_equal(micros, 0), pc.less(micros, 86_400_000_000))
        return pc.if_else(is_good, pc.trunc(micros), None).cast(pa.int64()).cast(pa.time64("us"))

    def _decide(self, column):
        """Decides by the first values whether they are seconds or dates; "nan" and "inf" are neither."""
        sample = pc.drop_null(column)[:_NUM_SAMPLED].to_pylist()
        digits = [str(value).strip().removesuffix(".0") for value in sample if str(value).strip()]
        dates = list(filter(_is_written_date, digits))  # others may stand for a missing one, such as 00000000
        if self._unit is None and 2 * len(dates) > len(digits):
            if not self._is_text or len(dates[0]) != 8:
                form = "%Y%m%d%H%M%S%f"[: len(dates[0]) - 2]
                raise ValueError(
                    f"The numbers of the column {self._name!r}, such as {dates[0]}, look like dates: pass "
                    f'time_format="{form}", or time_format="s" if they are seconds.'
                )
            self._is_decided = True
        elif self._is_seconds:
            self._is_decided = bool(digits)
        else:
            for text in (own.as_py() for own in column):
                number = _number(text)
                if math.isfinite(number) if number is not None else _date(text) is not None:
                    self._is_seconds, self._is_decided = number is not None, True
                    return

    def _seconds(self, column) -> np.ndarray:
        """Returns numbers of seconds, NaN for null and for text that is none."""
        values = _numbers(column).to_numpy(zero_copy_only=False)
        remedy = f'they look like {UNITS["ns"]} since 1970, pass time_format="ns" or their unit'
        self._refuse_rounded(values, 2**53, f"seconds: {remedy}")
        return values

    def _refuse_rounded(self, values, exact, told):
        """Raises ValueError for numbers so large that several times are the same one."""
        largest = np.max(np.abs(values), where=np.isfinite(values), initial=0)
        if largest >= exact:
            reach = f"The numbers of the column {self._name!r} reach {largest:.0f}"
            raise ValueError(f"{reach}, which is not exact as {told}.")

    def _dates(self, column) -> np.ndarray:
        if self._form is not None:
            return _mapped(column, lambda text: _checked(text, datetime.strptime, self._form))
        for zone in (None, "UTC"):
            with contextlib.suppress(pa.ArrowInvalid):
                return column.cast(pa.timestamp("us", zone)).to_numpy()
        return _mapped(column, _date)


def unit_of(times: np.ndarray) -> str | None:
    """Returns the unit, of `UNITS`, that numbers of times seem to have, or None if they may be seconds."""
    if times.dtype.kind == "M" or not len(times):
        return None
    largest = max(float(np.max(times)), -float(np.min(times)))
    if largest <= _LATEST_SECOND:
        return None
    units = (unit for unit in ("ms", "us") if largest <= _LATEST_SECOND * 1e6 / _MICROSECONDS[unit])
    return next(units, "ns")


def point_in_time(point, times: np.ndarray):
    """Returns a point in time, as `time_split` takes it, in a form that compares with an array of times."""
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
    if isinstance(instant, date):
        instant = _utc(instant) if isinstance(instant, datetime) else np.datetime64(instant)
    if not isinstance(instant, np.datetime64) or np.isnat(instant):
        raise ValueError(
            f"{point!r} is not a point in time: pass an ISO 8601 date such as '2024-05-01', a datetime, an "
            "np.datetime64, or a number of seconds."
        )
    if times.dtype.kind != "M":
        return float((instant - _EPOCH) / np.timedelta64(1, "s"))
    return _ceiled(instant, times.dtype.newbyteorder("="))


def _ceiled(instant: np.datetime64, kind: np.dtype):
    """Returns the first instant of a type that is not before another. A comparison in NumPy may overflow."""
    if np.promote_types(kind, instant.dtype) != kind:
        own = instant.astype(kind)
        return own + int(own < instant)
    limit = np.int64(2**63 - 1).view(kind).astype(instant.dtype).view(np.int64)
    return np.clip(instant.view(np.int64), -limit, limit).view(instant.dtype).astype(kind)


def _is_date(kind) -> bool:
    return pa.types.is_timestamp(kind) or pa.types.is_date(kind)


def _is_number(kind) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _of_unit(column, unit: str) -> np.ndarray:
    """Returns numbers, or text that holds some, as `datetime64` of the unit; NaT for what is none."""
    column = pc.utf8_trim_whitespace(column) if column.type == _TEXT else column
    try:
        whole = column.cast(pa.int64())
    except pa.ArrowInvalid:
        values = _numbers(column)
        is_good = pc.less(pc.abs(values), 2.0**63)
        whole = pc.if_else(is_good, pc.round(values), None).cast(pa.int64())
        if column.type == _TEXT:  # float64 does not hold every integer
            is_whole = pc.and_(is_good, pc.match_substring_regex(column, r"^-?\d+$"))
            whole = pc.coalesce(pc.if_else(is_whole, column, None).cast(pa.int64()), whole)
    return whole.cast(pa.timestamp(unit)).to_numpy(zero_copy_only=False)


def _numbers(column) -> pa.ChunkedArray | pa.Array:
    """Returns numbers, or text that holds some, as float64, null for what is none."""
    if column.type != _TEXT:
        return column.cast(pa.float64(), safe=False)
    try:
        return pc.utf8_trim_whitespace(column).cast(pa.float64())
    except pa.ArrowInvalid:
        return pa.chunked_array([pa.array(map(_number, column.to_pylist()), pa.float64())])


def _mapped(column, parse) -> np.ndarray:
    """Returns the dates that a function makes of the distinct texts; NaT where it returns None."""
    texts = pc.unique(column)
    dates = (parse(text) for text in texts.to_pylist())
    instants = np.array([None if day is None else _utc(day) for day in dates], "datetime64[us]")
    return instants[pc.index_in(column, value_set=texts).to_numpy()]


def _is_written_date(digits: str) -> bool:
    """Whether digits are a year from 1900 to 2100, a month, and perhaps a day and a time of day."""
    is_as_long = len(digits) in (6, 8, 10, 12, 14, 17)
    if not is_as_long or not digits.isdecimal() or not 1900 <= int(digits[:4]) <= 2100:
        return False
    return _date(f"{(digits + '01')[:8]}T{digits[8:14]}".rstrip("T")) is not None


def _number(text: str | None) -> float | None:
    try:
        return None if text is None or "_" in text else float(text)  # Python reads 1_000, too
    except ValueError:
        return None


def _date(text: str | None) -> datetime | None:
    text = " ".join((text or "").split())  # patterns take long over many blanks
    text = _YEAR_FIRST.sub(lambda day: f"{day[1]}-{day[3]:0>2}-{day[4]:0>2}", text)
    text = _ONE_DIGIT_HOUR.sub("0", text)
    text = re.sub(_BLANKS_BEFORE_OFFSET, r"\1", re.sub(_UTC, "+00:00", text))
    return _checked(text, datetime.fromisoformat)


def _checked(text: str | None, parse, *form) -> datetime | None:
    """Returns a date with its zone, or None if it is none. A leap second is the second after it."""
    text = (text or "").strip()
    whole = _LEAP_SECOND.sub("59", text)
    try:
        value = parse(whole, *form) + timedelta(seconds=whole != text)
    except (ValueError, OverflowError):
        return None
    if value.tzinfo is None and "%Z" in str(form) and not re.search("(?i)UTC|GMT", text):
        return None  # a zone that Python knows on this machine alone, such as EST, and leaves out
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def _utc(instant: datetime) -> np.datetime64:
    # Python's datetime ends at the years 1 and 9999. NumPy subtracts the zone's offset beyond them.
    offset = np.timedelta64(instant.utcoffset() or timedelta(0))
    return np.datetime64(instant.replace(tzinfo=None), "us") - offset
