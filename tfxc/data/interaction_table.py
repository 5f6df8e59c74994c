"""Encodes the rows of a table of interactions as arrays of ids, times and numbers, block by block."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

from tfxc.data.bad_rows import BadRows
from tfxc.data.choices import Choices
from tfxc.data.column import MISSING
from tfxc.data.name_encoder import NameEncoder, decoded, is_text
from tfxc.data.quotes import line_break_in, num_line_ends
from tfxc.data.table import Table
from tfxc.data.times import TimeColumn
from tfxc.data.vocabulary import Vocabulary, require_vocabulary

_Reasons = dict[int, str | None]  # by position, why a row is bad; None for one to be left out
_ROWS_PER_BLOCK = 1 << 20
_READ_AHEAD = 2  # batches
_LONG = 1 << 23  # rows for which a progress bar is shown, and that take much memory


class InteractionTable:
    """Encodes a table: users, items and categories become ids, in order of first appearance.

    The names of a user, an item, the times (none, one, or a day and a time of day) and further columns are
    those of the table. A vocabulary, or None, gives the ids of items, and of each further column. `bad`
    collects the bad rows. Raises ValueError for a column whose type does not fit its role.
    """

    def __init__(
        self,
        table: Table,
        user: str,
        item: str,
        time: tuple[str, ...],
        vocabulary: Vocabulary | None,
        columns: Mapping[str, Vocabulary | None],
        bad: BadRows,
        choices: Choices,
    ):
        missing = pa.array(list(choices.missing), pa.large_string())

        def kind(name):
            return table.schema.field(name).type

        def encoder(name, known):
            return NameEncoder(name, kind(name), known, missing, table.is_text)

        require_vocabulary(vocabulary)
        self._table, self._bad = table, bad
        self._user, self._item, self._time = user, item, time
        self._roles = {user: "user id", item: "item id"} | dict.fromkeys(time, "time")
        self.users, self.items = encoder(user, None), encoder(item, vocabulary)
        self._vocabulary = vocabulary
        self._times = TimeColumn(time, list(map(kind, time)), choices.time_format, missing) if time else None
        # The name of each further column's array in a block.
        self.keys = {name: f"column{number}" for number, name in enumerate(columns)}
        self._given = columns
        self._encoders = {user: self.users, item: self.items} | {
            name: encoder(name, given)
            for name, given in columns.items()
            if given is not None or not is_number(kind(name))
        }
        self.num_left_out = 0  # rows without a user, item or time, spelled as missing, so far

    @property
    def vocabulary(self) -> Vocabulary:
        """The given class ids, or those of all items; complete after the last block."""
        return Vocabulary(self.items.names()) if self._vocabulary is None else self._vocabulary

    def vocabulary_of(self, column: str) -> Vocabulary | None:
        """Returns the categories of a further column, or None for numbers; complete after the last block."""
        given = self._given[column]
        if given is not None or column not in self._encoders:
            return given
        return Vocabulary(self._encoders[column].names())

    def blocks(self) -> Iterator[dict[str, np.ndarray]]:
        """Yields the good rows as arrays: "users", "items", perhaps "times", and `keys[name]` of the others.

        At the end it raises ValueError for bad rows, unless they are to be skipped, or if no row is good.
        """
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
                num_names = max(len(self.users), len(self.items))
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
            if name in self._encoders:
                array, why = self._encoders[name].condense(array)
                is_id = name in (self._user, self._item)
                if is_id and array.null_count:
                    why = dict.fromkeys(np.flatnonzero(array.is_null()).tolist(), "is empty") | why
                for position, own in why.items():
                    if is_id or own is not None:  # a category may be missing
                        reasons.setdefault(position, own and f"the {self._roles.get(name, name)} {own}")
            elif name in self._time and is_text(array.type):
                array, why = decoded(array)
                for position, own in why.items():
                    reasons.setdefault(position, f"the time {own}")
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, batch.schema.names), reasons

    def _encoded(self, pool, block: pa.Table, reasons: _Reasons, first_row: int) -> dict[str, np.ndarray]:
        arrays = {}
        texts = {name: block[name] for name in self._encoders}
        of_times: _Reasons = {}
        if self._times is not None:
            arrays["times"], of_times = self._times.times(*(block[name] for name in self._time))
            if of_times:
                texts |= {name: block[name].dictionary_encode() for name in self._time}
        for name, column in texts.items() if self._table.is_text else ():
            for position, number in _line_ends(column):
                what = line_break_in(self._roles.get(name, name))
                reasons.setdefault(position, f"{what} (line breaks: {number})")
        if self._vocabulary is not None:
            arrays["items"] = self.items.encode(block[self._item].chunks)
            for position in np.flatnonzero(arrays["items"] >= len(self._vocabulary)).tolist():
                unknown = block[self._item][position].as_py()
                other = self._vocabulary.other_spelling(unknown)
                reasons.setdefault(position, f"the item {unknown!r} is not in the vocabulary{other}")
        reasons = {**of_times, **reasons}
        for name, key in self.keys.items():
            if name not in self._encoders:
                arrays[key], is_bad = _numbers(block[name])
                for position in np.flatnonzero(is_bad).tolist():
                    value = block[name][position].as_py()
                    reasons.setdefault(position, f"the {name} is {'null' if value is None else value}")
        if reasons:
            block, arrays = self._without(reasons, block, arrays, first_row)
        # Hashing releases Python's lock, so the columns run in parallel.
        names = {"users": self._user, "items": self._item, **{key: name for name, key in self.keys.items()}}
        ids = {
            key: pool.submit(_tidily, self._encoders[name].encode, block[name].chunks)
            for key, name in names.items()
            if key not in arrays
        }
        arrays |= {key: future.result() for key, future in ids.items()}
        for name, given in self._given.items():
            if given is not None:
                ids_of = arrays[self.keys[name]]
                ids_of[ids_of >= len(given)] = MISSING
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


def _line_ends(column: pa.ChunkedArray) -> Iterator[tuple[int, int]]:
    """Yields the positions of condensed names with line ends, and the number of line ends."""
    start = 0
    for chunk in column.chunks:
        has_break = pc.match_substring_regex(chunk.dictionary, "[\r\n]")
        if pc.any(has_break).as_py():
            for position in np.flatnonzero(has_break.take(chunk.indices).fill_null(False)).tolist():
                yield start + position, num_line_ends(chunk[position].as_py())
        start += len(chunk)


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
