"""Reads columns of text files with a header and a delimiter."""

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.csv

from tfxc.data.bad_rows import BadRows
from tfxc.data.files import DAMAGED, File
from tfxc.data.headers import delimiter_of, own_names
from tfxc.data.quotes import DOUBLED, Watched, check_quotes, num_line_ends
from tfxc.data.table import OtherType, Table, converted, unreadable
from tfxc.data.warn import warn

_BLOCK = 1 << 23
_HEAD = 1 << 16
# What is tried for a column whose first values are integers, or empty.
_WIDER = {
    pa.int64(): [pa.int64(), pa.float64()],
    pa.null(): [pa.int64(), pa.float64(), pa.binary()],
}


def open_text(
    files: list[File],
    columns: list[str],
    text: list[str],
    bad: BadRows,
    encoding: str | None,
    changes: Mapping[str, int],
) -> Table:
    """Opens columns of text files, each with a header.

    The delimiter is the one by which the header has all columns. Those in `text` are bytes, so that what is
    not UTF-8 only concerns its row. The first 8 MB decide the types of the others. Where later values do not
    fit, the batches raise `OtherType`; `changes` tells how often they did for a column.

    Raises ValueError for a file that cannot be read, and for a column that is missing or of unknown type.
    """
    first = files[0]
    with _readable(first, encoding):
        with first.as_utf8(encoding) as stream:
            head = stream.read(_HEAD)
        delimiter = delimiter_of(head.decode("utf-8-sig", "replace"), columns, first.suffix)
        found = _reader(first.as_utf8(encoding), delimiter).schema
        names = found.names
    kinds, may_change = {}, []
    for name, own in zip(columns, own_names(columns, names, first), strict=True):
        kind = found.field(own).type
        wider = [pa.binary()] if name in text else _WIDER.get(kind, [kind])
        kinds[name] = wider[changes[name]]
        may_change += [name] if changes[name] + 1 < len(wider) else []
    rows = _Rows(delimiter, encoding, pa.schema(kinds), may_change, bad)
    return Table(bad.source, rows.schema, rows.batches(files), skipped=rows.skipped, is_text=True)


class _Rows:
    """The rows of text files, which are numbered from 0 through all files."""

    def __init__(self, delimiter, encoding, schema, may_change, bad):
        self.schema, self.skipped = schema, []
        self._delimiter, self._encoding, self._may_change, self._bad = delimiter, encoding, may_change, bad
        self._num_rows = 0  # in batches so far
        self._offset = 0  # what to add to Arrow's number of a row

    def batches(self, files: list[File]) -> Iterator[pa.RecordBatch]:
        """Yields the wanted columns. At the end of each file it checks the quotes and the last line."""
        for file in files:
            with _readable(file, self._encoding):
                names = _reader(file.as_utf8(self._encoding), self._delimiter).schema.names
            own = own_names(self.schema.names, names, file)
            first_row = self._num_rows + len(self.skipped)
            self._offset = first_row - 2  # Arrow counts from 1, with the header
            stream = Watched(file.as_utf8(self._encoding))
            yield from self._of_file(file, stream, names, own)
            if stream.has_quotes:
                read = {names.index(name) for name in own}
                check_quotes(file, file.as_utf8(self._encoding), self._delimiter, names, read, first_row)
            _warn_without_end(file, self._encoding)

    def _of_file(self, file, stream, names, own):
        kinds = dict(zip(own, self.schema.types, strict=True))
        wanted = dict(zip(own, self.schema.names, strict=True))
        may_change = {
            number: wanted[name] for number, name in enumerate(names) if wanted.get(name) in self._may_change
        }
        with _readable(file, self._encoding):
            reader = _reader(stream, self._delimiter, own, kinds, self._reject)
        while True:
            with _readable(file, self._encoding, may_change):
                batch = next(reader, None)
            if batch is None:
                return
            self._num_rows += len(batch)
            yield converted(batch.rename_columns(self.schema.names), self.schema)

    def _reject(self, row):
        if not row.text.strip():
            self._offset -= 1
            return "skip"
        number = row.number + self._offset
        self.skipped.append(number)
        num_ends = num_line_ends(row.text)
        reason = f"found {row.actual_columns} fields, expected {row.expected_columns}"
        reason += f", and {num_ends} line ends inside quotes" if num_ends else ""
        reason += f"; {DOUBLED}" if '\\"' in row.text else ""
        self._bad.reject(number, reason)
        return "skip"


def _warn_without_end(file, encoding):
    """Warns of a last line without a line end. Decompression itself detects a truncated file."""
    if file.packing:
        return
    with file.file_system.open_input_file(file.path) as opened:
        opened.seek(max(0, opened.size() - 40))
        last = opened.read()
    if not last.decode(encoding or "utf-8", "replace").endswith(("\n", "\r")):
        warn(
            f"{file}: the last line has no line end ({last.splitlines()[-1]!r}). It was read as it is. If "
            "the file is truncated there, fetch it again."
        )


def _reader(stream, delimiter, columns=None, kinds=None, reject=lambda row: "skip"):
    return pyarrow.csv.open_csv(
        stream,
        # With threads, Arrow does not know the number of an invalid row.
        pyarrow.csv.ReadOptions(use_threads=False, block_size=_BLOCK),
        pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=reject),
        pyarrow.csv.ConvertOptions(column_types=kinds, include_columns=columns),
    )


@contextlib.contextmanager
def _readable(file, encoding, may_change=None):
    """Turns errors into a ValueError, or into `OtherType` for columns that may change, by their numbers."""
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
        number = re.match(r"In CSV column #(\d+): .*CSV conversion error", str(error))
        if may_change and number and int(number[1]) in may_change:
            raise OtherType([may_change[int(number[1])]]) from error
        raise unreadable(file, error) from error
    finally:
        sys.unraisablehook = hook
