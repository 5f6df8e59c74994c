"""Files with one whole sequence a line: `user item item ...`, or only the items of a session."""

import os
from array import array

import numpy as np

from tfxc.data.describe import warn_of
from tfxc.data.line_reader import USER_NAMES, LineReader, delimiter_hint, is_typed, normalized
from tfxc.data.sequences import Sequences
from tfxc.data.vocabulary import Vocabulary, name_ids
from tfxc.data.warn import warn


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
    return _read(path, delimiter, vocabulary, on_error, with_users=True)


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
    return _read(path, delimiter, vocabulary, on_error, with_users=False)


def _read(path, delimiter, vocabulary, on_error, with_users) -> Sequences:
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
