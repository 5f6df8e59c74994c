"""The rows of a table of interactions as arrays of ids, times and numbers, block by block."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

from tfxc.data.bad_rows import BadRows
from tfxc.data.name_encoder import NameEncoder
from tfxc.data.tables import Table
from tfxc.data.times import TimeColumn
from tfxc.data.vocabulary import Vocabulary

_ROWS_PER_BLOCK = 1 << 21
_LONG = 1 << 23  # rows that are worth a progress bar


class InteractionTable:
    """Encodes a table: users, items and categories become ids, in order of first appearance.

    Args:
        table: with the columns that are named here.
        user: name of the column of users.
        item: name of the column of items.
        time: name of the column of times, or None.
        vocabulary: class ids to use, or None to number items as they come.
        columns: further columns by name, with the vocabulary to use or None.
        bad: where bad rows are rejected.

    Raises:
        ValueError: for a column of a type that cannot be what it is to be.

    Example:
        >>> from tfxc.data.tables import open_table
        >>> bad = BadRows("log", "row")
        >>> table = open_table(pa.table({"who": ["ann", "bob"], "what": [7, 7]}), ["who", "what"], [], bad)
        >>> log = InteractionTable(table, "who", "what", None, None, {}, bad)
        >>> [{name: ids.tolist() for name, ids in block.items()} for block in log.blocks()]
        [{'users': [0, 1], 'items': [0, 0]}]
        >>> log.users.names(), log.items.names()
        (['ann', 'bob'], ['7'])
    """

    def __init__(
        self,
        table: Table,
        user: str,
        item: str,
        time: str | None,
        vocabulary: Vocabulary | None,
        columns: Mapping[str, Vocabulary | None],
        bad: BadRows,
    ):
        def kind(name):
            return table.schema.field(name).type

        self._table, self._bad = table, bad
        self._user, self._item, self._time = user, item, time
        self.users = NameEncoder(user, kind(user))
        self.items = NameEncoder(item, kind(item), None if vocabulary is None else vocabulary.names)
        self._num_classes = None if vocabulary is None else len(vocabulary)
        self._times = None if time is None else TimeColumn(time, kind(time))
        self.keys = {name: f"column{number}" for number, name in enumerate(columns)}
        self._given = columns
        self._categories = {
            name: NameEncoder(name, kind(name), None if given is None else given.names)
            for name, given in columns.items()
            if given is not None or not _is_number(kind(name))
        }

    def vocabulary_of(self, column: str) -> Vocabulary | None:
        """The names of a further column's categories, or None for numbers; complete after the last block."""
        given = self._given[column]
        if given is not None or column not in self._categories:
            return given
        return Vocabulary(self._categories[column].names())

    def blocks(self) -> Iterator[dict[str, np.ndarray]]:
        """The good rows: arrays of "users", "items", perhaps "times", and `keys[name]` of the other columns.

        At the end the bad rows are reported.

        Raises:
            ValueError: for bad rows, if they are not to be skipped; if there is no good one.
        """
        num_rows = num_good = 0
        for block in self._tables():
            arrays = self._encoded(block, num_rows)
            num_rows += len(block)
            num_good += len(arrays["users"])
            if len(arrays["users"]):
                yield arrays
        self._bad.report(num_rows + len(self._table.skipped))
        if not num_good:
            raise ValueError(f"{self._table.name} holds no interactions.")

    def _tables(self) -> Iterator[pa.Table]:
        """Blocks of rows, larger as more names are known: each block is hashed together with these."""
        num_rows, waiting, schema = 0, [], self._table.schema
        is_long = self._table.num_rows is None or self._table.num_rows > _LONG
        # None: shown on a terminal alone
        with tqdm(
            total=self._table.num_rows, unit=" rows", unit_scale=True, disable=None if is_long else True
        ) as bar:
            for batch in self._table.batches:
                waiting.append(batch)
                num_rows += len(batch)
                bar.update(len(batch))
                if num_rows >= max(_ROWS_PER_BLOCK, len(self.users), len(self.items)):
                    yield pa.Table.from_batches(waiting, schema)
                    num_rows, waiting = 0, []
        yield pa.Table.from_batches(waiting, schema)

    def _encoded(self, block: pa.Table, first_row: int) -> dict[str, np.ndarray]:
        reasons: dict[int, str] = {}  # of the bad rows, by position
        arrays = {}
        for encoder, name, role in ((self.users, self._user, "user"), (self.items, self._item, "item")):
            for position in _empty(encoder.native(block[name])):
                reasons.setdefault(position, f"the {role} id is empty")
        if self._num_classes is not None:
            arrays["items"] = self.items.encode(block[self._item])
            for position in np.flatnonzero(arrays["items"] >= self._num_classes).tolist():
                unknown = block[self._item][position].as_py()
                reasons.setdefault(position, f"the item {str(unknown)!r} is not in the vocabulary")
        if self._times is not None:
            arrays["times"], of_times = self._times.times(block[self._time])
            reasons = {**of_times, **reasons}
        for name, key in self.keys.items():
            if name not in self._categories:
                arrays[key] = _numbers(block[name])
                for position in np.flatnonzero(_no_number(block[name])).tolist():
                    value = block[name][position].as_py()
                    reasons.setdefault(position, f"the {name} is {'null' if value is None else value}")
        if reasons:
            block, arrays = self._without(reasons, block, arrays, first_row)
        return self._with_names(block, arrays)

    def _without(self, reasons, block, arrays, first_row):
        positions = np.array(sorted(reasons))
        for position, row in zip(
            positions.tolist(), self._table.rows(first_row + positions).tolist(), strict=True
        ):
            self._bad.reject(row, reasons[position])
        good = np.ones(len(block), bool)
        good[positions] = False
        return block.filter(pa.array(good)), {name: values[good] for name, values in arrays.items()}

    def _with_names(self, block, arrays) -> dict[str, np.ndarray]:
        """Numbers what only good rows may number; the columns at once, since hashing holds no Python lock."""
        tasks = {"users": (self.users, self._user), "items": (self.items, self._item)}
        tasks |= {self.keys[name]: (encoder, name) for name, encoder in self._categories.items()}
        with ThreadPoolExecutor(pa.cpu_count()) as pool:
            ids = {
                key: pool.submit(encoder.encode, block[name])
                for key, (encoder, name) in tasks.items()
                if key not in arrays
            }
            arrays |= {key: future.result() for key, future in ids.items()}
        for name in self._categories:
            given = self._given[name]
            if given is not None:
                key = self.keys[name]
                arrays[key] = np.where(arrays[key] < len(given), arrays[key], np.int32(-1))
        return arrays


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def _empty(column: pa.ChunkedArray) -> list[int]:
    """Positions of nulls and empty strings."""
    if pa.types.is_large_string(column.type):
        column = pc.if_else(pc.equal(pc.binary_length(column), 0), None, column)
    if not column.null_count:
        return []
    return np.flatnonzero(column.is_null().to_numpy()).tolist()


def _no_number(column: pa.ChunkedArray) -> np.ndarray:
    finite = pc.is_finite(column) if pa.types.is_floating(column.type) else pc.is_valid(column)
    return ~finite.fill_null(False).to_numpy()


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    """In their own type; nulls become 0, to be rejected."""
    filled = column.fill_null(False if pa.types.is_boolean(column.type) else 0)
    return filled.to_numpy().astype(column.type.to_pandas_dtype(), copy=False)
