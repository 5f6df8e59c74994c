"""Reads a text file as lines, fields or CSV records, and accounts for the lines that cannot be used."""

import contextlib
import csv
import gzip
import io
import logging
import lzma
import os
import zlib
from collections.abc import Iterator

from tqdm import tqdm

from tfxc.data.bad_rows import BadRows
from tfxc.data.files import known_encoding, one_file
from tfxc.data.quotes import DOUBLED
from tfxc.data.warn import warn

_logger = logging.getLogger(__name__)
_PROGRESS_BYTES = 32 << 20
_PROGRESS_LINES = 1 << 14
_HEAD = 1 << 16
_MARK = "\ufeff"  # of the order of bytes; it is no text


class LineReader:
    """Iterates over the decoded lines of a plain, `.gz` or `.xz` file and remembers the bad ones.

    The reader itself rejects a line that is not UTF-8, and never yields it. The caller rejects others with
    `reject`, and ends with `report`, which obeys `on_error`, `"raise"` or `"skip"`. The reader warns if the
    last line has no line end, and logs the number of lines. On a terminal it shows a progress bar for files
    of more than 32 MiB. `number` is that of the current line, from 1, and `bad` collects the bad ones.

    Args:
        path: the file or its URI.
        on_error: what `report` does.
        encoding: None for UTF-8. Only a file in UTF-8 can have single lines that are none.

    Raises:
        ValueError: for what is no path of one file, a file of another compression or of no text, which the
            suffix tells, or an unknown encoding.
    """

    def __init__(self, path, on_error: str = "raise", encoding: str | None = None):
        self.file = one_file(path)
        self.path = os.fspath(path)
        if self.file.packing not in ("", ".gz", ".xz") or self.path.endswith(".zip"):
            raise ValueError(f"{self.path} must be plain text, .gz or .xz: decompress it first.")
        if self.file.kind == "parquet":
            raise ValueError(f"{self.path} is a file of Parquet: tfxc.data.from_frame reads it.")
        self.number = 0
        self.bad = BadRows(self.path, "line", on_error)
        self._first = None  # the first line of the current CSV record
        self._has_escape = False  # a backslash before a quote in that record
        self._encoding = known_encoding(encoding)

    def head(self) -> str:
        """Returns the first 64 KiB as text."""
        with self.file.open() as raw, self._readable():
            head = (
                _decompressed(self.file.packing, raw).read(_HEAD).decode(self._encoding or "utf-8", "replace")
            )
            return head.removeprefix(_MARK)

    def __iter__(self) -> Iterator[str]:
        size = self.file.size() or 0
        quiet = None if size > _PROGRESS_BYTES else True  # None: show the bar on a terminal only
        bar = tqdm(total=size, unit="B", unit_scale=True, disable=quiet)
        with self.file.open() as raw, bar, self._readable():
            lines = _decompressed(self.file.packing, raw)
            if self._encoding is None:
                yield from self._decoded(lines, raw, bar)
            else:
                with io.TextIOWrapper(lines, self._encoding, newline="\n") as text:
                    yield from self._decoded(text, raw, bar)

    @contextlib.contextmanager
    def _readable(self):
        """Turns what goes wrong in decompressing and decoding into a ValueError."""
        try:
            yield
        except UnicodeError as error:
            raise ValueError(
                f"{self.path} must be {self._encoding}, but line {self.number + 1} or one soon after it is "
                f"not ({error}): pass another encoding."
            ) from error
        except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(
                f"{self.path} cannot be decompressed after line {self.number} ({error}): the file is "
                "truncated, damaged, or not what its suffix says. Fetch it again."
            ) from error

    def fields(self, delimiter: str | None) -> Iterator[list[str]]:
        """Yields the stripped fields of each line that is not blank. None splits at white space."""
        for line in self:
            fields = line.split() if delimiter is None else [part.strip() for part in line.split(delimiter)]
            if any(fields):
                yield fields

    def records(self, delimiter: str) -> Iterator[list[str]]:
        """Yields the fields of each CSV record. A quoted field may span several lines."""
        records = csv.reader(
            self._record_lines(), delimiter=delimiter, strict=True, skipinitialspace=not delimiter.isspace()
        )
        while True:
            self._first, self._has_escape = None, False
            try:
                record = next(records)
            except StopIteration:
                return
            except csv.Error as error:
                self.reject(f"{error}; {DOUBLED}" if self._has_escape else error)
                continue
            if len(record) > 1 or any(map(str.strip, record)):  # a line of blanks is no record
                yield record

    def _record_lines(self):
        for line in self:
            self._first = self._first or self.number
            self._has_escape |= '\\"' in line
            yield line

    def _decoded(self, lines, raw, bar) -> Iterator[str]:
        line: str | bytes = b"\n"
        for number, line in enumerate(lines, 1):
            self.number = number
            if number % _PROGRESS_LINES == 0:
                bar.update(raw.tell() - bar.n)
            try:
                text = line if isinstance(line, str) else line.decode()
            except UnicodeDecodeError as error:
                self.bad.reject(
                    number, f"not UTF-8 at byte {error.start}: {line[:40]!r}; pass the file's encoding"
                )
            else:
                yield text.removeprefix(_MARK) if number == 1 else text
        _logger.info("%s: %d lines", self.path, self.number)
        if line[-1:] not in ("\n", b"\n"):
            warn(
                f"{self.path}: line {self.number}, the last, has no line end ({line[-40:]!r}). It was read "
                "as it is. If the file is truncated there, fetch it again."
            )

    def reject(self, reason):
        """Counts the current line, or CSV record, as bad."""
        spans_lines = self._first is not None and self._first < self.number
        several = f" (of lines {self._first} to {self.number})" if spans_lines else ""
        self.bad.reject(self.number, f"{reason}{several}")

    def report(self):
        """Raises a ValueError about the bad lines, or warns once if they are to be skipped."""
        self.bad.report(self.number)


def _decompressed(packing, raw):
    if packing == ".gz":
        return gzip.GzipFile(fileobj=raw)
    if packing == ".xz":
        return io.BufferedReader(lzma.LZMAFile(raw))
    return raw
