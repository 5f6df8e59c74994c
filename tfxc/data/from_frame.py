"""Reads interactions from data frames, Arrow tables, Parquet and CSV files, also larger than memory."""

import os
from collections.abc import Iterable, Mapping

from tfxc.data.describe import warn_of_header
from tfxc.data.interaction_table import Choices, is_number, table_sequences, time_columns
from tfxc.data.sequences import Column, Sequences, check_column_name
from tfxc.data.table import BadRows
from tfxc.data.tables import open_table
from tfxc.data.vocabulary import Vocabulary


def from_frame(
    frame,
    user: str,
    item: str,
    time: str | tuple[str, str] | None = None,
    columns: Iterable[str] | Mapping[str, Column] = (),
    vocabulary: Vocabulary | None = None,
    directory: str | os.PathLike[str] | None = None,
    on_error: str = "raise",
    *,
    ties: str | None = None,
    seed: int = 0,
    missing: Iterable[str] = (),
    encoding: str | None = None,
    time_format: str | None = None,
) -> Sequences:
    """Reads a table with one interaction a row into one sequence a user, oldest first.

    Users and items may be strings, bytes of UTF-8, UUIDs, integers or categories. They are numbered in order
    of first appearance. Strings count as they are; blanks around those of a text file do not. Without a time
    column the order of the table counts. Times keep their unit: dates and timestamps are `datetime64`, in UTC
    if they have a zone; numbers are seconds since 1970; strings are ISO 8601 dates, also such as 2024/5/1,
    in UTC if they name no zone, or numbers of seconds. A warning tells what the data alone cannot settle, and
    the option that does.

    Args:
        frame: a pandas or Polars DataFrame, a LazyFrame, an Arrow table or another object with
            `__arrow_c_stream__`; or a path, a pattern such as `"part-*.parquet"`, a folder, or a list of
            paths, of files of Parquet, text with a header and a delimiter (`.csv`, `.tsv`, `.txt`, `.inter`)
            or JSON lines (`.jsonl`). Text may be packed (`.gz`, `.bz2`, `.zst`, `.xz`). Folders such as
            `day=2024-05-01` are a column of their Parquet files. Paths may be URIs: `file://`, `s3://`,
            `gs://`, `hdfs://`.
        user: name of the column of users (or sessions).
        item: name of the column of items.
        time: name of the column of times; or two names, of the day and of the time of day.
        columns: names of further columns to keep, which the pipeline feeds together with the items. Strings,
            categories and what a header of RecBole calls a token become ids (-1 if missing), numbers stay
            numbers. Pass `train.columns` to read held-out data with the ids of training.
        vocabulary: class ids to use; a row with an item outside it is a bad row.
        directory: folder for sequences larger than memory, which are written once, with twice their size on
            disk meanwhile, and then memory-mapped. A complete new version replaces an older one.
            `open_sequences` opens the folder again.
        on_error: `"raise"`, or `"skip"` to leave bad rows out with one warning.
        ties: the order of a user's items of equal times: `"order"` is that of the table, `"random"` one by
            chance. None is the order of the table with a warning.
        seed: decides the order of `"random"`.
        missing: what spells a missing user, item, time or category, such as `("NULL", r"\\N")`. Rows without
            a user, item or time are left out, and their number is logged.
        encoding: of text files; None for UTF-8.
        time_format: the form of dates, for `datetime.strptime`, such as `"%d/%m/%Y %H:%M"`; or the unit of
            numbers, `"s"`, `"ms"`, `"us"` or `"ns"`.

    Raises:
        ValueError: for a missing column or one of another type; for bad rows (a null or empty user, item or
            time, bytes that are not UTF-8, an invalid time or number, in a text file also a line break in a
            column that is read), with the first ten and their number, counted from 0; for a table without any
            interaction, a file that cannot be read, or options of another kind; for a text file in which a
            quote is not closed, or text follows the quote that ends a field, as in `"Weird Al" Yankovic`.
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
    source = "the table"
    if isinstance(frame, str | os.PathLike):
        source = os.fspath(frame)
    elif isinstance(frame, list | tuple) and len(frame) > 0:
        source = f"{len(frame)} files from {frame[0]}"
    choices = Choices(ties, seed, missing, time_format)
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        remedy = [columns] if isinstance(columns, str) else "()"
        raise ValueError(f"columns must be a list of names, but is {columns!r}: pass {remedy}.")
    given = columns if isinstance(columns, Mapping) else {}
    vocabularies: dict[str, Vocabulary | None] = dict.fromkeys(columns)
    for name in vocabularies:
        check_column_name(name)  # before reading a long table
    for name, column in given.items():
        if not isinstance(column, Column):
            raise ValueError(
                "columns must be a list of names, or those of other sequences, columns=sequences.columns, "
                f"but the value of {name!r} is of {type(column).__name__}."
            )
        vocabularies[name] = column.vocabulary
    times = time_columns(time)
    named = [user, item, *times]
    text = named + [name for name, of_column in vocabularies.items() if of_column is not None]
    bad = BadRows(source, "row", on_error)
    table = open_table(frame, named + list(vocabularies), text, bad, encoding)
    for name, column in given.items():
        kind = table.schema.field(name).type
        if column.vocabulary is None and not is_number(kind):
            raise ValueError(
                f"The column {name!r} of {table.name} is of type {kind}, but must hold numbers as in the "
                "columns that were passed: convert it."
            )
    sequences = table_sequences(table, user, item, times, bad, choices, vocabulary, vocabularies, directory)
    if table.is_text:
        warn_of_header(sequences, user, item, source)
    return sequences
