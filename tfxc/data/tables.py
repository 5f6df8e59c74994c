"""Reads data frames, Parquet and CSV files as one stream of Arrow batches."""

import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet

from tfxc.data.bad_rows import BadRows
from tfxc.data.quotes import QuotedLines, num_line_ends

_ROWS_PER_BATCH = 1 << 17
_CSV_BLOCK = 1 << 23
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_READ_AS_PARQUET = "Files other than .csv, .tsv, .csv.gz and .tsv.gz are read as Parquet. "


@dataclass(frozen=True)
class Table:
    """Some columns of a table, to be read once, batch by batch.

    Args:
        name: the table's name in messages.
        schema, batches: names and types of the columns, and the rows in order.
        num_rows: the number of rows, or None if it is not known before reading.
        skipped: numbers, from 0, of the rows of a text file that the parser left out so far. The list grows
            while batches are read.
        is_text: whether it is a text file, in which an unclosed quote swallows the rows after it.
    """

    name: str
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    num_rows: int | None = None
    skipped: list[int] = field(default_factory=list)
    is_text: bool = False

    def rows(self, positions: np.ndarray) -> np.ndarray:
        """Returns the numbers of rows in the table, from 0, for positions in the batches."""
        return _rows(self.skipped, positions)


def _rows(skipped: list[int], positions):
    known = np.array(skipped, np.int64)  # a copy: later rows may be skipped meanwhile
    before = known - np.arange(len(known))
    return positions + np.searchsorted(before, positions, side="right")


def open_table(frame, columns: list[str], text: list[str], bad: BadRows) -> Table:
    """Opens some columns of a data frame, an Arrow table or a file.

    Args:
        frame: a pandas or Polars DataFrame or another object with `__arrow_c_stream__`, or the path of a
            Parquet file, a folder of them, or a CSV or TSV file with a header, plain or `.gz`.
        columns: names of the columns to read.
        text: columns that stay strings when read from a text file: "007" is not 7.
        bad: collects the rows of a text file that have too few or too many fields.

    Raises:
        ValueError: for another kind of frame or file, a folder without Parquet files, or a column that is
            missing or occurs twice.
    """
    if isinstance(frame, str | os.PathLike):
        path = os.fspath(frame)
        if not os.path.exists(path):
            raise FileNotFoundError(f"There is no file or folder {path}.")
        delimiter = _DELIMITERS.get(os.path.splitext(path.removesuffix(".gz"))[1].lower())
        return _parquet(path, columns) if delimiter is None else _csv(path, delimiter, columns, text, bad)
    if not hasattr(frame, "__arrow_c_stream__"):
        raise ValueError(
            "frame must be a pandas or Polars DataFrame, an Arrow table, or the path of a Parquet, CSV or "
            f"TSV file, not {type(frame).__name__}."
        )
    is_data_frame = hasattr(frame, "columns") and hasattr(frame, "dtypes")  # pandas or Polars
    if is_data_frame:
        _check(columns, list(frame.columns), bad.source)
        frame = frame[columns]  # so that no other column is converted
    try:
        table = pa.table(frame)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ValueError(
            f"A column mixes types ({error}): convert it to one type, for example by astype(str)."
        ) from error
    except OverflowError as error:
        raise ValueError(
            f"One of the columns {columns} holds integers of more than 64 bits ({error}): convert it, for "
            "example by astype(str)."
        ) from error
    _check(columns, table.schema.names, bad.source)
    schema = _schema(table.schema, columns)
    batches = (_converted(batch, schema) for batch in table.select(columns).to_batches(_ROWS_PER_BATCH))
    return Table(bad.source, schema, batches, table.num_rows)


def _common_schema(path, dataset, columns: list[str]) -> pa.Schema:
    """Returns a schema for all files. Their types may differ in width, in categories, or be all null."""
    if not dataset.files:
        raise ValueError(
            f'The folder {path} holds no Parquet files (names that begin with "_" or "." do not count), '
            "but at least one was expected: pass the folder that holds them, or the path of a file."
        )
    schemas = []
    for part in dataset.get_fragments():
        _check(columns, part.physical_schema.names, part.path)
        schemas.append(_schema(part.physical_schema, columns))
    if all(schema.equals(schemas[0]) for schema in schemas):
        return schemas[0]
    plain = [pa.schema([(own.name, _without_categories(own.type)) for own in schema]) for schema in schemas]
    try:
        return pa.unify_schemas(plain, promote_options="permissive")
    except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
        raise ValueError(
            f"The files of {path} hold a column in types that cannot be combined: {error}. Write it with one "
            "type."
        ) from error


def _schema(given: pa.Schema, columns: list[str]) -> pa.Schema:
    return pa.schema([(name, _without_views(given.field(name).type)) for name in columns])


def _without_views(kind: pa.DataType) -> pa.DataType:
    """Replaces string views, which Polars produces and few functions of Arrow accept."""
    return pa.large_string() if pa.types.is_string_view(_without_categories(kind)) else kind


def _without_categories(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _converted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for array, name, kind in zip(batch.columns, schema.names, schema.types, strict=True):
        if array.type != kind and pa.types.is_dictionary(array.type):
            array = array.dictionary.cast(kind).take(array.indices)
        try:
            arrays.append(array.cast(kind))
        except pa.ArrowInvalid as error:
            raise ValueError(
                f"The column {name!r} holds {array.type} here and {kind} elsewhere, and cannot be converted "
                f"({error}): write it with one type."
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _parquet(path, columns) -> Table:
    try:
        dataset = pyarrow.dataset.dataset(path, format="parquet")
        schema = _common_schema(path, dataset, columns)
        num_rows = dataset.count_rows()
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error, _READ_AS_PARQUET) from error
    batches = _guarded(path, _file_batches(dataset.files, columns))
    return Table(path, schema, (_converted(batch, schema) for batch in batches), num_rows)


def _file_batches(files, columns) -> Iterator[pa.RecordBatch]:
    for file in files:  # pyarrow.dataset would read batches ahead, with twice the memory and work
        with pyarrow.parquet.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20) as parquet:
            for batch in parquet.iter_batches(_ROWS_PER_BATCH, columns=columns, use_threads=False):
                yield batch.select(columns)


def _csv(path, delimiter, columns, text, bad) -> Table:
    skipped: list[int] = []

    def reject(row):
        skipped.append(row.number - 2)  # Arrow counts from 1 and includes the header
        num_ends = num_line_ends(row.text)
        inside = f", and {num_ends} line ends inside quotes" if num_ends else ""
        bad.reject(skipped[-1], f"found {row.actual_columns} fields, expected {row.expected_columns}{inside}")
        return "skip"

    def wanted(batches):
        lines, num_rows = QuotedLines(path, delimiter), 0
        others = [number for number, name in enumerate(names) if name not in columns]
        for number in others:
            name = names[number]
            lines.note(name.partition("\n")[0], pa.array([name]), 0)  # the header may span rows, too
        for batch in batches:
            for number in others:
                name, kind = batch.schema.names[number], batch.schema.types[number]
                if pa.types.is_string(kind) or pa.types.is_binary(kind):
                    lines.note(name, batch.column(number), num_rows)
            num_rows += len(batch)
            yield batch.select(columns)
        lines.report(lambda position: _rows(skipped, position))
        _warn_without_end(path)

    try:
        reader = pyarrow.csv.open_csv(
            path,
            # With threads, Arrow does not know the number of an invalid row.
            pyarrow.csv.ReadOptions(use_threads=False, block_size=_CSV_BLOCK),
            pyarrow.csv.ParseOptions(
                delimiter=delimiter, newlines_in_values=True, invalid_row_handler=reject
            ),
            pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(text, pa.string())),
        )
        names = reader.schema.names
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} must be UTF-8, but its header is not ({error}): save it as UTF-8. (What Excel calls "
            "Unicode text is UTF-16.)"
        ) from error
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error
    _check(columns, names, path)
    schema = _schema(reader.schema, columns)
    return Table(path, schema, wanted(_guarded(path, reader)), None, skipped, is_text=True)


def _warn_without_end(path):
    """Warns of a last line without a line end. Decompression itself detects a truncated .gz file."""
    if path.endswith(".gz"):
        return
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - 40))
        last = file.read()
    if not last.endswith((b"\n", b"\r")):
        warnings.warn(
            f"{path}: the last line has no line end ({last.splitlines()[-1]!r}). It was read as it is. If "
            "the file is truncated there, fetch it again.",
            stacklevel=9,
        )


def _guarded(path, batches):
    try:
        yield from batches
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path, error, hint=""):
    return ValueError(
        f"{path} cannot be read as a table: {error}. {hint}The file is damaged or not what its suffix says; "
        "tfxc.data.read_csv names the bad lines of a text file. If later rows have another type than the "
        "first ones, read the file with pandas and pass the data frame."
    )


def _check(columns, names, source):
    for name in columns:
        if name not in names:
            raise ValueError(f"{source} has no column {name!r}; its columns are {list(names)}.")
        if names.count(name) > 1 or columns.count(name) > 1:
            raise ValueError(f"The column {name!r} occurs twice, in {source} or among {columns}.")
