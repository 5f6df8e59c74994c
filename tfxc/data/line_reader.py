"""Reads a text file as lines, fields or CSV records, and accounts for the lines that cannot be used."""

import csv
import gzip
import io
import logging
import lzma
import os
import warnings
import zlib
from collections.abc import Iterator

from tqdm import tqdm

from tfxc.data.bad_rows import BadRows

_logger = logging.getLogger(__name__)
_PROGRESS_BYTES = 32 << 20
_PROGRESS_LINES = 1 << 14


class LineReader:
    """Iterates over the decoded lines of a plain, `.gz` or `.xz` file and remembers the bad ones.

    The reader itself rejects a line that is not UTF-8, and never yields it. The caller rejects others with
    `reject`, and ends with `report`, which obeys `on_error`, `"raise"` or `"skip"`. The reader warns if the
    last line has no line end, and logs the number of lines. On a terminal it shows a progress bar for files
    of more than 32 MiB. `number` is that of the current line, from 1.

    Raises:
        ValueError: for a file of another compression, which the suffix tells.
    """

    def __init__(self, path, on_error: str = "raise"):
        self.path = os.fspath(path)
        if self.path.endswith((".bz2", ".zip", ".zst")):
            raise ValueError(f"{self.path} must be plain text, .gz or .xz: decompress it first.")
        self.number = 0
        self._first = None  # the first line of the current CSV record
        self._bad = BadRows(self.path, "line", on_error)

    def __iter__(self) -> Iterator[str]:
        size = os.path.getsize(self.path)
        quiet = None if size > _PROGRESS_BYTES else True  # None: show the bar on a terminal only
        with open(self.path, "rb") as raw, tqdm(total=size, unit="B", unit_scale=True, disable=quiet) as bar:
            try:
                yield from self._decoded(_decompressed(self.path, raw), raw, bar)
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
        records = csv.reader(self._record_lines(), delimiter=delimiter, strict=True)
        while True:
            self._first = None
            try:
                record = next(records)
            except StopIteration:
                return
            except csv.Error as error:
                self.reject(error)
                continue
            if record:
                yield record

    def _record_lines(self):
        for line in self:
            self._first = self._first or self.number
            yield line

    def _decoded(self, lines, raw, bar) -> Iterator[str]:
        line = b"\n"
        for number, line in enumerate(lines, 1):
            self.number = number
            if number % _PROGRESS_LINES == 0:
                bar.update(raw.tell() - bar.n)
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                self._bad.reject(number, f"not UTF-8 at byte {error.start}: {line[:40]!r}")
            else:
                yield text
        _logger.info("%s: %d lines", self.path, self.number)
        if not line.endswith(b"\n"):
            warnings.warn(
                f"{self.path}: line {self.number}, the last, has no line end ({line[-40:]!r}). It was read "
                "as it is. If the file is truncated there, fetch it again.",
                stacklevel=5,
            )

    def reject(self, reason):
        """Counts the current line, or CSV record, as bad."""
        spans_lines = self._first is not None and self._first < self.number
        several = f" (of lines {self._first} to {self.number})" if spans_lines else ""
        self._bad.reject(self.number, f"{reason}{several}")

    def report(self):
        """Raises a ValueError about the bad lines, or warns once if they are to be skipped."""
        self._bad.report(self.number)


def _decompressed(path, raw):
    if path.endswith(".gz"):
        return gzip.GzipFile(fileobj=raw)
    if path.endswith(".xz"):
        return io.BufferedReader(lzma.LZMAFile(raw))
    return raw
