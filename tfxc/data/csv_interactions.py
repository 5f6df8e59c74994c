"""Interaction logs as CSV files with a header of column names."""

import csv
import os
from collections.abc import Iterator

from tfxc.data.interactions import InteractionLog
from tfxc.data.line_reader import LineReader
from tfxc.data.quotes import num_line_ends
from tfxc.data.sequences import Sequences
from tfxc.data.vocabulary import Vocabulary


def read_csv(
    path: str | os.PathLike[str],
    user: str,
    item: str,
    time: str | None = None,
    delimiter: str = ",",
    vocabulary: Vocabulary | None = None,
    on_error: str = "raise",
) -> Sequences:
    """Reads a CSV file with one interaction a record into one sequence a user, oldest first.

    Like `read_interactions`, but columns are found by the names in the first record and fields may be quoted.
    Blanks around a user or an item are cut off, also inside quotes.

    Args:
        path: the file, plain, `.gz` or `.xz`.
        user: name of the column of users (or sessions).
        item: name of the column of items.
        time: name of the column of times, numbers or ISO 8601 dates; None keeps the order of the file.
        delimiter: one character between the fields.
        vocabulary: class ids to use; a record with an item outside it is a bad one.
        on_error: `"raise"`, or `"skip"` to leave bad records out with one warning.

    Raises:
        ValueError: for a missing column, for bad records (as `read_interactions`, and broken quotes, or a
            line break in a user or item; the line number is that of the record's last line, the reason names
            all of its lines), for a file without any interaction.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "log.csv"
        >>> _ = path.write_text('time,item,user\\n2020-02-02,"tea, green",ann\\n2020-01-01,milk,ann\\n')
        >>> log = read_csv(path, user="user", item="item", time="time")
        >>> log.vocabulary.decode(log[0])
        ['milk', 'tea, green']
    """
    lines = LineReader(path, on_error)
    log = InteractionLog(vocabulary)
    records = _records(lines, delimiter)
    header, _ = next(records, ([], 0))
    wanted = [user, item] if time is None else [user, item, time]
    missing = [name for name in wanted if name not in header]
    if missing:
        lines.report()  # a first line that could not be read is the reason
        raise ValueError(f"{path} has no column {missing[0]!r}; its columns are {header}.")
    twice = [name for name in wanted if header.count(name) > 1]
    if twice:
        raise ValueError(f"{path} has more than one column {twice[0]!r}: name them apart.")
    positions = [header.index(name) for name in wanted]
    for record, first_line in records:
        try:
            if len(record) != len(header):
                raise ValueError(f"found {len(record)} fields, expected {len(header)}")
            for role, position in zip(("user", "item"), positions, strict=False):
                if num_line_ends(record[position]):
                    raise ValueError(
                        f"the {role} id holds a line break, as behind a quote that is not closed"
                    )
            log.add(*[record[position].strip() for position in positions])
        except ValueError as error:
            _reject(lines, first_line, error)
    lines.report()
    return log.sequences(path)


def _records(lines: LineReader, delimiter: str) -> Iterator[tuple[list[str], int]]:
    """The records that are not empty, each with its first line; the last one is `lines.number`."""
    first_line = 0

    def noted():
        nonlocal first_line
        for line in lines:
            first_line = first_line or lines.number
            yield line

    reader = csv.reader(noted(), delimiter=delimiter, strict=True)
    while True:
        first_line = 0
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            _reject(lines, first_line, error)
            continue
        if record:
            yield record, first_line


def _reject(lines: LineReader, first_line: int, error: Exception):
    several = f" (of lines {first_line} to {lines.number})" if first_line < lines.number else ""
    lines.reject(f"{error}{several}")
