"""Interactions from tables: data frames, Arrow tables, Parquet and CSV files, also larger than memory."""

import logging
import os
import time as clock
from collections.abc import Iterable, Mapping

from tfxc.data.bad_rows import BadRows
from tfxc.data.column import Column
from tfxc.data.grouped_columns import GroupedColumns, GroupedFiles
from tfxc.data.interaction_table import InteractionTable, is_number
from tfxc.data.sequence_folder import new_version, open_sequences, write_index, write_names
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
    """One sequence a user, oldest first, from a table with one interaction a row.

    Users and items may be strings, integers or categories; they are numbered in order of first appearance.
    Strings count as they stand, with blanks around them, too, which `read_csv` cuts off.
    Equal times keep the order of the table; without a time column its order counts. Times keep their own
    unit: dates and timestamps of any unit are `datetime64`, those with a zone in UTC; integers and floats are
    seconds; strings are ISO 8601 dates (UTC where they name no zone) or numbers of seconds.

    Args:
        frame: a pandas or Polars DataFrame, an Arrow table or another object with `__arrow_c_stream__`; or
            the path of a Parquet file, a folder of Parquet files, or a CSV or TSV file with a header, plain
            or `.gz`.
        user: name of the column of users (or sessions).
        item: name of the column of items.
        time: name of the column of times.
        columns: names of further columns to keep, which the pipeline feeds beside the items. Strings and
            categories become ids (-1 where there is none), numbers stay numbers. Pass `train.columns` to read
            held-out data with the ids of training.
        vocabulary: class ids to use; a row with an item outside it is a bad row.
        directory: folder for sequences larger than memory: written once, then mapped from there. An older
            version in it is replaced when the new one is complete. `open_sequences` opens it again. Takes
            about twice the size of the arrays on disk while it is written.
        on_error: `"raise"`, or `"skip"` to leave bad rows out with one warning.

    Raises:
        ValueError: for a missing column or one of another type, for bad rows (a user, item or time that is
            null or empty, a time or number that is none; in a text file, a text in a column that is read that
            holds a line break), with the first ten and their number, counted from 0; for a table without any
            interaction, and a file that cannot be read; for a text file where a field of another column holds
            line breaks and a quote is not closed or has text on both sides. Where all quotes are in order, a
            warning says where such a field is.
        FileNotFoundError: where there is no such file or folder.

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
                f"but that of {name!r} is of {type(given).__name__}."
            )
    vocabularies: dict[str, Vocabulary | None] = (
        {name: column.vocabulary for name, column in columns.items()}
        if isinstance(columns, Mapping)
        else dict.fromkeys(columns)
    )
    for name in vocabularies:
        check_column_name(name)  # before a long table is read
    named = [user, item] if time is None else [user, item, time]
    text = named + [name for name, of_column in vocabularies.items() if of_column is not None]
    table = open_table(frame, named + list(vocabularies), text, bad)
    if isinstance(columns, Mapping):
        _check_numbers(table, columns)
    rows = InteractionTable(table, user, item, time, vocabulary, vocabularies, bad)
    if directory is None:
        sequences = _in_memory(rows, vocabulary)
    else:
        _into_folder(rows, vocabulary, directory)
        sequences = open_sequences(directory)
    _logger.info("%s: %r in %.0f s", table.name, sequences, clock.perf_counter() - start)
    return sequences


def _check_numbers(table: Table, columns: Mapping[str, Column]):
    """That numbers of training are numbers here, which would else become ids."""
    for name, column in columns.items():
        kind = table.schema.field(name).type
        if column.vocabulary is None and not is_number(kind):
            raise ValueError(
                f"The column {name!r} of {table.name} is of type {kind}, but numbers are wanted, as in the "
                "columns that were passed: convert it."
            )


def _in_memory(rows: InteractionTable, vocabulary: Vocabulary | None) -> Sequences:
    store = GroupedColumns(rows.num_rows)
    for block in rows.blocks():
        store.append(block)
        del block  # before the next one is made
    user_ids = rows.users.names()
    offsets, arrays = store.grouped(len(user_ids))
    return Sequences(
        arrays["items"],
        offsets,
        Vocabulary(rows.items.names()) if vocabulary is None else vocabulary,
        user_ids,
        arrays.get("times"),
        {name: Column(arrays[key], rows.vocabulary_of(name)) for name, key in rows.keys.items()},
    )


def _into_folder(rows: InteractionTable, vocabulary: Vocabulary | None, directory):
    with new_version(directory) as folder:
        store = GroupedFiles(folder)
        for block in rows.blocks():
            store.append(block)
            del block  # before the next one is made
        write_names(folder, "users", rows.users.names())
        write_names(folder, "items", rows.items.names() if vocabulary is None else vocabulary.names)
        vocabularies = {name: rows.vocabulary_of(name) for name in rows.keys}
        for name, of_column in vocabularies.items():
            if of_column is not None:
                write_names(folder, rows.keys[name], of_column.names)
        store.grouped(len(rows.users))
        write_index(folder, {name: of_column is not None for name, of_column in vocabularies.items()})
