"""Reads a text file as lines, fields or CSV records, with the names that its first line tells."""

import contextlib
import csv
import io
import logging
import os
import re
from collections.abc import Iterable, Iterator

from tqdm import tqdm

from tfxc.data.files import DAMAGED, one_file
from tfxc.data.table import BadRows, check_columns
from tfxc.data.warn import warn, warn_of_cut

USER_NAMES = {"user", "session", "customer", "visitor", "reviewer"}  # as `normalized` returns them
_TYPED = re.compile(r"(.+):(?:token|float)(?:_seq)?")
DOUBLED = (
    r'in CSV, quotes inside quotes are doubled, so write "" for \", as in """Weird Al"" Yankovic", or pass '
    r'the data frame of pandas.read_csv(path, escapechar="\\") to tfxc.data.from_frame'
)
_LONG = ": a quote may not be closed, or tfxc.data.from_frame reads fields so long"
_logger = logging.getLogger(__name__)
_PROGRESS_BYTES = 32 << 20
_PROGRESS_LINES = 1 << 14
_HEAD = 1 << 16
_MARK = "\ufeff"  # of the order of bytes; it is no text


class LineReader:
    """Iterates over the decoded lines of a file, plain or packed, and remembers the bad ones.

    The reader itself rejects a line that is not UTF-8, which only a file of encoding None can have. Whoever
    calls it rejects others, and ends with `report`, which obeys `on_error`. The reader warns if the last line
    has no line end, and logs the number of lines. `number` is that of the current line, from 1.
    """

    def __init__(self, path, on_error: str = "raise", encoding: str | None = None):
        self.file = one_file(path)
        self.path = os.fspath(path)
        if self.file.kind == "parquet":
            raise ValueError(f"{self.path} is a file of Parquet: tfxc.data.from_frame reads it.")
        self.number = 0
        self.bad = BadRows(self.path, "line", on_error)
        self._first = None  # the first line of the current CSV record
        self._has_escape = False  # a backslash before a quote in that record
        self._encoding = encoding

    def head(self) -> str:
        """Returns the first 64 KiB as text; ValueError for JSON, which has no fields or records."""
        with self._lines(None) as lines:
            head = lines.read(_HEAD).decode("utf-8", "replace").removeprefix(_MARK)
        if re.match(r'\{|\[\s*["\[{\d]', head):
            raise ValueError(
                f"{self.path} holds JSON: tfxc.data.from_frame reads JSON lines (.jsonl) of an interaction "
                "each, and tfxc.data.Sequences.from_lists takes lists of items."
            )
        return head

    def __iter__(self) -> Iterator[str]:
        return (line for line in self.every() if line is not None)

    def every(self) -> Iterator[str | None]:
        """Yields each line, and None for one that is not UTF-8, where its row counts."""
        size = self.file.size()
        quiet = None if size > _PROGRESS_BYTES else True  # None: show the bar on a terminal only
        line = b"\n"
        with (
            tqdm(total=size, unit="B", unit_scale=True, disable=quiet) as bar,
            self.file.open() as raw,
            self._lines(raw) as lines,
        ):
            for number, line in enumerate(_ended(lines), 1):
                self.number = number
                if number % _PROGRESS_LINES == 0:
                    bar.update(raw.tell() - bar.n)
                try:
                    text = line.decode()
                except UnicodeDecodeError as error:
                    why = f"not UTF-8 at byte {error.start}: {line[:40]!r}"
                    remedy = "save the file as UTF-8, or pass encoding= where a reader takes it"
                    self.bad.reject(number, f"{why}; {remedy}")
                    yield None
                else:
                    yield text.removeprefix(_MARK) if number == 1 else text
        _logger.info("%s: %d lines", self.path, self.number)
        if not line.endswith((b"\n", b"\r")):
            warn_of_cut(f"{self.path}: line {self.number}, the last,", line[-40:])

    @contextlib.contextmanager
    def _lines(self, raw) -> Iterator[io.BufferedReader]:
        """Opens the lines in UTF-8. What goes wrong in decompressing and decoding becomes a ValueError."""
        with io.BufferedReader(self.file.as_utf8(self._encoding, raw), _HEAD) as lines:
            try:
                yield lines
            except UnicodeError as error:
                raise ValueError(
                    f"{self.path} must be {self._encoding}, but line {self.number + 1} or one soon after it "
                    f"is not ({error}): pass another encoding."
                ) from error
            except DAMAGED as error:
                raise ValueError(
                    f"{self.path} cannot be decompressed after line {self.number} ({error}): the file is "
                    "truncated, damaged, or not what its suffix says. Fetch it again."
                ) from error

    def fields(self, delimiter: str | None) -> Iterator[list[str]]:
        """Yields the stripped fields of each line that is not blank. None splits at white space."""
        if delimiter is not None and not (isinstance(delimiter, str) and delimiter):
            raise ValueError(
                f"delimiter must be a string between the fields, such as ',', or None, but got {delimiter!r}."
            )
        for line in self:
            if delimiter is None and "\r" in line.rstrip("\r\n"):  # which would be split at, too
                self.reject("holds a carriage return, which may end a line: write all line ends alike")
                continue
            fields = line.split() if delimiter is None else [part.strip() for part in line.split(delimiter)]
            if any(fields):
                yield fields

    def records(self, delimiter: str) -> Iterator[list[str]]:
        """Yields the fields of each CSV record. A quoted field may span several lines."""
        if not (isinstance(delimiter, str) and len(delimiter) == 1):
            raise ValueError(
                f"delimiter must be one character between the fields, such as ',', but got {delimiter!r}. "
                "tfxc.data.read_interactions takes longer ones, for files without a header."
            )

        def lines():
            for line in self:
                self._first = self._first or self.number
                self._has_escape |= '\\"' in line
                yield line

        skips = not delimiter.isspace()
        records = csv.reader(lines(), delimiter=delimiter, strict=True, skipinitialspace=skips)
        while True:
            self._first, self._has_escape = None, False
            try:
                record = next(records)
            except StopIteration:
                return
            except csv.Error as error:
                hint = f"; {DOUBLED}" if self._has_escape else ""
                hint = _LONG if "field limit" in str(error) else hint
                self.reject(f"{error}{hint}")
                continue
            if len(record) > 1 or any(map(str.strip, record)):  # a line of blanks is no record
                yield record

    def reject(self, reason):
        """Counts the current line, or CSV record, as bad."""
        spans_lines = self._first is not None and self._first < self.number
        several = f" (of lines {self._first} to {self.number})" if spans_lines else ""
        self.bad.reject(self.number, f"{reason}{several}")

    def report(self):
        """Raises a ValueError about the bad lines, or warns once if they are to be skipped."""
        self.bad.report(self.number)


def num_line_ends(text: str) -> int:
    r"""Returns the number of line ends in a text: ``\n``, ``\r\n`` or ``\r``."""
    return text.count("\n") or text.count("\r")


def _ended(lines: Iterable[bytes]) -> Iterator[bytes]:
    r"""Yields lines, also of a file without any ``\n``, whose lines may end in ``\r``."""
    lines = iter(lines)
    first = next(lines, b"")
    yield from [first] if first.endswith(b"\n") else first.splitlines(True)
    yield from lines


def plain_names(header: Iterable[str]) -> list[str]:
    """Returns names of columns without blanks around them, and without RecBole's types if all have one."""
    names = [name.strip() for name in header]
    return [name.rpartition(":")[0] for name in names] if is_typed(names) else names


def is_typed(fields: list[str]) -> bool:
    """Whether all fields are names with a type of RecBole, such as `user_id:token`."""
    return bool(fields) and all(map(_TYPED.fullmatch, fields))


def warn_of_lists(own: Iterable[str], source):
    """Warns of columns that hold several values a field, as a header of RecBole says."""
    lists = [name.strip() for name in own if re.search(r":(token|float)_seq\s*$", name)]
    if lists:
        warn(
            f"{source}: the fields of {lists} hold several values each, and are read as one name: write a "
            "row for each value, or read whole sequences with tfxc.data.Sequences.from_lists."
        )


def normalized(name: str) -> str:
    """Returns the name of a column as the names of roles are written: "user" of "User_ID"."""
    return name.lower().replace("_", "").replace(" ", "").removesuffix("id")


def delimiter_hint(fields: Iterable[str]) -> str:
    """Returns what to add to a message about fields split at white space that hold a delimiter, or ""."""
    delimiter = next((own for own in ("::", ",", ";", "|") if own in " ".join(fields)), None)
    return "" if delimiter is None else f", and pass delimiter={delimiter!r}"


def own_names(wanted: list[str], header: list[str], source) -> list[str]:
    """Returns how a header spells the wanted names. Raises ValueError if it lacks one, or has one twice."""
    plain = plain_names(header)
    own = [name if name in header else header[plain.index(name)] for name in wanted if _has(header, name)]
    if len(own) < len(wanted):
        check_columns(wanted, plain, source, " If it has no header, tfxc.data.read_interactions reads it.")
    check_columns([name.strip() for name in own], [name.strip() for name in header], source)
    return own


def delimiter_of(head: str, wanted: list[str], suffix: str) -> str:
    """Returns the delimiter by which the first record of a text has all wanted names, or the usual one."""
    usual = "\t" if suffix in (".tsv", ".inter") else ","
    for delimiter in dict.fromkeys((usual, ",", "\t", ";", "|")):
        try:
            header = next(csv.reader(io.StringIO(head, newline=""), delimiter=delimiter), [])
        except csv.Error:
            continue
        if all(_has(header, name) for name in wanted):
            return delimiter
    return usual


def _has(header, name) -> bool:
    return name in header or name in plain_names(header)
