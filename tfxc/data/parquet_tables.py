"""Reads columns of Parquet files, one file after the other, with the partitions that folders name."""

import re
from collections.abc import Iterator
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet

from tfxc.data.files import File
from tfxc.data.table import (
    ROWS_PER_BATCH,
    Table,
    check_columns,
    converted,
    guarded,
    plain_schema,
    unreadable,
    without_categories,
)

_NUMBER = re.compile(r"-?\d{1,18}")
_NULL = "__HIVE_DEFAULT_PARTITION__"
_HINT = "Files other than .csv, .tsv, .inter, .txt and .jsonl, also packed, are read as Parquet. "


def open_parquet(files: list[File], columns: list[str], text: list[str], name: str) -> Table:
    """Opens columns of Parquet files. Folders may name columns: `day` of `day=2024-05-01/part.parquet`.

    Those in `text` are texts, and others are integers if they look so.

    Raises ValueError for a file that is none, or columns that are missing or do not go together.
    """
    system, paths = files[0].system, [file.path for file in files]
    try:
        dataset = pyarrow.dataset.dataset(paths, pa.schema([]), "parquet", system)  # each file has its own
        parts = [(part, _partitions(part)) for part in dataset.get_fragments()]
        numbers = _numbers([keys for _, keys in parts], text)
        parts = [(part, _scalars(keys, numbers)) for part, keys in parts]
        schema = _common_schema(name, parts, columns)
        num_rows = dataset.count_rows()
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise unreadable(name, error, _HINT) from error
    batches = guarded(name, _batches(system, parts, columns))
    return Table(name, schema, (converted(batch, schema) for batch in batches), num_rows)


def _partitions(part) -> dict[str, str | None]:
    """Returns the values that the folders of a file name, but for columns of the file."""
    found = [map(unquote, folder.split("=", 1)) for folder in part.path.split("/")[:-1] if "=" in folder]
    known = part.physical_schema.names
    return {name: None if value == _NULL else value for name, value in found if name not in known}


def _numbers(keys, text) -> set[str]:
    """Returns the names of keys whose values all look like integers, but for those in `text`."""
    values = {(name, value) for own in keys for name, value in own.items() if value is not None}
    numbers, others = set(text), set(text)
    for name, value in values:
        (numbers if _NUMBER.fullmatch(value) else others).add(name)
    return numbers - others


def _scalars(keys, numbers) -> dict[str, pa.Scalar]:
    """Returns values of folders as integers, if their name is in `numbers`, or texts."""
    kinds = {name: pa.int64() if name in numbers else pa.string() for name in keys}
    return {name: pa.scalar(value, pa.string()).cast(kinds[name]) for name, value in keys.items()}


def _batches(system, parts, columns) -> Iterator[pa.RecordBatch]:
    for fragment, keys in parts:  # pyarrow.dataset would read batches ahead, with twice the memory and work
        own = [name for name in columns if name not in keys]
        source = system.open_input_file(fragment.path)
        with pyarrow.parquet.ParquetFile(source, pre_buffer=False, buffer_size=1 << 20) as parquet:
            for batch in parquet.iter_batches(ROWS_PER_BATCH, columns=own, use_threads=False):
                for name in set(keys) & set(columns):
                    batch = batch.append_column(name, pa.repeat(keys[name], len(batch)))
                yield batch.select(columns)


def _common_schema(name, parts, columns: list[str]) -> pa.Schema:
    """Returns a schema for all files. Their types may differ in width, in categories, or be all null."""
    schemas = []
    for fragment, keys in parts:
        own = fragment.physical_schema
        for key, value in keys.items():
            own = own.append(pa.field(key, value.type))
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
