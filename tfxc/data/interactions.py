"""Interaction logs as text, read line by line: `user item [time]` a line, or CSV with a header."""

import os
import warnings
from array import array
from collections.abc import Sequence

import numpy as np

from tfxc.data.line_reader import LineReader
from tfxc.data.quotes import line_break_in, num_line_ends
from tfxc.data.sequences import Sequences
from tfxc.data.times import seconds
from tfxc.data.vocabulary import Vocabulary, name_ids

# Names of columns, as _normalized returns them.
_USER_NAMES = {"user", "session", "customer", "visitor", "reviewer"}
_ITEM_NAMES = {"item", "movie", "product", "article", "book", "track", "song", "asin"}
_TIME_NAMES = {"timestamp", "ts", "date", "datetime", "eventtime", "created", "createdat"}


def read_interactions(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    delimiter: str | None = None,
    vocabulary: Vocabulary | None = None,
    on_error: str = "raise",
) -> Sequences:
    """Reads a log with one interaction a line into one sequence a user, oldest first.

    With a time column, each user's items are sorted by time, and items of equal times keep the order of the
    file. A log that runs newest first thus comes out oldest first. Without a time column the order of the
    file counts. Ids may be any strings. Users, and items unless a `vocabulary` is given, are numbered in
    order of first appearance. Blank lines are ignored.

    Args:
        path: the file, plain, `.gz` or `.xz`.
        columns: a name for each field of a line. `"user"` and `"item"` are required, `"time"` is optional,
            and fields of other names are ignored. By default the fields are `user item` or `user item time`,
            depending on the first line.
        delimiter: string between the fields; None splits at white space.
        vocabulary: class ids to use; a line with an item outside it is a bad line.
        on_error: `"raise"` (any bad line is an error), or `"skip"` to leave bad lines out with one warning
            that counts and names them.

    Raises:
        ValueError: for bad lines (wrong number of fields, an empty id, a time that is neither a finite number
            nor an ISO 8601 date, bytes that are not UTF-8), with the first ten and their number; for a file
            without any interaction.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "ratings.dat"
        >>> _ = path.write_text("ann::milk::5::20\\nann::tea::3::10\\n")
        >>> log = read_interactions(path, ("user", "item", "rating", "time"), delimiter="::")
        >>> log.vocabulary.decode(log[0])
        ['tea', 'milk']
    """
    lines = LineReader(path, on_error)
    log = InteractionLog(vocabulary)
    layout = None if columns is None else _layout(columns)
    if delimiter == "":
        raise ValueError('delimiter must be a string between the fields, such as "," or "\\t", or None.')
    for fields in lines.fields(delimiter):
        try:
            if layout is None:
                layout = _inferred_layout(fields)
            if lines.number == 1:
                _warn_of_header(path, fields, *layout)
            log.add(*_picked(fields, *layout))
        except ValueError as error:
            lines.reject(error)
    lines.report()
    return log.sequences(path)


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

    Like `read_interactions`, but the first record names the columns, and fields may be quoted. Blanks around
    a user or an item are removed, also inside quotes.

    Args:
        path: the file, plain, `.gz` or `.xz`.
        user: name of the column of users (or sessions).
        item: name of the column of items.
        time: name of the column of times, numbers or ISO 8601 dates; None keeps the order of the file.
        delimiter: one character between the fields.
        vocabulary: class ids to use; a record with an item outside it is a bad one.
        on_error: `"raise"`, or `"skip"` to leave bad records out with one warning.

    Raises:
        ValueError: for a missing column; for bad records (those of `read_interactions`, broken quotes, or a
            line break in a user or item), by the number of the record's last line, with all of its lines in
            the reason; for a file without any interaction.

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
    records = lines.records(delimiter)
    header = next(records, [])
    wanted = [user, item] if time is None else [user, item, time]
    for name in wanted:
        if name not in header:
            lines.report()  # the first line may be missing because it could not be read
            raise ValueError(f"{path} has no column {name!r}; its columns are {header}.")
        if header.count(name) > 1:
            raise ValueError(f"{path} has more than one column {name!r}: rename one of them.")
    positions = [header.index(name) for name in wanted]
    for record in records:
        try:
            names = _picked(record, header, positions)
            for role, name in zip(("user", "item"), names, strict=False):
                if num_line_ends(name):
                    raise ValueError(line_break_in(f"{role} id"))
            log.add(*[name.strip() for name in names])
        except ValueError as error:
            lines.reject(error)
    lines.report()
    return log.sequences(path)


def _layout(columns: Sequence[str]):
    columns = tuple(columns)
    for name in ("user", "item", "time"):
        if columns.count(name) > 1 or (name != "time" and name not in columns):
            raise ValueError(f"columns must name 'user' and 'item' once, 'time' at most once; got {columns}.")
    return columns, [columns.index(name) for name in ("user", "item", "time") if name in columns]


def _inferred_layout(fields):
    if len(fields) not in (2, 3):
        delimiter = next((own for own in ("::", ",", ";", "|") if own in " ".join(fields)), None)
        hint = "" if delimiter is None else f", and pass delimiter={delimiter!r}"
        raise ValueError(f"found {len(fields)} fields, expected user item [time]; name other columns{hint}")
    return _layout(("user", "item", "time")[: len(fields)])


def _picked(fields, columns, positions):
    if len(fields) != len(columns):
        raise ValueError(f"found {len(fields)} fields, expected {len(columns)} ({' '.join(columns)})")
    return [fields[position] for position in positions]


def _warn_of_header(path, fields, columns, positions):
    """Warns of a first line that names columns, and of an unused column that seems to hold times."""
    user, item = (fields[position] if position < len(fields) else "" for position in positions[:2])
    if _normalized(user) in _USER_NAMES and _normalized(item) in _ITEM_NAMES:
        warnings.warn(
            f"{path}: the first line looks like names of columns, {user} and {item}, but is read as an "
            f"interaction. If it is a header, use tfxc.data.read_csv(path, {user!r}, {item!r}).",
            stacklevel=3,
        )
    like_times = [name for name in columns if _normalized(name) in _TIME_NAMES]
    if "time" not in columns and like_times:
        warnings.warn(
            f"The column {like_times[0]!r} is not used, and the order of the file counts: name it 'time' to "
            "sort each user's items by it.",
            stacklevel=3,
        )


def _normalized(name):
    return name.lower().replace("_", "").replace(" ", "").removesuffix("id")


class InteractionLog:
    """Collects interactions one by one in compact arrays and groups them by user at the end.

    Without a vocabulary, items are numbered in order of first appearance.
    """

    def __init__(self, vocabulary: Vocabulary | None = None):
        self._vocabulary = vocabulary
        self._item_ids, self._user_ids = name_ids(vocabulary), name_ids()
        self._users, self._items, self._times = array("q"), array("i"), array("d")

    def add(self, user: str, item: str, time: str | None = None):
        """Appends one interaction. A bad one raises a ValueError with the reason, and leaves no trace."""
        if not user or not item:
            raise ValueError(f"the {'item' if user else 'user'} id is empty")
        stamp = None if time is None else seconds(time)
        try:
            self._items.append(self._item_ids[item])
        except KeyError:
            raise ValueError(f"the item {item!r} is not in the vocabulary") from None
        self._users.append(self._user_ids[user])
        if stamp is not None:
            self._times.append(stamp)

    def sequences(self, path) -> Sequences:
        """Returns one sequence a user. `path` is named in the error if there is no interaction."""
        if not self._items:
            raise ValueError(f"{path} holds no interactions.")
        return Sequences.from_interactions(
            np.asarray(self._users),
            np.asarray(self._items),
            Vocabulary(self._item_ids) if self._vocabulary is None else self._vocabulary,
            self._user_ids,
            np.asarray(self._times) if self._times else None,
        )
