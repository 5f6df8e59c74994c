"""Reads columns of text files with a header and a delimiter."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.csv

from tfxc.data.bad_rows import BadRows
from tfxc.data.files import File
from tfxc.data.headers import delimiter_of, own_names, plain_names
from tfxc.data.quotes import QuotedLines, num_line_ends
from tfxc.data.table import Table, check_columns, converted, rows_of, unreadable
from tfxc.data.warn import warn

_BLOCK = 1 << 23
_HEAD = 1 << 16
_NO_HEADER = " If it has no header, tfxc.data.read_interactions reads it."


def open_text(
    files: list[File], columns: list[str], text: list[str], bad: BadRows, encoding: str | None
) -> Table:
    """Opens columns of text files, each with a header.

    The first 8 MB decide the types of columns not in `text`. The delimiter is the one by which the header has
    all columns. Those in `text`, and columns that nobody asked for, are bytes, so that what is not UTF-8 only
    concerns its row.

    Raises ValueError for a file that cannot be read, and for a column that is missing or of unknown type.
    """
    first = files[0]
    try:
        with first.as_utf8(encoding) as stream:
            head = stream.read(_HEAD)
        usual = "\t" if first.suffix in (".tsv", ".inter") else ","
        delimiter = delimiter_of(head.decode("utf-8-sig", "replace"), columns, usual)
        found = _reader(first, delimiter, encoding, {}, lambda row: "skip").schema
        names = found.names
    except UnicodeError as error:
        raise _not_decoded(first, encoding, error) from error
    except (pa.ArrowException, OSError) as error:
        raise unreadable(first, error) from error
    own = _own_names(columns, names, first)
    kinds = {
        name: pa.binary() if name in text else found.field(raw).type
        for name, raw in zip(columns, own, strict=True)
    }
    for name, kind in kinds.items():
        if pa.types.is_null(kind):
            raise ValueError(
                f"The column {name!r} is empty in the first {_BLOCK >> 20} MB of {first}, which decide "
                "between numbers and categories: read the file with pandas and pass the data frame."
            )
    schema = pa.schema(kinds)
    skipped: list[int] = []
    batches = _batches(files, delimiter, encoding, schema, bad, skipped)
    return Table(bad.source, schema, batches, skipped=skipped, is_text=True)


def _batches(files, delimiter, encoding, schema, bad, skipped) -> Iterator[pa.RecordBatch]:
    num_rows = 0  # of all files, with those that were skipped
    for file in files:
        reading = _TextFile(file, delimiter, encoding, schema, bad, skipped, num_rows)
        yield from reading.batches()
        num_rows = reading.num_rows + len(skipped)


class _TextFile:
    """One of several text files, whose rows are numbered from the end of the files before it."""

    def __init__(self, file, delimiter, encoding, schema, bad, skipped, first_row):
        self._file, self._encoding, self._schema = file, encoding, schema
        self._bad, self._skipped, self._first_row = bad, skipped, first_row
        self.num_rows = first_row - len(skipped)  # that were in batches so far
        try:
            names = _reader(file, delimiter, encoding, {}, lambda row: "skip").schema.names
            self._own = _own_names(schema.names, names, file)
            kinds = dict.fromkeys(names, pa.binary()) | dict(zip(self._own, schema.types, strict=True))
            self._reader = _reader(file, delimiter, encoding, kinds, self._reject)
        except (pa.ArrowException, OSError, UnicodeError) as error:
            raise self._unreadable(error) from error
        self._lines = QuotedLines(file, lambda: file.as_utf8(encoding), delimiter)
        self._others = [number for number, name in enumerate(names) if name not in self._own]
        for number in self._others:
            name = names[number]
            self._lines.note(name.partition("\n")[0], pa.array([name]), 0)  # the header may span rows, too

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields the wanted columns. At the end it checks the quotes and the last line."""
        try:
            for batch in self._reader:
                for number in self._others:
                    self._lines.note(batch.schema.names[number], batch.column(number), self.num_rows)
                for name in self._own:
                    self._lines.note_escapes(batch[name])
                self.num_rows += len(batch)
                yield converted(batch.select(self._own).rename_columns(self._schema.names), self._schema)
        except (pa.ArrowException, OSError, UnicodeError) as error:
            raise self._unreadable(error) from error
        self._lines.report(lambda position: rows_of(self._skipped, position))
        self._warn_without_end()

    def _reject(self, row):
        number = self._first_row + row.number - 2  # Arrow counts from 1 and includes the header
        self._skipped.append(number)
        num_ends = num_line_ends(row.text)
        inside = f", and {num_ends} line ends inside quotes" if num_ends else ""
        self._bad.reject(
            number, f"found {row.actual_columns} fields, expected {row.expected_columns}{inside}"
        )
        return "skip"

    def _unreadable(self, error) -> ValueError:
        if isinstance(error, UnicodeError):
            return _not_decoded(self._file, self._encoding, error)
        return unreadable(self._file, error)

    def _warn_without_end(self):
        """Warns of a last line without a line end. Decompression itself detects a truncated file."""
        if self._file.path.lower().endswith((".gz", ".bz2", ".zst", ".lz4")):
            return
        with self._file.file_system.open_input_file(self._file.path) as file:
            file.seek(max(0, file.size() - 40))
            last = file.read()
        if not last.decode(self._encoding or "utf-8", "replace").endswith(("\n", "\r")):
            warn(
                f"{self._file}: the last line has no line end ({last.splitlines()[-1]!r}). It was read as it "
                "is. If the file is truncated there, fetch it again."
            )


def _own_names(columns, names, file) -> list[str]:
    """Returns how a file's header spells the wanted columns."""
    own = own_names(columns, names)
    if own is None:
        check_columns(columns, plain_names(names), file, _NO_HEADER)
    check_columns(own or [], names, file)
    return own or []


def _reader(file, delimiter, encoding, kinds, reject) -> pyarrow.csv.CSVStreamingReader:
    return pyarrow.csv.open_csv(
        file.as_utf8(encoding),
        # With threads, Arrow does not know the number of an invalid row.
        pyarrow.csv.ReadOptions(use_threads=False, block_size=_BLOCK),
        pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=reject),
        pyarrow.csv.ConvertOptions(column_types=kinds),
    )


def _not_decoded(file, encoding, error) -> ValueError:
    where = "it is not" if encoding else "its header is not"
    return ValueError(
        f"{file} must be {encoding or 'UTF-8'}, but {where} ({error}): save it as UTF-8, or pass encoding= "
        '"latin-1", "cp1252" or what it is. (What Excel calls Unicode text is UTF-16.)'
    )
