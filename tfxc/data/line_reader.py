"""Reading a text file line by line, with an account of the lines that could not be used."""

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

    `number` is the number of the current line (from 1). A line that is not UTF-8 is rejected here and never
    comes out; the caller rejects the others with `reject` and closes the account with `report`. A last line
    without an end comes out with a warning, and how many lines there were is logged. Files of more than
    32 MiB show a progress bar on a terminal.

    Args:
        path: the file; the suffix tells the compression.
        on_error: `"raise"` or `"skip"`, what `report` does about bad lines.

    Raises:
        ValueError: for a file of another compression.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "lines.txt"
        >>> _ = path.write_bytes(b"good\\nbad\\xff\\n")
        >>> lines = LineReader(path)
        >>> list(lines)
        ['good\\n']
        >>> lines.report()
        Traceback (most recent call last):
        ValueError: ...lines.txt: 1 bad of 2 lines
          line 2: not UTF-8 at byte 3: ...
    """

    def __init__(self, path, on_error: str = "raise"):
        self.path = os.fspath(path)
        if self.path.endswith((".bz2", ".zip", ".zst")):
            raise ValueError(f"{self.path}: only .gz and .xz are decompressed. Unpack it first.")
        self.number = 0
        self._bad = BadRows(self.path, "line", on_error)

    def __iter__(self) -> Iterator[str]:
        size = os.path.getsize(self.path)
        quiet = None if size > _PROGRESS_BYTES else True  # None: shown on a terminal alone
        with open(self.path, "rb") as raw, tqdm(total=size, unit="B", unit_scale=True, disable=quiet) as bar:
            try:
                yield from self._decoded(_decompressed(self.path, raw), raw, bar)
            except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
                raise ValueError(
                    f"{self.path} cannot be decompressed past line {self.number} ({error}): "
                    f"it is cut short, damaged, or not what its suffix says. Fetch it again."
                ) from error

    def _decoded(self, lines, raw, bar) -> Iterator[str]:
        line = b"\n"
        for number, line in enumerate(lines, 1):
            self.number = number
            if number % _PROGRESS_LINES == 0:
                bar.update(raw.tell() - bar.n)
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                self.reject(f"not UTF-8 at byte {error.start}: {line[:40]!r}")
            else:
                yield text
        _logger.info("%s: %d lines", self.path, self.number)
        if not line.endswith(b"\n"):
            warnings.warn(
                f"{self.path}: line {self.number}, the last, has no end ({line[-40:]!r}). It was read as it "
                "stands; if the file was cut short there, fetch it again.",
                stacklevel=5,
            )

    def reject(self, reason):
        """Counts the current line as bad."""
        self._bad.reject(self.number, reason)

    def report(self):
        """Raises a ValueError about the bad lines, or warns once when they are to be skipped."""
        self._bad.report(self.number)


def _decompressed(path, raw):
    if path.endswith(".gz"):
        return gzip.GzipFile(fileobj=raw)
    if path.endswith(".xz"):
        return io.BufferedReader(lzma.LZMAFile(raw))
    return raw
