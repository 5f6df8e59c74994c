"""Quotes in text files: the lines that fields in them take in, and whether one is not closed."""

import codecs
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_BYTES_PER_CHUNK = 1 << 18  # in the cache, with what is made of it
_QUOTE, _LINE_FEED, _RETURN = b'"\n\r'


def num_line_ends(text: str) -> int:
    r"""How many line ends a text holds.

    Example:
        >>> num_line_ends("one\r\ntwo\r\n"), num_line_ends("one\rtwo")
        (2, 1)
    """
    return text.count("\n") or text.count("\r")


class QuotedLines:
    r"""Tells text of several lines from rows that a field took in because its quote is not closed.

    The file is looked at again only where a field holds line ends.

    Args:
        path: of the file, plain or `.gz`.
        delimiter: one ASCII character between the fields.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "log.csv"
        >>> _ = path.write_text('user,title\n1,"Alien\n2,Brazil\n')
        >>> lines = QuotedLines(path, ",")
        >>> lines.note("title", pa.array(["Alien\n2,Brazil\n"]), 0)
        >>> lines.report(lambda position: position)
        Traceback (most recent call last):
        ...
        ValueError: ...log.csv: the quote in line 2 is not closed, or stands next to text...
    """

    def __init__(self, path, delimiter: str):
        self._path, self._delimiter = path, delimiter
        self._found: dict[str, tuple[int, int]] = {}  # of a column: line ends, and the first row with one

    def note(self, name: str, fields: pa.Array, first_position: int):
        """Notes the line ends in the strings of a column, the first of them that of a row."""
        data = np.frombuffer(fields.buffers()[2] or b"", np.uint8)
        number = int(np.count_nonzero(data == _LINE_FEED) or np.count_nonzero(data == _RETURN))
        if not number:
            return
        if name not in self._found:
            has_line_end = pc.match_substring_regex(fields, "[\r\n]")
            self._found[name] = (0, first_position + pc.index(has_line_end, True).as_py())
        before, position = self._found[name]
        self._found[name] = (before + number, position)

    def report(self, row_of):
        """Warns of the line ends that were noted.

        Args:
            row_of: the number of a row in the file, by its position among those noted.

        Raises:
            ValueError: if there are some, and a quote is not closed or has text on both sides.
        """
        if not self._found:
            return
        found = "; ".join(
            f"{name!r} holds {number} line ends, the first in row {row_of(position)}"
            for name, (number, position) in self._found.items()
        )
        byte = _broken_quote(self._path, self._delimiter)
        if byte is not None:
            line = _line_at(self._path, byte)
            raise ValueError(
                f"{self._path}: the quote in line {line} is not closed, or stands next to text, and a field "
                f"may hold the rows behind it: {found}. Close it; or put the field in quotes, and those in "
                'its text twice, as in "27"" monitor".'
            )
        warnings.warn(
            f"{self._path}: there are line ends inside of quotes: {found}. If these are not texts of several "
            "lines, a quote is not closed, and rows are lost.",
            stacklevel=8,
        )


def _broken_quote(path, delimiter: str) -> int | None:
    """The byte of a quote that is neither at the end of a field nor beside another one, or is not closed."""
    is_at_end = np.zeros(256, bool)
    is_at_end[[ord(delimiter), _LINE_FEED, _RETURN, _QUOTE]] = True
    num_quotes, last_opening, start, is_over = 0, 0, -1, False
    with pa.input_stream(path, compression="detect") as file:
        rest = b"\n" + file.read(len(codecs.BOM_UTF8))
        if rest.endswith(codecs.BOM_UTF8):
            rest, start = b"\n", start + len(codecs.BOM_UTF8)
        while not is_over:
            chunk = file.read(_BYTES_PER_CHUNK)
            is_over = not chunk
            data = np.frombuffer(rest + (chunk or b"\n"), np.uint8)
            # Not the first and the last byte: what is on both sides of a quote counts.
            quotes = 1 + np.flatnonzero(data[1:-1] == _QUOTE)
            opening, closing = quotes[num_quotes % 2 :: 2], quotes[1 - num_quotes % 2 :: 2]
            broken = [*opening[~is_at_end[data[opening - 1]]], *closing[~is_at_end[data[closing + 1]]]]
            if broken:
                return start + int(min(broken))
            if len(opening):
                last_opening = start + int(opening[-1])
            num_quotes += len(quotes)
            rest = data[-2:].tobytes()
            start += len(data) - 2
    return last_opening if num_quotes % 2 else None


def _line_at(path, byte: int) -> int:
    line = 1
    with pa.input_stream(path, compression="detect") as file:
        for start in range(0, byte, _BYTES_PER_CHUNK):
            line += file.read(min(byte - start, _BYTES_PER_CHUNK)).count(b"\n")
    return line
