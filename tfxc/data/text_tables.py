"""Reads columns of text files with a header and a delimiter, and refuses quotes that mislead Arrow."""

import contextlib
import csv
import io
import re
import sys
from collections.abc import Collection, Iterator

import pyarrow as pa
import pyarrow.csv
from pyarrow.types import is_string, is_temporal

from tfxc.data.files import DAMAGED, File
from tfxc.data.line_reader import DOUBLED, delimiter_of, num_line_ends, own_names, warn_of_lists
from tfxc.data.table import BadRows, Table, converted, unreadable
from tfxc.data.warn import warn, warn_of_cut

_BLOCK = 1 << 23
_HEAD = 1 << 16
_LONGEST_FIELD = 1 << 30  # Arrow has read it before


def open_text(
    files: list[File], columns: list[str], text: list[str], bad: BadRows, encoding: str | None
) -> Table:
    """Opens columns of text files, each with a header.

    Texts, dates, those in `text` and RecBole's tokens are bytes, so that what is not UTF-8 only concerns its
    row. The first 8 MB of the first file decide the types of the others.
    """
    _, names, found = _header(files[0], columns, encoding)
    spelled = own_names(columns, names, files[0])
    warn_of_lists(spelled, files[0])

    def kind_of(name, own):
        kind = found.field(own).type
        is_bytes = name in text or own.strip().endswith(":token") or is_temporal(kind) or is_string(kind)
        return pa.binary() if is_bytes else kind

    schema = pa.schema(zip(columns, map(kind_of, columns, spelled), strict=True))
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


class Watched(io.RawIOBase):
    """A stream that notes whether it has quotes, and how it ends, while it is read."""

    def __init__(self, stream):
        self._stream, self.has_quotes, self.last = stream, False, b"\n"

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        block = self._stream.read(size)
        self.has_quotes = self.has_quotes or b'"' in block
        self.last = block[-40:] or self.last
        return block


def check_quotes(path, stream, delimiter: str, names: list[str], read: Collection[int], first_row: int):
    """Reads a file of UTF-8 with some names of columns again, and warns of line ends inside quotes.

    Raises ValueError if Arrow reads fields as they are not meant: a field with an unclosed quote swallows the
    rows after it, and of `"Weird Al" Yankovic` Arrow drops the quotes. Quotes that close early count in the
    columns that are `read` alone, where line breaks make bad rows anyway.
    """
    found: dict[str, tuple[int, int]] = {}  # column -> number of line ends, first row with one
    lines: list[str] = []  # of the present record

    def noted(text):
        for line in text:
            lines.append(line)
            yield line

    limit = csv.field_size_limit(_LONGEST_FIELD)
    try:
        with io.TextIOWrapper(stream, "utf-8-sig", "replace", newline="") as text:
            records = csv.reader(noted(text), delimiter=delimiter, strict=True)
            row = first_row - 1  # of the header
            while True:
                try:
                    record = next(records)
                except StopIteration:
                    break
                except csv.Error:
                    _refuse(path, records.line_num, lines, delimiter, read)
                    row += 1
                else:
                    for column, field in enumerate(record[: len(names)] if len(lines) > 1 else ()):
                        if column not in read and num_line_ends(field):
                            name = names[column].partition("\n")[0]
                            number, first = found.get(name, (0, max(row, 0)))
                            found[name] = number + num_line_ends(field), first
                    row += len(record) > 1 or any(map(str.strip, record))  # blanks are no row
                lines.clear()
    finally:
        csv.field_size_limit(limit)
    told = [f"{name!r} holds {n} line ends, the first in row {row}" for name, (n, row) in found.items()]
    if told:
        warn(
            f"{path}: there are line ends inside quotes: {'; '.join(told)}. If these are not texts of "
            "several lines, a quote is not closed, and rows are lost."
        )


def _refuse(path, line, lines, delimiter, read):
    """Raises ValueError if a record with a broken quote, whose last line has this number, loses anything."""
    ends = f"{re.escape(delimiter)}\r\n"
    field = re.compile(rf'(?:"([^"]*+(?:""[^"]*+)*+)("?))?([^{ends}]*)(?:[{ends}]|$)')
    for column, (inside, closing, rest) in enumerate(field.findall("".join(lines))):
        if column in read and closing and rest and not num_line_ends(inside):
            raise ValueError(
                f"{path}: in line {line} text follows the quote that ends a field, whose quotes would get "
                f'lost: {DOUBLED}; or let tfxc.data.read_csv leave out such rows by on_error="skip".'
            )
        if column not in read and (rest or not closing) and num_line_ends(inside):
            raise ValueError(
                f"{path}: the quote in line {line - len(lines) + 1} is not closed, or is next to text in "
                f"line {line}, so a field holds the rows between. Close the quote; or quote the whole field "
                'and double the quotes inside, as in "27"" monitor".'
            )
