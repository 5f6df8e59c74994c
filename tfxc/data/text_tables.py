"""Reads columns of text files with a header and a delimiter."""

import contextlib
import sys
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.csv
from pyarrow.types import is_string, is_temporal

from tfxc.data.bad_rows import BadRows
from tfxc.data.files import DAMAGED, File
from tfxc.data.headers import delimiter_of, own_names, warn_of_lists
from tfxc.data.quotes import DOUBLED, Watched, check_quotes, num_line_ends
from tfxc.data.table import Table, converted, unreadable
from tfxc.data.warn import warn_of_cut

_BLOCK = 1 << 23
_HEAD = 1 << 16


def open_text(
    files: list[File], columns: list[str], text: list[str], bad: BadRows, encoding: str | None
) -> Table:
    """Opens columns of text files, each with a header.

    The delimiter of a file is the one by which its header has all columns. Texts, dates, those in `text`
    and RecBole's tokens are bytes, so that what is not UTF-8 only concerns its row. The first 8 MB of the
    first file decide the types of the others.

    Raises ValueError for a file that cannot be read, and for a column that is missing or of unknown type.
    """
    _, names, found = _header(files[0], columns, encoding)
    spelled = own_names(columns, names, files[0])
    warn_of_lists(spelled, files[0])
    kinds = [found.field(own).type for own in spelled]
    kinds = [
        pa.binary()
        if name in text or own.strip().endswith(":token") or is_temporal(kind) or is_string(kind)
        else kind
        for name, own, kind in zip(columns, spelled, kinds, strict=True)
    ]
    schema = pa.schema(zip(columns, kinds, strict=True))
    skipped: list[int] = []
    batches = _batches(files, encoding, schema, skipped, bad)
    return Table(bad.source, schema, batches, skipped=skipped, is_text=True)


def _header(file, columns, encoding):
    """Returns a file's delimiter, the names of its columns, and the schema that its first 8 MB suggest."""
    with _readable(file, encoding):
        with file.as_utf8(encoding) as stream:
            head = stream.read(_HEAD)
        delimiter = delimiter_of(head.decode("utf-8-sig", "replace"), columns, file.suffix)
        found = _reader(file.as_utf8(encoding), delimiter).schema
        return delimiter, found.names, found


def _batches(files, encoding, schema, skipped, bad) -> Iterator[pa.RecordBatch]:
    """Yields the rows, numbered from 0 through all files. At the end of a file it checks how that ends."""
    num_rows = 0  # in batches so far
    offset = 0  # what to add to Arrow's number of a row

    def reject(row):
        nonlocal offset
        if not row.text.strip():
            offset -= 1
            return "skip"
        skipped.append(row.number + offset)
        num_ends = num_line_ends(row.text)
        reason = f"found {row.actual_columns} fields, expected {row.expected_columns}"
        reason += f", and {num_ends} line ends inside quotes" if num_ends else ""
        reason += f"; {DOUBLED}" if '\\"' in row.text else ""
        bad.reject(skipped[-1], reason)
        return "skip"

    for file in files:
        stream = Watched(file.as_utf8(encoding))
        delimiter, names, _ = _header(file, schema.names, encoding)
        own = own_names(schema.names, names, file)
        kinds = dict(zip(own, schema.types, strict=True))
        first_row = num_rows + len(skipped)
        offset = first_row - 2  # Arrow counts from 1, with the header
        with _readable(file, encoding):
            reader = _reader(stream, delimiter, kinds, reject)
        while True:
            with _readable(file, encoding):
                batch = next(reader, None)
            if batch is None:
                break
            num_rows += len(batch)
            yield converted(batch.rename_columns(schema.names), schema)
        if stream.has_quotes:
            read = {names.index(name) for name in own}
            check_quotes(file, file.as_utf8(encoding), delimiter, names, read, first_row)
        if not stream.last.endswith((b"\n", b"\r")):
            warn_of_cut(f"{file}: the last line", stream.last.splitlines()[-1])


def _reader(stream, delimiter, kinds=None, reject=lambda row: "skip"):
    return pyarrow.csv.open_csv(
        stream,
        # With threads, Arrow does not know the number of an invalid row.
        pyarrow.csv.ReadOptions(use_threads=False, block_size=_BLOCK),
        pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=reject),
        pyarrow.csv.ConvertOptions(column_types=kinds, include_columns=kinds and list(kinds)),
    )


@contextlib.contextmanager
def _readable(file, encoding):
    # pyarrow decodes an invalid row before it calls the handler. If that fails it prints a trace, and stops.
    hook = sys.unraisablehook
    sys.unraisablehook = lambda told: None if told.exc_type is UnicodeDecodeError else hook(told)
    try:
        yield
    except UnicodeError as error:
        where = "it is not" if encoding else "its header is not"
        raise ValueError(
            f"{file} must be {encoding or 'UTF-8'}, but {where} ({error}): save it as UTF-8, or pass "
            'encoding= "latin-1", "cp1252" or what it is. (What Excel calls Unicode text is UTF-16.)'
        ) from error
    except DAMAGED as error:
        raise unreadable(file, error) from error
    finally:
        sys.unraisablehook = hook
