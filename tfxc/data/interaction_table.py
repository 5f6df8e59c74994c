"""Makes sequences of a table of interactions: encodes it block by block, and then groups it by user."""

import logging
import os
import time as clock
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

from tfxc.arguments import one_of, seed_int
from tfxc.data.describe import warn_of
from tfxc.data.grouping import GroupedColumns, GroupedFiles
from tfxc.data.name_encoder import NameEncoder, decoded, holds_text
from tfxc.data.sequence_folder import open_sequences, scratch, write_sequences
from tfxc.data.sequences import MISSING, Column, Sequences
from tfxc.data.table import BadRows, Table
from tfxc.data.times import TimeColumn
from tfxc.data.vocabulary import Vocabulary, require_vocabulary

_Reasons = dict[int, str | None]  # by position, why a row is bad; None for one to be left out
_ROWS_PER_BLOCK = 1 << 20
_READ_AHEAD = 2  # batches
_LONG = 1 << 23  # rows for which a progress bar is shown, and that take much memory
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choices:
    """What the data alone cannot settle, and the caller of a reader decides, see ``from_frame``."""

    ties: str | None = None
    seed: int = 0
    missing: Iterable[str] = ()
    time_format: str | None = None

    def __post_init__(self):
        one_of(self.ties, "ties", (None, "order", "random"))
        seed_int(self.seed)
        names = tuple(self.missing) if isinstance(self.missing, Iterable) else (None,)
        if isinstance(self.missing, str) or not all(isinstance(name, str) for name in names):
            raise ValueError(f'missing must be several texts, such as ("NULL", ""), but is {self.missing!r}.')
        object.__setattr__(self, "missing", names)  # a generator gives them once


def time_columns(time: str | tuple[str, str] | None) -> tuple[str, ...]:
    """Returns the names of the columns of times; ValueError for what is neither None, a name nor a pair."""
    names = () if time is None else tuple(time) if isinstance(time, list | tuple) else (time,)
    if len(names) > 2 or not all(isinstance(name, str) for name in names):
        raise ValueError(f"time must be a column, or a pair, the day and the time of day, but is {time!r}.")
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
    """Returns one sequence a user, oldest first, in memory or in a folder, and warns of likely mistakes.

    The names of a user, an item, the times (none, one, or a day and a time of day) and further columns are
    those of the table. A vocabulary, or None, gives the ids of items, and of each further column. `bad`
    collects the bad rows.
    """
    start = clock.perf_counter()
    rows = _InteractionTable(table, user, item, time, vocabulary, columns or {}, bad, choices)
    shuffle = choices.seed if choices.ties == "random" else None
    if directory is None:
        sequences = rows.grouped(GroupedColumns(shuffle))
    else:
        with scratch(directory) as folder:
            write_sequences(directory, rows.grouped(GroupedFiles(folder, shuffle)))
        sequences = open_sequences(directory)
    _logger.info("%s: %r in %.0f s", table.name, sequences, clock.perf_counter() - start)
    if rows.num_left_out:
        _logger.info("%s: %d rows without a user, item or time were left out", table.name, rows.num_left_out)
    warn_of(sequences, table.name, choices.ties is not None, choices.time_format is not None)
    return sequences


class _InteractionTable:
    """Encodes a table: users, items and categories become ids, in order of first appearance."""

    def __init__(self, table, user, item, time, vocabulary, columns, bad, choices):
        missing = pa.array(list(choices.missing), pa.large_string())

        def kind(name):
            return table.schema.field(name).type

        require_vocabulary(vocabulary)
        self._table, self._bad = table, bad
        self._user, self._item, self._time = user, item, time
        self._roles = {user: "user id", item: "item id"} | dict.fromkeys(time, "time")
        self._given: dict[str, Vocabulary | None] = {user: None, item: vocabulary} | columns
        arguments = list(map(kind, time)), choices.time_format, missing, table.is_text
        self._times = TimeColumn(time, *arguments) if time else None
        # The column of each array of a block but for the times.
        self._columns = {"users": user, "items": item}
        self._columns |= {f"column{number}": name for number, name in enumerate(columns)}
        self._encoders = {
            name: NameEncoder(name, kind(name), given, missing, table.is_text)
            for name, given in self._given.items()
            if name in self._roles or given is not None or not is_number(kind(name))
        }
        self.num_left_out = 0  # rows without a user, item or time, spelled as missing, so far

    def grouped(self, store: GroupedColumns | GroupedFiles) -> Sequences:
        """Returns the sequences of the good rows, which a store groups."""
        for block in self._blocks():
            store.append(block)
            del block  # before the next block is made
        pa.default_memory_pool().release_unused()
        offsets, arrays = store.grouped(len(self._encoders[self._user]))

        def vocabulary_of(name) -> Vocabulary:
            given = self._given[name]
            return Vocabulary(self._encoders[name].names()) if given is None else given

        columns = {
            name: Column(arrays[key], vocabulary_of(name) if name in self._encoders else None)
            for key, name in self._columns.items()
            if name not in (self._user, self._item)
        }
        users, times = self._encoders[self._user].names(), arrays.get("times")
        return Sequences(arrays["items"], offsets, vocabulary_of(self._item), users, times, columns)

    def _blocks(self) -> Iterator[dict[str, np.ndarray]]:
        """Yields the good rows as arrays: "users", "items", perhaps "times", and those of other columns."""
        num_rows = num_good = 0
        with ThreadPoolExecutor(pa.cpu_count()) as pool:
            for futures in self._condensed_blocks(pool):
                block, reasons = _joined(futures)
                arrays = self._encoded(pool, block, reasons, num_rows)
                num_rows += len(block)
                num_good += len(arrays["users"])
                del block  # free it before the next block is made
                if len(arrays["users"]):
                    yield arrays
                del arrays
        self._bad.report(num_rows + len(self._table.skipped))
        if not num_good:
            raise ValueError(f"{self._table.name} holds no interactions.")

    def _condensed_blocks(self, pool) -> Iterator[list[Future]]:
        """Yields blocks of condensed batches, which are read ahead while others are condensed."""
        num_rows, waiting = 0, []
        users, items = self._encoders[self._user], self._encoders[self._item]
        is_long = self._table.has_bar and (self._table.num_rows is None or self._table.num_rows > _LONG)
        quiet = None if is_long else True  # None: show the bar on a terminal only
        with tqdm(total=self._table.num_rows, unit=" rows", unit_scale=True, disable=quiet) as bar:
            for batch in self._table.batches:
                waiting.append(pool.submit(self._condensed, batch))
                if len(waiting) > _READ_AHEAD:
                    waiting[-_READ_AHEAD].result()
                num_rows += len(batch)
                bar.update(len(batch))
                # Each block hashes all known names again, so it should hold more rows than names.
                num_names = max(len(users), len(items))
                if num_rows >= max(_ROWS_PER_BLOCK, min(2 * num_names, _LONG), num_names):
                    del batch  # free it before the next batch is read
                    yield waiting
                    num_rows, waiting = 0, []
            if waiting:
                yield waiting

    def _condensed(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, _Reasons]:
        """Returns the batch with names as positions among its distinct names, and why some rows have none."""
        arrays: list[pa.Array] = []
        reasons: _Reasons = {}
        for name, array in zip(batch.schema.names, batch.columns, strict=True):
            is_id, why = name in (self._user, self._item), {}
            if name in self._encoders:
                array, why = self._encoders[name].condense(array)
            elif name in self._time and holds_text(array.type):
                array, why = decoded(array)
            if is_id and array.null_count:
                why = dict.fromkeys(np.flatnonzero(array.is_null()).tolist(), "is empty") | why
            for position, own in why.items():
                if is_id or own is not None:  # a category may be missing
                    reasons.setdefault(position, own and f"the {self._roles.get(name, name)} {own}")
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, batch.schema.names), reasons

    def _encoded(self, pool, block: pa.Table, reasons: _Reasons, first_row: int) -> dict[str, np.ndarray]:
        arrays = {}
        of_times: _Reasons = {}
        if self._times is not None:
            arrays["times"], of_times = self._times.times(*(block[name] for name in self._time))
        known = self._given[self._item]
        if known is not None:
            arrays["items"] = self._encoders[self._item].encode(block[self._item].chunks)
            for position in np.flatnonzero(arrays["items"] >= len(known)).tolist():
                unknown = block[self._item][position].as_py()
                other = known.other_spelling(unknown)
                reasons.setdefault(position, f"the item {unknown!r} is not in the vocabulary{other}")
        reasons = {**of_times, **reasons}
        for key, name in self._columns.items():
            if name not in self._encoders:
                arrays[key], is_bad = _numbers(block[name])
                for position in np.flatnonzero(is_bad).tolist():
                    value = block[name][position].as_py()
                    reasons.setdefault(position, f"the {name} is {'null' if value is None else value}")
        if reasons:
            block, arrays = self._without(reasons, block, arrays, first_row)
        # Hashing releases Python's lock, so the columns run in parallel.
        ids = {
            key: pool.submit(_tidily, self._encoders[name].encode, block[name].chunks)
            for key, name in self._columns.items()
            if key not in arrays
        }
        arrays |= {key: future.result() for key, future in ids.items()}
        for key, name in self._columns.items():
            given = self._given[name]
            if given is not None:  # a category may be another one
                arrays[key][arrays[key] >= len(given)] = MISSING
        return arrays

    def _without(self, reasons, block, arrays, first_row):
        positions = np.array(sorted(reasons))
        rows = self._table.rows(first_row + positions).tolist()
        for position, row in zip(positions.tolist(), rows, strict=True):
            if reasons[position] is None:
                self.num_left_out += 1
            else:
                self._bad.reject(row, reasons[position])
        good = np.ones(len(block), bool)
        good[positions] = False
        # Condense again, so that names which only bad rows have get no id.
        batches = [self._condensed(batch)[0] for batch in block.filter(pa.array(good)).to_batches()]
        arrays = {name: values[good] for name, values in arrays.items()}
        return pa.Table.from_batches(batches, block.schema), arrays


def _joined(futures: list[Future]) -> tuple[pa.Table, _Reasons]:
    """Returns batches as one block, with the reasons by position in it."""
    batches: list[pa.RecordBatch] = []
    reasons: _Reasons = {}
    start = 0
    for future in futures:
        batch, own = future.result()
        reasons |= {start + position: reason for position, reason in own.items()}
        start += len(batch)
        batches.append(batch)
    futures.clear()  # so that only the block holds them
    return pa.Table.from_batches(batches), reasons


def _tidily(function, *args):
    """Calls the function, then returns the unused memory of Arrow's pool in this thread to the system."""
    try:
        return function(*args)
    finally:
        pa.default_memory_pool().release_unused()


def is_number(kind: pa.DataType) -> bool:
    """Whether a column of an Arrow type keeps its values. Other columns are encoded as ids."""
    kinds = pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal
    return any(is_kind(kind) for is_kind in kinds)


def _numbers(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Returns numbers in their own type, decimals as float64, and which are none: null, NaN or infinite."""
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    is_good = pc.is_finite(column) if pa.types.is_floating(column.type) else pc.is_valid(column)
    filled = column.fill_null(False if pa.types.is_boolean(column.type) else 0).to_numpy()
    is_bad = ~is_good.fill_null(False).to_numpy()
    return filled.astype(column.type.to_pandas_dtype(), copy=False), is_bad
