"""A table as one stream of Arrow batches, whatever it came from, and its rows that cannot be used."""

import bisect
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tfxc.arguments import one_of
from tfxc.data.files import DAMAGED
from tfxc.data.warn import warn

ROWS_PER_BATCH = 1 << 17
_NUM_REPORTED = 10
_PLAIN = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


@dataclass(frozen=True)
class Table:
    """Some columns of a table, to be read once, batch by batch."""

    name: str  # in messages
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    num_rows: int | None = None  # None if it is not known before reading
    # Numbers, from 0, of the rows of a text file that the parser left out so far: it grows meanwhile.
    skipped: list[int] = field(default_factory=list)
    first: int = 0  # the number of the first row, in messages
    is_text: bool = False  # in text, an unclosed quote swallows rows, and blanks around names do not count
    has_bar: bool = True  # whether whoever reads a long table shows its progress

    def rows(self, positions: np.ndarray) -> np.ndarray:
        """Returns the numbers of rows in the table for positions in the batches."""
        known = np.array(self.skipped, np.int64)  # a copy: later rows may be skipped meanwhile
        before = np.searchsorted(known - np.arange(len(known)), positions, side="right")
        return self.first + positions + before


class BadRows:
    """Counts bad rows, keeps the first ten with their reasons, and at the end raises or warns about them."""

    def __init__(self, source, unit: str, on_error: str = "raise"):
        self.source, self.unit = source, unit  # of messages, such as a path and "line"
        self.on_error = one_of(on_error, "on_error", ("raise", "skip"))
        self.number = 0
        self.hint = ""  # what may be the reason of many, at the end of the message
        self._reasons: list[tuple[int, str]] = []
        self._lock = threading.Lock()

    def reject(self, row: int, reason):
        """Counts a row as bad. Rows may come in any order and from several threads."""
        with self._lock:
            self.number += 1
            bisect.insort(self._reasons, (row, str(reason)))
            del self._reasons[_NUM_REPORTED:]

    def report(self, num_rows: int):
        """Raises a ValueError about the bad rows, or warns once if they are to be skipped."""
        if not self.number:
            return
        shown = [f"  {self.unit} {row}: {reason}" for row, reason in self._reasons]
        shown += ["  ..."] if self.number > _NUM_REPORTED else []
        counted = ", counted from 0" if self.unit == "row" else ""
        first = f"{self.source}: {self.number} bad of {num_rows} {self.unit}s{counted}"
        message = "\n".join([first, *shown]) + self.hint
        if self.on_error == "raise":
            raise ValueError(message + '\nCorrect them, or pass on_error="skip" to leave them out.')
        warn(message + f"\nThese {self.unit}s were left out.")


def plain_schema(given: pa.Schema, columns: list[str]) -> pa.Schema:
    """Returns the schema of some columns, without types that few functions of Arrow accept."""
    return pa.schema([(name, _plain(given.field(name).type)) for name in columns])


def _plain(kind: pa.DataType) -> pa.DataType:
    own = without_categories(kind)
    is_narrow = pa.types.is_decimal(own) and own.bit_width < 128
    return pa.decimal128(38, own.scale) if is_narrow else _PLAIN.get(own, kind)


def without_categories(kind: pa.DataType) -> pa.DataType:
    """Returns the type of the values of a column, which may be categories."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def converted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns a batch with the types of a schema; ValueError if a value does not fit."""
    arrays = []
    for array, name, kind in zip(batch.columns, schema.names, schema.types, strict=True):
        if array.type != kind and pa.types.is_dictionary(array.type):
            array = array.dictionary.cast(kind).take(array.indices)
        try:
            arrays.append(array if array.type == kind else array.cast(kind))
        except pa.ArrowInvalid as error:
            raise ValueError(
                f"The column {name!r} holds {array.type} here and {kind} elsewhere, and cannot be converted "
                f"({error}): write it with one type."
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def check_columns(columns: list[str], names: list[str], source, hint: str = ""):
    """Raises ValueError for a column that a table lacks, or that occurs twice."""
    for name in columns:
        if not isinstance(name, str):
            raise ValueError(
                f"Columns go by names, which are texts, but got {name!r}: rename those of the table, such as "
                "by frame.rename(columns=str)."
            )
        if name not in names:
            raise ValueError(f"{source} has no column {name!r}; its columns are {list(names)}.{hint}")
        if names.count(name) > 1 or columns.count(name) > 1:
            raise ValueError(f"The column {name!r} occurs twice, in {source} or among {columns}.")


def unreadable(source, error, hint: str = "") -> ValueError:
    """Returns the error of a file that Arrow cannot read."""
    return ValueError(
        f"{source} cannot be read as a table: {error}. {hint}The file is damaged or not what its suffix "
        "says; tfxc.data.read_csv names the bad lines of a text file. If later rows have another type than "
        "the first ones, read the file with pandas and pass the data frame."
    )


def guarded(source, batches):
    """Yields batches; an error of Arrow becomes a ValueError that names the source."""
    try:
        yield from batches
    except (*DAMAGED, UnicodeError) as error:
        raise unreadable(source, error) from error
