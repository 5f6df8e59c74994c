"""Quotes in text files: how many lines a quoted field spans; whether a quote is closed, and not too early."""

import csv
import io
import re
from collections.abc import Collection

from tfxc.data.warn import warn

DOUBLED = (
    r'in CSV, quotes inside quotes are doubled, so write "" for \", or pass the data frame of '
    r'pandas.read_csv(path, escapechar="\\") to tfxc.data.from_frame'
)
_LONGEST_FIELD = 1 << 30  # Arrow has read it before


def num_line_ends(text: str) -> int:
    r"""Returns the number of line ends in a text: ``\n``, ``\r\n`` or ``\r``."""
    return text.count("\n") or text.count("\r")


def line_break_in(what: str) -> str:
    """Returns the reason why a row is bad whose user, item or time holds a line break."""
    return f"the {what} holds a line break, which may come from a quote that is not closed"


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
    rows after it, and of `"Weird Al" Yankovic` Arrow drops the quotes. `read` has the numbers of the columns
    that are read. Only there quotes count that close early, and line breaks make bad rows anyway.
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
            row, is_over = first_row - 1, False  # of the header
            while not is_over:
                try:
                    for record in records:
                        if len(lines) > 1:
                            for name, field in _unread(names, record, read):
                                number, first = found.get(name, (0, max(row, 0)))
                                found[name] = number + num_line_ends(field), first
                        row += len(record) > 1 or any(map(str.strip, record))  # blanks are no row
                        lines.clear()
                    is_over = True
                except csv.Error:
                    _refuse(path, records.line_num, lines, delimiter, read)
                    row += 1
                    lines.clear()
    finally:
        csv.field_size_limit(limit)
    told = [f"{name!r} holds {n} line ends, the first in row {row}" for name, (n, row) in found.items()]
    if told:
        warn(
            f"{path}: there are line ends inside quotes: {'; '.join(told)}. If these are not texts of "
            "several lines, a quote is not closed, and rows are lost."
        )


def _unread(names, record, read):
    """Yields the names and texts of the fields of a record that have line ends and are not read."""
    for column, field in enumerate(record[: len(names)]):
        if column not in read and num_line_ends(field):
            yield names[column].partition("\n")[0], field


def _refuse(path, line, lines, delimiter, read):
    """Raises ValueError if a record with a broken quote, whose last line has this number, loses anything."""
    ends = f"{re.escape(delimiter)}\r\n"
    field = re.compile(rf'(?:"([^"]*+(?:""[^"]*+)*+)("?))?([^{ends}]*)(?:[{ends}]|$)')
    for column, (inside, closing, rest) in enumerate(field.findall("".join(lines))):
        if column in read and closing and rest and not num_line_ends(inside):
            if inside.endswith("\\"):
                raise ValueError(
                    f"{path}: line {line} has a backslash before a quote, which would end the field: "
                    f"{DOUBLED}."
                )
            raise ValueError(
                f"{path}: in line {line} text follows the quote that ends a field, whose quotes would get "
                'lost: quote the whole field and double the quotes inside, as in """Weird Al"" Yankovic"; or '
                'let tfxc.data.read_csv leave out such rows by on_error="skip".'
            )
        if column not in read and (rest or not closing) and num_line_ends(inside):
            raise ValueError(
                f"{path}: the quote in line {line - len(lines) + 1} is not closed, or is next to text in "
                f"line {line}, so a field holds the rows between. Close the quote; or quote the whole field "
                'and double the quotes inside, as in "27"" monitor".'
            )
