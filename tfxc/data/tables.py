"""Reads interactions from data frames, Arrow tables, Parquet and CSV files, also larger than memory."""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset
import pyarrow.json
import pyarrow.parquet

from tfxc.data.describe import warn_of_header
from tfxc.data.files import DAMAGED, File, find_files
from tfxc.data.interaction_table import Choices, is_number, table_sequences, time_columns
from tfxc.data.sequences import Column, Sequences, check_column_name
from tfxc.data.table import (
    ROWS_PER_BATCH,
    BadRows,
    Table,
    check_columns,
    converted,
    guarded,
    plain_schema,
    unreadable,
    without_categories,
)
from tfxc.data.text_tables import open_text
from tfxc.data.vocabulary import Vocabulary

_HEAD = 1 << 20  # of JSON
_BLOCK = 1 << 23
_KINDS = {str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
_KINDS[Decimal] = pa.decimal128(38, 0)  # integers beyond 64 bits, such as unsigned hashes
_NUMBER = re.compile(r"-?\d{1,18}")
_INT96 = {"coerce_int96_timestamp_unit": "us"}  # of Spark; in Arrow's nanoseconds 9999 would be 1816
_NULL = "__HIVE_DEFAULT_PARTITION__"


def from_frame(
    frame,
    user: str,
    item: str,
    time: str | tuple[str, str] | None = None,
    columns: Iterable[str] | Mapping[str, Column] = (),
    vocabulary: Vocabulary | None = None,
    directory: str | os.PathLike[str] | None = None,
    on_error: str = "raise",
    *,
    ties: str | None = None,
    seed: int = 0,
    missing: Iterable[str] = (),
    encoding: str | None = None,
    time_format: str | None = None,
) -> Sequences:
    """Reads a table with one interaction a row into one sequence a user, oldest first.

    Users and items may be strings, bytes of UTF-8, UUIDs, integers or categories. They are numbered in order
    of first appearance. Strings count as they are; blanks around those of a text file do not. Without a time
    column the order of the table counts. Times keep their unit: dates and timestamps are `datetime64`, in UTC
    if they have a zone; numbers are seconds since 1970; strings are ISO 8601 dates, also such as 2024/5/1,
    in UTC if they name no zone, or numbers of seconds. A warning tells what the data alone cannot settle, and
    the option that does.

    Args:
        frame: a pandas or Polars DataFrame, a LazyFrame, an Arrow table or another object with
            `__arrow_c_stream__`; or a path, a pattern such as `"part-*.parquet"`, a folder, or a list of
            paths, of files of Parquet, text with a header and a delimiter (`.csv`, `.tsv`, `.txt`, `.inter`)
            or JSON lines (`.jsonl`). Text may be packed (`.gz`, `.bz2`, `.zst`, `.xz`). Folders such as
            `day=2024-05-01` are a column of their Parquet files. Paths may be URIs: `file://`, `s3://`,
            `gs://`, `hdfs://`.
        user: name of the column of users (or sessions).
        item: name of the column of items.
        time: name of the column of times; or two names, of the day and of the time of day.
        columns: names of further columns to keep, which the pipeline feeds together with the items. Strings,
            categories and what a header of RecBole calls a token become ids (-1 if missing), numbers stay
            numbers. Pass `train.columns` to read held-out data with the ids of training.
        vocabulary: class ids to use; a row with an item outside it is a bad row.
        directory: folder for sequences larger than memory, which are written once, with twice their size on
            disk meanwhile, and then memory-mapped. A complete new version replaces an older one.
            `open_sequences` opens the folder again.
        on_error: `"raise"`, or `"skip"` to leave bad rows out with one warning.
        ties: the order of a user's items of equal times: `"order"` is that of the table, `"random"` one by
            chance. None is that of the table, with a warning if 1 % of the steps or more depend on it.
        seed: decides the order of `"random"`.
        missing: what spells a missing user, item, time or category, such as `("NULL", r"\\N")`. Rows without
            a user, item or time are left out, and their number is logged.
        encoding: of text files; None for UTF-8.
        time_format: the form of dates, for `datetime.strptime`, such as `"%d/%m/%Y %H:%M"`; or the unit of
            numbers, `"s"`, `"ms"`, `"us"` or `"ns"`.

    Raises:
        ValueError: for a missing column or one of another type; for bad rows (a null or empty user, item or
            time, bytes that are not UTF-8, an invalid time or number, in a text file also a line break in a
            column that is read), with the first ten and their number, counted from 0; for a table without any
            interaction, a file that cannot be read, or options of another kind; for a text file in which a
            quote is not closed, or text follows the quote that ends a field, as in `"Weird Al" Yankovic`.
        FileNotFoundError: if there is no such file or folder.

    Example:
        >>> import pyarrow
        >>> table = pyarrow.table({
        ...     "who": ["ann", "bob", "ann"], "what": ["milk", "tea", "tea"],
        ...     "when": ["2024-05-02", "2024-05-01", "2024-05-01T12:00"], "country": ["de", "fr", "de"]})
        >>> log = from_frame(table, user="who", item="what", time="when", columns=["country"])
        >>> log.user_ids, log.vocabulary.decode(log[0])
        (['ann', 'bob'], ['tea', 'milk'])
        >>> print(log.times[0], log.columns["country"].values.tolist())
        2024-05-01T12:00:00.000000 [0, 0, 1]
    """
    source = "the table"
    if isinstance(frame, str | os.PathLike):
        source = os.fspath(frame)
    elif isinstance(frame, list | tuple) and len(frame) > 0:
        source = f"{len(frame)} files from {frame[0]}"
    choices = Choices(ties, seed, missing, time_format)
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        remedy = [columns] if isinstance(columns, str) else "()"
        raise ValueError(f"columns must be a list of names, but is {columns!r}: pass {remedy}.")
    given = columns if isinstance(columns, Mapping) else {}
    vocabularies: dict[str, Vocabulary | None] = dict.fromkeys(columns)
    for name in vocabularies:
        check_column_name(name)  # before reading a long table
    for name, column in given.items():
        if not isinstance(column, Column):
            raise ValueError(
                "columns must be a list of names, or those of other sequences, columns=sequences.columns, "
                f"but the value of {name!r} is of {type(column).__name__}."
            )
        vocabularies[name] = column.vocabulary
    times = time_columns(time)
    named = [user, item, *times]
    text = named + [name for name, of_column in vocabularies.items() if of_column is not None]
    bad = BadRows(source, "row", on_error)
    table = open_table(frame, named + list(vocabularies), text, bad, encoding)
    for name, column in given.items():
        kind = table.schema.field(name).type
        if column.vocabulary is None and not is_number(kind):
            raise ValueError(
                f"The column {name!r} of {table.name} is of type {kind}, but must hold numbers as in the "
                "columns that were passed: convert it."
            )
    sequences = table_sequences(table, user, item, times, bad, choices, vocabulary, vocabularies, directory)
    if table.is_text:
        warn_of_header(sequences, user, item, source)
    return sequences


def open_table(
    frame, columns: list[str], text: list[str], bad: BadRows, encoding: str | None = None
) -> Table:
    """Opens some columns of a data frame, an Arrow table or files.

    The frame is as `from_frame` takes it. Columns in `text` stay strings when they are read from a text file:
    "007" is not 7. `bad` collects the rows of a text file that have too few or too many fields.
    """
    if isinstance(frame, str | os.PathLike | list | tuple):
        files = find_files(frame)
        kinds = {file.kind or "parquet" for file in files}
        if len(kinds) > 1:
            raise ValueError(f"{bad.source} holds files of several kinds, {sorted(kinds)}: pass one kind.")
        if kinds == {"csv"}:
            return open_text(files, columns, text, bad, encoding)
        if kinds == {"json"}:
            return _open_json(files, columns, bad.source, encoding)
        return _open_parquet(files, columns, text, bad.source)
    if hasattr(frame, "collect_schema") and not hasattr(frame, "__arrow_c_stream__"):  # a LazyFrame of Polars
        check_columns(columns, frame.collect_schema().names(), bad.source)
        frame = frame.select(columns).collect()
    if not hasattr(frame, "__arrow_c_stream__") or len(getattr(frame, "shape", (0, 0))) != 2:
        raise ValueError(
            "frame must be a pandas or Polars DataFrame, an Arrow table, or the path of a Parquet, CSV, TSV "
            f"or JSON lines file, not {type(frame).__name__}."
        )
    if hasattr(frame, "columns") and hasattr(frame, "dtypes"):  # pandas or Polars
        levels = {*getattr(getattr(frame, "index", None), "names", ())} - {*frame.columns}
        if not levels.isdisjoint(columns):  # of pandas' index, which are columns in its Parquet files, too
            frame = frame.reset_index([*levels.intersection(columns)])
        check_columns(columns, list(frame.columns), bad.source)
        frame = frame[columns]  # so that no other column is converted
    try:
        table = pa.table(frame)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        raise ValueError(
            f"One of the columns {columns} mixes types, or holds what Arrow does not, such as integers of "
            f"more than 64 bits ({error}): convert it to one type, for example by astype(str)."
        ) from error
    check_columns(columns, table.schema.names, bad.source)
    days = [name for name in columns if pa.types.is_date(table.schema.field(name).type)]
    for name in days if hasattr(frame, "iloc") else ():
        if frame[name].dtype == object and any(isinstance(own, datetime) for own in frame[name]):
            raise ValueError(
                f"The column {name!r} mixes dates and datetimes, of which Arrow takes the days alone: "
                "convert it by pandas.to_datetime."
            )
    schema = plain_schema(table.schema, columns)
    batches = (converted(batch, schema) for batch in table.select(columns).to_batches(ROWS_PER_BATCH))
    return Table(bad.source, schema, batches, table.num_rows)


def _open_json(files: list[File], columns: list[str], name: str, encoding: str | None) -> Table:
    """Opens columns of files of JSON lines, whose first MB decides the types. Others may hold anything."""
    found: dict[str, set] = {}
    number, stream = 0, files[0].as_utf8(encoding)  # an unknown encoding is no damage
    try:
        with stream:
            lines = stream.read(_HEAD).splitlines(True)
        for line in lines:
            number += 1
            if line.strip() and (line.endswith(b"\n") or len(lines) == 1):  # the last may go on
                for key, value in json.loads(line).items():
                    found.setdefault(key, set()).update([_type(value)] * (value is not None))
    except (*DAMAGED, ValueError, AttributeError, RecursionError) as error:
        hint = "JSON needs one object a line, in UTF-8. "
        raise unreadable(f"{name}, line {number},", error, hint) from error
    check_columns(columns, list(found), name)
    schema = pa.schema([(column, _kind(column, found[column], name)) for column in columns])
    return Table(name, schema, guarded(name, _json_batches(files, schema, encoding)))


def _type(value):
    return Decimal if type(value) is int and not -(2**63) <= value < 2**63 else type(value)


def _kind(column, types, name) -> pa.DataType:
    widest = types - {int} if types & {float, Decimal} else types
    kind = next(iter(widest), None)
    if kind not in _KINDS or len(widest) > 1:
        held = " and ".join(sorted(own.__name__ for own in types)) or "nothing but null"
        raise ValueError(
            f"The column {column!r} of {name} holds {held} at first, but must hold texts or numbers: read "
            "the file with pandas and pass the data frame."
        )
    return _KINDS[kind]


def _json_batches(files, schema, encoding) -> Iterator[pa.RecordBatch]:
    parse = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    options = pyarrow.json.ReadOptions(use_threads=False, block_size=_BLOCK)
    for file in files:
        for batch in pyarrow.json.open_json(file.as_utf8(encoding), options, parse):
            yield batch.select(schema.names)


def _open_parquet(files: list[File], columns: list[str], text: list[str], name: str) -> Table:
    """Opens columns of Parquet files. Folders may name columns: `day` of `day=2024-05-01/part.parquet`.

    Those in `text` are texts, and others are integers if they look so.
    """
    system, paths = files[0].system, [file.path for file in files]
    form = pyarrow.dataset.ParquetFileFormat(**_INT96)
    try:
        dataset = pyarrow.dataset.dataset(paths, pa.schema([]), form, system)  # each file has its own schema
        fragments = list(dataset.get_fragments())
        parts = list(zip(fragments, _partitions(fragments, text), strict=True))
        schema = _common_schema(name, parts, columns)
        num_rows = dataset.count_rows()
    except (pa.ArrowException, OSError, UnicodeError) as error:
        hint = "Files other than .csv, .tsv, .inter, .txt and .jsonl, also packed, are read as Parquet. "
        raise unreadable(name, error, hint) from error
    batches = guarded(name, _parquet_batches(system, parts, columns))
    return Table(name, schema, (converted(batch, schema) for batch in batches), num_rows)


def _partitions(fragments, text) -> list[dict[str, pa.Scalar]]:
    """Returns by name the values that the folders of each file name, but for columns of the file."""
    found: list[dict[str, str | None]] = []
    for fragment in fragments:
        folders = fragment.path.split("/")[:-1]
        named = [map(unquote, folder.split("=", 1)) for folder in folders if "=" in folder]
        known = fragment.physical_schema.names
        found.append({name: None if value == _NULL else value for name, value in named if name not in known})
    values = [(name, value) for own in found for name, value in own.items() if value is not None]
    texts = {*text, *(name for name, value in values if not _NUMBER.fullmatch(value))}
    kinds = {name: pa.int64() for name, _ in values if name not in texts}
    return [
        {name: pa.scalar(own[name], pa.string()).cast(kinds.get(name, pa.string())) for name in own}
        for own in found
    ]


def _parquet_batches(system, parts, columns) -> Iterator[pa.RecordBatch]:
    for fragment, keys in parts:  # pyarrow.dataset would read batches ahead, with twice the memory and work
        own = [name for name in columns if name not in keys]
        source = system.open_input_file(fragment.path)
        with pyarrow.parquet.ParquetFile(source, pre_buffer=False, buffer_size=1 << 20, **_INT96) as parquet:
            for batch in parquet.iter_batches(ROWS_PER_BATCH, columns=own, use_threads=False):
                for name in set(keys) & set(columns):
                    batch = batch.append_column(name, pa.repeat(keys[name], len(batch)))
                yield batch.select(columns)


def _common_schema(name, parts, columns: list[str]) -> pa.Schema:
    """Returns a schema for all files. Their types may differ in width, in categories, or be all null."""
    schemas = []
    for fragment, keys in parts:
        own = pa.schema([*fragment.physical_schema, *((key, value.type) for key, value in keys.items())])
        check_columns(columns, own.names, fragment.path)
        schemas.append(plain_schema(own, columns))
    if all(schema.equals(schemas[0]) for schema in schemas):
        return schemas[0]
    plain = [pa.schema([(own.name, without_categories(own.type)) for own in schema]) for schema in schemas]
    try:
        return pa.unify_schemas(plain, promote_options="permissive")
    except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
        raise ValueError(
            f"The files of {name} hold a column in types that cannot be combined: {error}. Write it with one "
            "type."
        ) from error
