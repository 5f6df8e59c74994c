"""Reads columns of files with one JSON object a line."""

import json
from collections.abc import Iterator
from decimal import Decimal

import pyarrow as pa
import pyarrow.json

from tfxc.data.files import DAMAGED, File
from tfxc.data.table import Table, check_columns, guarded, unreadable

_HEAD = 1 << 20
_BLOCK = 1 << 23
_KINDS = {str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
_KINDS[Decimal] = pa.decimal128(38, 0)  # integers beyond 64 bits, such as unsigned hashes


def open_json(files: list[File], columns: list[str], name: str, encoding: str | None) -> Table:
    """Opens columns of files of JSON lines. Columns that nobody asked for may hold anything.

    The first MB decides the types. Raises ValueError for a file that is none, or a column that is missing
    there, or of several types.
    """
    found: dict[str, set] = {}
    number = 0
    try:
        with files[0].as_utf8(encoding) as stream:
            head = stream.read(_HEAD)
        lines = head.splitlines(True)
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
    return Table(name, schema, guarded(name, _batches(files, schema, encoding)))


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


def _batches(files, schema, encoding) -> Iterator[pa.RecordBatch]:
    parse = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    options = pyarrow.json.ReadOptions(use_threads=False, block_size=_BLOCK)
    for file in files:
        for batch in pyarrow.json.open_json(file.as_utf8(encoding), options, parse):
            yield batch.select(schema.names)
