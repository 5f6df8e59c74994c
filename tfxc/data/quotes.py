"""Quotes in text files: how many lines a quoted field spans; whether a quote is closed, and not too early."""

import codecs
import io
import re
from collections.abc import Collection
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfxc.data.warn import warn

_BYTES_PER_CHUNK = 1 << 18  # fits into the cache, together with the arrays made of it
_QUOTE, _LINE_FEED, _RETURN, _BACKSLASH = b'"\n\r\\'
DOUBLED = (
    r'in CSV, quotes inside quotes are doubled, so write "" for \", or pass the data frame of '
    r'pandas.read_csv(path, escapechar="\\") to tfxc.data.from_frame'
)


def num_line_ends(text: str) -> int:
    r"""Returns the number of line ends in a text: ``\n``, ``\r\n`` or ``\r``."""
    return text.count("\n") or text.count("\r")


def line_break_in(what: str) -> str:
    """Returns the reason why a row is bad whose user, item or time holds a line break."""
    return f"the {what} holds a line break, which may come from a quote that is not closed"


class QuotedLines:
    r"""Finds fields that Arrow reads as they are not meant, since a quote is not closed, or closes too early.

    A field with an unclosed quote swallows the rows after it. Of `"Weird Al" Yankovic` Arrow drops the
    quotes. The file, which `opened()` opens as UTF-8, is read again only if it has quotes, or some field
    holds line ends. The delimiter is one ASCII character. A quote that closes too early counts in `columns`,
    which has the numbers of those that are read.
    """

    def __init__(self, path, opened, delimiter: str, columns: Collection[int] = ()):
        self._path, self._opened, self._delimiter, self._columns = path, opened, delimiter, columns
        self._has_quotes = self._has_escapes = False
        self._found: dict[str, tuple[int, int]] = {}  # column -> number of line ends, first row with one

    def watched(self) -> io.RawIOBase:
        """Opens the file, and notes whether it has quotes while it is read."""
        return _Watched(self._opened(), self._note_quotes)

    def _note_quotes(self, block):
        self._has_quotes = self._has_quotes or b'"' in block

    def note(self, name: str, fields: pa.Array, first_position: int):
        """Counts the line ends in a column's strings. The first string is that of row `first_position`."""
        data = np.frombuffer(fields.buffers()[2] or b"", np.uint8)
        number = int(np.count_nonzero(data == _LINE_FEED) or np.count_nonzero(data == _RETURN))
        if not number:
            return
        if name not in self._found:
            has_line_end = pc.match_substring_regex(fields, "[\r\n]")
            self._found[name] = (0, first_position + pc.index(has_line_end, True).as_py())
        before, position = self._found[name]
        self._found[name] = (before + number, position)

    def note_escapes(self, fields: pa.Array):
        """Notes whether a string holds a backslash and a quote, as `"a \"b\" c"` does when it is split."""
        if not self._has_escapes and pa.types.is_binary(fields.type):
            data = fields.buffers()[2] or b""
            may_have = all(
                np.count_nonzero(np.frombuffer(data, np.uint8) == sign) for sign in (_BACKSLASH, _QUOTE)
            )
            self._has_escapes = may_have and pc.any(pc.match_substring_regex(fields, r'\\.*"')).as_py()

    def report(self, row_of):
        """Warns of the line ends that were noted; ``row_of`` numbers a noted row in the file.

        Raises ValueError if quotes are escaped by a backslash; if there is text after the quote that closes a
        field; if there are line ends, and a quote is not closed or has text on both sides.
        """
        line = _broken_quote(self._opened, self._delimiter, escaped=True) if self._has_escapes else None
        if line is not None:
            raise ValueError(
                f"{self._path}: line {line} has a backslash before a quote, which would end the field: "
                f"{DOUBLED}."
            )
        is_broken = self._has_quotes or self._found
        line = _broken_quote(self._opened, self._delimiter) if is_broken else None
        if not self._found:
            line = None if line is None else _early_end(self._opened, self._delimiter, self._columns)
            if line is not None:
                raise ValueError(
                    f"{self._path}: in line {line} text follows the quote that ends a field, whose quotes "
                    'would get lost: quote the whole field and double the quotes inside, as in """Weird Al"" '
                    'Yankovic"; or let tfxc.data.read_csv leave out such rows by on_error="skip".'
                )
            return
        found = "; ".join(
            f"{name!r} holds {number} line ends, the first in row {row_of(position)}"
            for name, (number, position) in self._found.items()
        )
        if line is not None:
            raise ValueError(
                f"{self._path}: the quote in line {line} is not closed, or is next to text, so a field may "
                f"hold the rows after it: {found}. Close the quote; or quote the whole field and double the "
                'quotes inside, as in "27"" monitor".'
            )
        warn(
            f"{self._path}: there are line ends inside quotes: {found}. If these are not texts of several "
            "lines, a quote is not closed, and rows are lost."
        )


class _Watched(io.RawIOBase):
    """A stream that shows each block that is read to a function."""

    def __init__(self, stream, seen):
        self._stream, self._seen = stream, seen

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        block = self._stream.read(size)
        self._seen(block)
        return block


def _broken_quote(opened, delimiter: str, escaped: bool = False) -> int | None:
    """Returns the line of a quote that is not closed, or neither at a field's end nor next to a quote.

    With `escaped`, only a closing quote behind a backslash, with text behind it, counts.
    """
    is_at_end = np.zeros(256, bool)
    is_at_end[[ord(delimiter), _LINE_FEED, _RETURN, _QUOTE]] = True
    num_quotes, line_of_last, line, is_over = 0, None, 0, False
    with opened() as file:
        rest = b"\n" + file.read(len(codecs.BOM_UTF8)).removeprefix(codecs.BOM_UTF8)  # line 1 begins
        while not is_over:
            chunk = file.read(_BYTES_PER_CHUNK)
            is_over = not chunk
            text = rest + (chunk or b"\n")
            data = np.frombuffer(text, np.uint8)
            # The first and last byte wait for their neighbours: the bytes on both sides of a quote count.
            quotes = 1 + np.flatnonzero(data[1:-1] == _QUOTE)
            opening, closing = quotes[num_quotes % 2 :: 2], quotes[1 - num_quotes % 2 :: 2]
            if escaped:
                opening, closing = opening[:0], closing[data[closing - 1] == _BACKSLASH]
            broken = [*opening[~is_at_end[data[opening - 1]]], *closing[~is_at_end[data[closing + 1]]]]
            if broken:
                return line + text.count(b"\n", 0, min(broken))
            if len(opening):
                line_of_last = line + text.count(b"\n", 0, opening[-1])
            num_quotes += len(quotes)
            rest = text[-2:]
            line += text.count(b"\n", 0, -2)
    return line_of_last if num_quotes % 2 and not escaped else None


def _early_end(opened, delimiter: str, columns) -> int | None:
    """Returns the line of the first record that has a column whose quote closes before the field ends.

    A quote inside a field that does not begin with one, such as `27" monitor`, is part of its text. Fields of
    several lines do not count: the rows of those that are read are bad anyway.
    """
    sign = re.escape(delimiter.encode())
    ends = sign + rb"\r\n"
    quoted, in_line = (rb'"[^%b]*+(?:""[^%b]*+)*+"' % (2 * (none,)) for none in (b'"', rb'"\r\n'))
    plain = rb'[^"%b][^%b]*+' % (ends, ends)
    record = rb"(?:%b|%b|)(?:%b(?:%b|%b|))*+[\r\n]++" % (plain, quoted, sign, plain, quoted)
    in_order = re.compile(rb"(?:%b)*+" % record)
    field = re.compile(
        rb"(?:%b|%b(?P<early>[^%b]++)|%b[^%b]*+|)([%b])" % (plain, in_line, ends, quoted, ends, ends)
    )
    line, is_over = 1, False
    with opened() as file:
        rest = file.read(len(codecs.BOM_UTF8)).removeprefix(codecs.BOM_UTF8)
        while not is_over:
            chunk = file.read(_BYTES_PER_CHUNK)
            is_over = not chunk
            text, start = rest + (chunk or b"\n"), 0
            while True:
                end = cast(re.Match, in_order.match(text, start)).end()  # matches at least nothing
                line += text.count(b"\n", start, end)
                # One record that is not complete, or in which a quote closes early.
                start, found, column = end, field.match(text, end), 0
                while found and not (found["early"] and column in columns) and found[2] not in b"\r\n":
                    column, found = column + 1, field.match(text, found.end())
                if not found:
                    break
                if found["early"] and column in columns:
                    return line
                start, line = found.end(), line + text.count(b"\n", start, found.end())
            rest = text[start:]
    return None
