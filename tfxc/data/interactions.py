"""Logs as text, read line by line: `user item [time]`, CSV with a header, or a whole sequence a line."""

import itertools
import operator
import os
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tfxc.data.describe import warn_of, warn_of_header
from tfxc.data.interaction_table import Choices, table_sequences, time_columns
from tfxc.data.line_reader import (
    USER_NAMES,
    LineReader,
    delimiter_hint,
    delimiter_of,
    is_typed,
    normalized,
    own_names,
    plain_names,
    warn_of_lists,
)
from tfxc.data.sequences import Sequences
from tfxc.data.table import ROWS_PER_BATCH, Table
from tfxc.data.vocabulary import Vocabulary, name_ids
from tfxc.data.warn import warn

# Names of columns, as `normalized` returns them.
_ITEM_NAMES = {"item", "movie", "product", "article", "book", "track", "song", "asin"}
_TIME_NAMES = {"timestamp", "ts", "date", "datetime", "eventtime", "created", "createdat"}
_EPOCH = np.datetime64(0, "us")


def read_interactions(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None = None,
    delimiter: str | None = None,
    vocabulary: Vocabulary | None = None,
    on_error: str = "raise",
    *,
    ties: str | None = None,
    seed: int = 0,
    missing: Iterable[str] = (),
    encoding: str | None = None,
    time_format: str | None = None,
) -> Sequences:
    """Reads a log with one interaction a line into one sequence a user, oldest first.

    Without a time column the order of the file counts. Ids may be any strings. Users, and items unless a
    `vocabulary` is given, are numbered in order of first appearance. Times become seconds since 1970, also
    where they are dates. Blank lines are ignored.

    Args:
        path: the file or its URI, plain or packed, such as `.gz`.
        columns: a name for each field of a line. `"user"` and `"item"` are required, `"time"` is optional
            (twice for a day and a time of day), and fields of other names are ignored. By default the fields
            are `user item` or `user item time`, depending on the first line. A first line of names with
            types, as RecBole writes it (`user_id:token`), is left out with a warning.
        delimiter: string between the fields; None splits at white space.
        vocabulary: class ids to use; a line with an item outside it is a bad line.
        on_error: `"raise"`, or `"skip"` to leave bad lines out with one warning.
        ties, seed, missing, encoding, time_format: see `from_frame`.

    Raises:
        ValueError: for bad lines (wrong number of fields, an empty id, an invalid time, bytes that are not
            UTF-8), with the first ten and their number; for a file without interactions; for invalid options.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "ratings.dat"
        >>> _ = path.write_text("ann::milk::5::20\\nann::tea::3::10\\n")
        >>> log = read_interactions(path, ("user", "item", "rating", "time"), delimiter="::")
        >>> log.vocabulary.decode(log[0])
        ['tea', 'milk']
    """
    choices = Choices(ties, seed, missing, time_format)
    lines = LineReader(path, on_error, encoding)
    layout = None if columns is None else _layout(columns)
    lines.head()  # refuses JSON
    records = lines.fields(delimiter)
    first = next(records, None)
    if first is not None and is_typed(first):
        layout = layout or _typed_layout(first)
        warn(
            f"{path}: the first line names columns with their types, {' '.join(first)}, and is left out. "
            "tfxc.data.from_frame finds columns by these names."
        )
        first = None
    while layout is None and first is not None:
        if len(first) in (2, 3):
            layout = _layout(("user", "item", "time")[: len(first)])
        else:
            told = f"found {len(first)} fields, expected user item [time]; name other columns"
            lines.reject(told + delimiter_hint(first))
            first = next(records, None)
    names, positions = layout or _layout(("user", "item"))
    if first is not None:
        if lines.number == 1:
            _warn_of_header(path, first, names, positions)
        records = itertools.chain([first], records)
    return _sequences(lines, records, names, positions, vocabulary, choices)


def read_csv(
    path: str | os.PathLike[str],
    user: str,
    item: str,
    time: str | tuple[str, str] | None = None,
    delimiter: str | None = None,
    vocabulary: Vocabulary | None = None,
    on_error: str = "raise",
    *,
    ties: str | None = None,
    seed: int = 0,
    missing: Iterable[str] = (),
    encoding: str | None = None,
    time_format: str | None = None,
) -> Sequences:
    """Reads a CSV file with one interaction a record into one sequence a user, oldest first.

    Like `read_interactions`, but the first record names the columns, and fields may be quoted. Blanks around
    a name do not count, nor do types of RecBole in the header: `user_id` finds `user_id:token`.

    Args:
        path: the file or its URI, plain or packed, such as `.gz`.
        user, item, time: names of columns, see `from_frame`.
        delimiter: one character between the fields; None takes the one of `,`, tab, `;` and `|` by which the
            header has these columns.
        vocabulary, on_error: see `read_interactions`.
        ties, seed, missing, encoding, time_format: see `from_frame`.

    Raises:
        ValueError: for a missing column; for bad records (those of `read_interactions`, broken quotes, or a
            line break in a user or item), by the number of their last line; for a file without any
            interaction; for invalid options.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "log.csv"
        >>> _ = path.write_text('time,item,user\\n2020-02-02,"tea, green",ann\\n2020-01-01,milk,ann\\n')
        >>> log = read_csv(path, user="user", item="item", time="time")
        >>> log.vocabulary.decode(log[0])
        ['milk', 'tea, green']
    """
    choices = Choices(ties, seed, missing, time_format)
    lines = LineReader(path, on_error, encoding)
    wanted = [user, item, *time_columns(time)]
    head = lines.head()
    if delimiter is None:
        delimiter = delimiter_of(head, wanted, lines.file.suffix)
    records = lines.records(delimiter)
    header = next(records, [])
    if lines.bad.number:
        lines.report()  # the first line may be missing because it could not be read
    own = own_names(wanted, header, path)
    warn_of_lists(own, path)
    positions = [header.index(name) for name in own]
    sequences = _sequences(lines, records, header, positions, vocabulary, choices)
    warn_of_header(sequences, header[positions[0]].strip(), header[positions[1]].strip(), path)
    return sequences


def _sequences(lines, records, names, positions, vocabulary, choices) -> Sequences:
    """Returns the sequences of records, whose user, item and perhaps times are at some positions."""
    roles = ["user", "item", "time", "time of day"][: len(positions)]
    schema = pa.schema([(role, pa.large_string()) for role in roles])
    skipped: list[int] = []  # lines from 0
    chosen = operator.itemgetter(*positions)  # tuples of texts cost the garbage collector less than lists

    def rows():
        last = 0  # the line before, from 1
        for record in records:
            if len(record) != len(names):
                hint = delimiter_hint(record) if len(record) == 1 else ""
                lines.reject(f"found {len(record)} fields, expected {len(names)} ({' '.join(names)}){hint}")
                continue
            skipped.extend(range(last, lines.number - 1))
            last = lines.number
            yield chosen(record)
        skipped.extend(range(last, lines.number))

    def batches():
        own = rows()
        while batch := list(itertools.islice(own, ROWS_PER_BATCH)):
            columns = [pa.array(column, pa.large_string()) for column in zip(*batch, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    table = Table(lines.path, schema, batches(), None, skipped, 1, is_text=True, has_bar=False)
    found = table_sequences(table, "user", "item", tuple(roles[2:]), lines.bad, choices, vocabulary)
    if found.times is None or found.times.dtype.kind != "M":
        return found
    return replace(found, times=(found.times - _EPOCH) / np.timedelta64(1, "s"))


def _layout(columns: Sequence[str]):
    """Returns names of columns, and the positions of the user, the item and the times."""
    columns = tuple(map(str, columns)) if isinstance(columns, Iterable) else (columns,)
    if not columns.count("user") == columns.count("item") == 1 or columns.count("time") > 2:
        raise ValueError(f"columns must name 'user' and 'item' once, 'time' at most twice; got {columns}.")
    times = [position for position, name in enumerate(columns) if name == "time"]
    return columns, [columns.index("user"), columns.index("item"), *times]


def _typed_layout(header):
    """Returns the layout that a header with types tells."""
    roles = (("user", USER_NAMES), ("item", _ITEM_NAMES), ("time", _TIME_NAMES | {"time"}))
    names = plain_names(header)
    own = [next((role for role, known in roles if normalized(name) in known), name) for name in names]
    try:
        return _layout(own)
    except ValueError as error:
        raise ValueError(f"The columns {names} do not tell the user and the item: pass columns=.") from error


def _warn_of_header(path, fields, columns, positions):
    """Warns of a first line that names columns or has quotes, and of an unused column that may hold times."""
    user, item = (fields[position] if position < len(fields) else "" for position in positions[:2])
    if normalized(user) in USER_NAMES:
        warn(
            f"{path}: the first line looks like names of columns, {user} and {item}, but is read as an "
            f"interaction. If it is a header, use tfxc.data.read_csv(path, {user!r}, {item!r})."
        )
    if any(len(name) > 1 and name[0] == name[-1] == '"' for name in (user, item)):
        warn(
            f"{path}: the quotes of the first line, {user} {item}, are read as parts of names. If they are "
            "none, write a line with the names of the columns above it, and use tfxc.data.read_csv."
        )
    like_times = [name for name in columns if normalized(name) in _TIME_NAMES]
    if "time" not in columns and like_times:
        warn(
            f"The column {like_times[0]!r} is not used, and the order of the file counts: name it 'time' to "
            "sort each user's items by it."
        )


def read_sequences(
    path: str | os.PathLike[str],
    delimiter: str | None = None,
    vocabulary: Vocabulary | None = None,
    on_error: str = "raise",
) -> Sequences:
    """Reads `user item item ...`, one user a line, items oldest first.

    Ids may be any strings. Items are numbered in order of first appearance unless a `vocabulary` is given.

    Args:
        path: the file, plain or packed, such as `.gz`.
        delimiter: string between the fields; None splits at white space.
        vocabulary: class ids to use; a line with an item outside it is a bad line.
        on_error: `"raise"`, or `"skip"` to leave bad lines out with one warning.

    Raises:
        ValueError: for bad lines (a user without items or with a second line, an empty id, an item outside
            the vocabulary, bytes that are not UTF-8), with the first ten; for a file without any sequence.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "users.txt"
        >>> _ = path.write_text("ann tea milk tea\\nbob milk\\n")
        >>> sequences = read_sequences(path)
        >>> sequences.user_ids, sequences[0].tolist()
        (['ann', 'bob'], [0, 1, 0])
    """
    return _read_whole(path, delimiter, vocabulary, on_error, with_users=True)


def read_sessions(
    path: str | os.PathLike[str],
    delimiter: str | None = None,
    vocabulary: Vocabulary | None = None,
    on_error: str = "raise",
) -> Sequences:
    """Reads one session a line: only its items, oldest first.

    Arguments and errors are those of `read_sequences`, but the lines name no user (`user_ids` is None). Read
    held-out sessions with the vocabulary of the training sessions.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "sessions.txt"
        >>> _ = path.write_text("7 9 7\\n9 5\\n")
        >>> sessions = read_sessions(path)
        >>> sessions[1].tolist(), sessions.vocabulary.names
        ([1, 2], ['7', '9', '5'])
    """
    return _read_whole(path, delimiter, vocabulary, on_error, with_users=False)


def _read_whole(path, delimiter, vocabulary, on_error, with_users) -> Sequences:
    lines, ids = LineReader(path, on_error), name_ids(vocabulary)
    items, offsets = array("i"), array("q", [0])
    users: dict[str, int] = {}
    lines.head()  # refuses JSON
    for fields in lines.fields(delimiter):
        if lines.number == 1 and is_typed(fields):
            warn(f"{path}: the first line names columns with their types, {fields}, and is left out.")
            continue
        if lines.number == 1 and with_users and normalized(fields[0]) in USER_NAMES:
            warn(
                f"{path}: the first line looks like names of columns, {' '.join(fields[:2])}, but is read as "
                "a user with items. If it is a header, remove it."
            )
        if not all(fields):
            lines.reject(f"field {fields.index('') + 1} is empty")
        elif with_users and len(fields) < 2:
            lines.reject(f"the user {fields[0]!r} has no items{delimiter_hint(fields)}")
        elif with_users and fields[0] in users:
            lines.reject(f"the user {fields[0]!r} already has line {users[fields[0]]}")
        else:
            try:
                items.extend([ids[name] for name in fields[with_users:]])
            except KeyError as error:
                name = error.args[0]
                lines.reject(f"the item {name!r} is not in the vocabulary{vocabulary.other_spelling(name)}")
                continue
            if with_users:
                users[fields[0]] = lines.number
            offsets.append(len(items))
    lines.report()
    if not items:
        raise ValueError(f"{path} holds no sequences.")
    if delimiter is None and vocabulary is None and len(items) < len(offsets):
        hint = delimiter_hint(ids)
        if hint:
            hint = hint.removeprefix(", and ")
            warn(f"{path}: each line is read as a single item. If it holds several, {hint}.")
    vocabulary = Vocabulary(ids) if vocabulary is None else vocabulary
    user_ids = list(users) if with_users else None
    sequences = Sequences(np.asarray(items), np.asarray(offsets), vocabulary, user_ids)
    warn_of(sequences, path)
    return sequences
