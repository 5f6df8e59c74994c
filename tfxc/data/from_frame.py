"""Reads interactions from data frames, Arrow tables, Parquet and CSV files, also larger than memory."""

import logging
import os
import time as clock
from collections.abc import Iterable, Mapping

from tfxc.data.bad_rows import BadRows
from tfxc.data.column import Column
from tfxc.data.grouped_columns import GroupedColumns, GroupedFiles
from tfxc.data.interaction_table import InteractionTable, is_number
from tfxc.data.sequence_folder import new_version, open_sequences, write_index
from tfxc.data.sequences import Sequences, check_column_name
from tfxc.data.tables import Table, open_table
from tfxc.data.vocabulary import Vocabulary

_logger = logging.getLogger(__name__)


def from_frame(
    frame,
    user: str,
    item: str,
    time: str | None = None,
    columns: Iterable[str] | Mapping[str, Column] = (),
    vocabulary: Vocabulary | None = None,
    directory: str | os.PathLike[str] | None = None,
    on_error: str = "raise",
) -> Sequences:
    """Reads a table with one interaction a row into one sequence a user, oldest first.

    Users and items may be strings, integers or categories. They are numbered in order of first appearance.
    Strings count as they are, including blanks around them, which `read_csv` removes. Items of equal times
    keep the order of the table. Without a time column the order of the table counts. Times keep their unit:
    dates and timestamps are `datetime64`, in UTC if they have a zone; integers and floats are seconds;
    strings are ISO 8601 dates (in UTC if they name no zone) or numbers of seconds.

    Args:
        frame: a pandas or Polars DataFrame, an Arrow table or another object with `__arrow_c_stream__`; or
            the path of a Parquet file, a folder of Parquet files, or a CSV or TSV file with a header, plain
            or `.gz`.
        user: name of the column of users (or sessions).
        item: name of the column of items.
        time: name of the column of times.
        columns: names of further columns to keep, which the pipeline feeds together with the items. Strings
            and categories become ids (-1 if missing), numbers stay numbers. Pass `train.columns` to read
            held-out data with the ids of training.
        vocabulary: class ids to use; a row with an item outside it is a bad row.
        directory: folder for sequences larger than memory, which are written once and then memory-mapped. A
            complete new version replaces an older one. `open_sequences` opens the folder again. Writing takes
            about twice the size of the arrays on disk.
        on_error: `"raise"`, or `"skip"` to leave bad rows out with one warning.

    Raises:
        ValueError: for a missing column or one of another type; for bad rows (a null or empty user, item or
            time, an invalid time or number, in a text file also a line break in a column that is read), with
            the first ten and their number, counted from 0; for a table without any interaction, or a file
            that cannot be read; for a text file in which a field of an unread column holds line breaks and a
            quote is not closed or has text on both sides. If all quotes are in order, a warning names such a
            field instead.
        FileNotFoundError: if there is no such file or folder.

    Example:
        >>> import pyarrow
        >>> table = pyarrow.table({
        ...     "who": ["ann", "bob", "ann"], "what": ["milk", "tea", "tea"],
        ...     "when": ["2024-05-02", "2024-05-01", "2024-05-01T12:00"], "country": ["de", "fr", "de"]})
        >>> log = from_frame(table, user="who", item="what", time="when", columns=["country"])
        >>> log.user_ids, log.vocabulary.decode(log[0])
        (['ann', 'bob'], ['tea', 'milk'])
        >>> print(log.times[0], log.columns["country"].values.tolist())
        2024-05-01T12:00:00.000000 [0, 0, 1]
    """
    start = clock.perf_counter()
    bad = BadRows(os.fspath(frame) if isinstance(frame, str | os.PathLike) else "the table", "row", on_error)
    if isinstance(columns, str):
        raise ValueError(f"columns must be a list of names, but is the text {columns!r}: pass [{columns!r}].")
    for name, given in columns.items() if isinstance(columns, Mapping) else ():
        if not isinstance(given, Column):
            raise ValueError(
                "columns must be a list of names, or those of other sequences, columns=sequences.columns, "
                f"but the value of {name!r} is of {type(given).__name__}."
            )
    vocabularies: dict[str, Vocabulary | None] = (
        {name: column.vocabulary for name, column in columns.items()}
        if isinstance(columns, Mapping)
        else dict.fromkeys(columns)
    )
    for name in vocabularies:
        check_column_name(name)  # before reading a long table
    named = [user, item] if time is None else [user, item, time]
    text = named + [name for name, of_column in vocabularies.items() if of_column is not None]
    table = open_table(frame, named + list(vocabularies), text, bad)
    if isinstance(columns, Mapping):
        _check_numbers(table, columns)
    rows = InteractionTable(table, user, item, time, vocabulary, vocabularies, bad)
    if directory is None:
        sequences = _in_memory(rows)
    else:
        with new_version(directory) as folder:
            _grouped(rows, GroupedFiles(folder))
            vocabularies = {name: rows.vocabulary_of(name) for name in rows.keys}
            write_index(folder, rows.users.names(), rows.vocabulary, vocabularies)
        sequences = open_sequences(directory)
    _logger.info("%s: %r in %.0f s", table.name, sequences, clock.perf_counter() - start)
    return sequences


def _check_numbers(table: Table, columns: Mapping[str, Column]):
    """Raises ValueError if a column of numbers in training holds something else here."""
    for name, column in columns.items():
        kind = table.schema.field(name).type
        if column.vocabulary is None and not is_number(kind):
            raise ValueError(
                f"The column {name!r} of {table.name} is of type {kind}, but must hold numbers as in the "
                "columns that were passed: convert it."
            )


def _grouped(rows: InteractionTable, store):
    """Returns offsets and arrays of all rows, grouped by user."""
    for block in rows.blocks():
        store.append(block)
        del block  # before the next block is made
    return store.grouped(len(rows.users))


def _in_memory(rows: InteractionTable) -> Sequences:
    offsets, arrays = _grouped(rows, GroupedColumns(rows.num_rows))
    return Sequences(
        arrays["items"],
        offsets,
        rows.vocabulary,
        rows.users.names(),
        arrays.get("times"),
        {name: Column(arrays[key], rows.vocabulary_of(name)) for name, key in rows.keys.items()},
    )
