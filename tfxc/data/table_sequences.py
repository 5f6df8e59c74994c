"""Makes sequences of the rows of a table, in memory or in a folder."""

import logging
import os
import time as clock
from collections.abc import Mapping

import pyarrow as pa

from tfxc.data.bad_rows import BadRows
from tfxc.data.choices import Choices
from tfxc.data.column import Column
from tfxc.data.findings import warn_of
from tfxc.data.grouped_columns import GroupedColumns, GroupedFiles
from tfxc.data.interaction_table import InteractionTable
from tfxc.data.sequence_folder import open_sequences, scratch, write_sequences
from tfxc.data.sequences import Sequences
from tfxc.data.table import Table
from tfxc.data.vocabulary import Vocabulary

_logger = logging.getLogger(__name__)


def time_columns(time: str | tuple[str, str] | None) -> tuple[str, ...]:
    """Returns the names of the columns of times; ValueError for what is neither None, a name nor a pair."""
    names = () if time is None else tuple(time) if isinstance(time, list | tuple) else (time,)
    if len(names) > 2 or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"time must be a column, or a pair of columns, the day and the time of day, but is {time!r}."
        )
    return names


def table_sequences(
    table: Table,
    user: str,
    item: str,
    time: tuple[str, ...],
    bad: BadRows,
    choices: Choices,
    vocabulary: Vocabulary | None = None,
    columns: Mapping[str, Vocabulary | None] | None = None,
    directory: str | os.PathLike[str] | None = None,
) -> Sequences:
    """Returns one sequence a user, oldest first, and warns of what may be a mistake, see ``from_frame``."""
    start = clock.perf_counter()
    rows = InteractionTable(table, user, item, time, vocabulary, columns or {}, bad, choices)
    if directory is None:
        sequences = _grouped(rows, GroupedColumns(choices.shuffle))
    else:
        with scratch(directory) as folder:
            write_sequences(directory, _grouped(rows, GroupedFiles(folder, choices.shuffle)))
        sequences = open_sequences(directory)
    _logger.info("%s: %r in %.0f s", table.name, sequences, clock.perf_counter() - start)
    if rows.num_left_out:
        _logger.info("%s: %d rows without a user, item or time were left out", table.name, rows.num_left_out)
    warn_of(sequences, table.name, choices.ties is not None, choices.time_format is not None)
    return sequences


def _grouped(rows: InteractionTable, store) -> Sequences:
    for block in rows.blocks():
        store.append(block)
        del block  # before the next block is made
    pa.default_memory_pool().release_unused()
    offsets, arrays = store.grouped(len(rows.users))
    columns = {name: Column(arrays[key], rows.vocabulary_of(name)) for name, key in rows.keys.items()}
    return Sequences(
        arrays["items"], offsets, rows.vocabulary, rows.users.names(), arrays.get("times"), columns
    )
