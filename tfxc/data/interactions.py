"""Interaction logs, `user item [time]` a line, and what every interaction reader shares."""

import os
import warnings
from array import array
from collections.abc import Sequence

import numpy as np

from tfxc.data.line_reader import LineReader
from tfxc.data.sequences import Sequences
from tfxc.data.times import seconds
from tfxc.data.vocabulary import Vocabulary, name_ids

# Names of columns as _plain makes them.
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

    With a time column each user's items are sorted by time (equal times keep the order of the file), so a log
    that runs newest first comes out oldest first; without one the order of the file counts. Ids may be any
    strings. Users, and items unless a `vocabulary` is given, are numbered in order of first appearance. Blank
    lines carry nothing and are passed over. Plain, `.gz` and `.xz` files.

    Args:
        path: the file.
        columns: a name for each field of a line, among them `"user"` and `"item"` and perhaps `"time"`;
            fields of other names are not used. By default `user item` or `user item time`, as
            the first line has it.
        delimiter: string between the fields; None is any run of white space.
        vocabulary: class ids to use; a line with an item outside it is a bad line.
        on_error: `"raise"` (nothing is returned if any line is bad) or `"skip"` (bad lines are left out, and
            one warning tells how many and which).

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
        raise ValueError('delimiter must be a string between the fields, as "," or "\\t", or None; got "".')
    for line in lines:
        fields = line.split() if delimiter is None else [field.strip() for field in line.split(delimiter)]
        if not any(fields):
            continue
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


def _layout(columns: Sequence[str]):
    columns = tuple(columns)
    for name in ("user", "item", "time"):
        if columns.count(name) > 1 or (name != "time" and name not in columns):
            raise ValueError(f"columns must name 'user' and 'item' once, 'time' at most once; got {columns}.")
    return columns, [columns.index(name) for name in ("user", "item", "time") if name in columns]


def _warn_of_header(path, fields, columns, positions):
    """Of a first line that names columns, and of a column of times by another name, which is not used."""
    user, item = (fields[position] if position < len(fields) else "" for position in positions[:2])
    if _plain(user) in _USER_NAMES and _plain(item) in _ITEM_NAMES:
        warnings.warn(
            f"{path}: the first line looks like names of columns, {user} and {item}, but is read as an "
            f"interaction. Of a file with such a line take tfxc.data.read_csv(path, {user!r}, {item!r}).",
            stacklevel=3,
        )
    like_times = [name for name in columns if _plain(name) in _TIME_NAMES]
    if "time" not in columns and like_times:
        warnings.warn(
            f"The column {like_times[0]!r} is not used, and the order of the file counts: name it 'time' to "
            "have each user's items in its order.",
            stacklevel=3,
        )


def _plain(name):
    return name.lower().replace("_", "").replace(" ", "").removesuffix("id")


def _inferred_layout(fields):
    if len(fields) not in (2, 3):
        delimiter = next((own for own in ("::", ",", ";", "|") if own in " ".join(fields)), None)
        hint = "" if delimiter is None else f", and pass delimiter={delimiter!r}"
        raise ValueError(
            f"found {len(fields)} fields, expected user item [time]; else name the columns{hint}"
        )
    return _layout(("user", "item", "time")[: len(fields)])


def _picked(fields, columns, positions):
    if len(fields) != len(columns):
        raise ValueError(f"found {len(fields)} fields, expected {len(columns)} ({' '.join(columns)})")
    return [fields[position] for position in positions]


class InteractionLog:
    """Collects interactions one by one in compact arrays and groups them by user at the end.

    Args:
        vocabulary: class ids to use, or None to number items as they come.
    """

    def __init__(self, vocabulary: Vocabulary | None = None):
        self._vocabulary = vocabulary
        self._item_ids, self._user_ids = name_ids(vocabulary), name_ids()
        self._users, self._items, self._times = array("q"), array("i"), array("d")

    def add(self, user: str, item: str, time: str | None = None):
        """Appends one interaction; a ValueError says what is wrong with it, and then nothing is appended."""
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
        """One sequence a user; `path` is named in the error when there is nothing."""
        if not self._items:
            raise ValueError(f"{path} holds no interactions.")
        return Sequences.from_interactions(
            np.asarray(self._users),
            np.asarray(self._items),
            Vocabulary(self._item_ids) if self._vocabulary is None else self._vocabulary,
            self._user_ids,
            np.asarray(self._times) if self._times else None,
        )
