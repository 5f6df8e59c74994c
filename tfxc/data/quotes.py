"""Quotes in text files: how many lines a quoted field spans, and whether a quote is not closed."""

import codecs

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
    r"""Distinguishes fields that hold text of several lines from fields whose quote is not closed.

    A field with an unclosed quote swallows the rows after it. The file, which `opened()` opens as UTF-8, is
    read again only if some field holds line ends, or a backslash before a quote. The delimiter is one ASCII
    character.
    """

    def __init__(self, path, opened, delimiter: str):
        self._path, self._opened, self._delimiter = path, opened, delimiter
        self._has_escapes = False
        self._found: dict[str, tuple[int, int]] = {}  # column -> number of line ends, first row with one

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

        Raises ValueError if there are line ends, and a quote is not closed or has text on both sides; or if
        quotes are escaped by a backslash.
        """
        line = _broken_quote(self._opened, self._delimiter, escaped=True) if self._has_escapes else None
        if line is not None:
            raise ValueError(
                f"{self._path}: line {line} has a backslash before a quote, which would end the field: "
                f"{DOUBLED}."
            )
        if not self._found:
            return
        found = "; ".join(
            f"{name!r} holds {number} line ends, the first in row {row_of(position)}"
            for name, (number, position) in self._found.items()
        )
        line = _broken_quote(self._opened, self._delimiter)
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
