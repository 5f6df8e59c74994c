"""Numbers raw names in order of first appearance, block by block."""

import uuid

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfxc.data.line_reader import num_line_ends
from tfxc.data.names import Names
from tfxc.data.table import without_categories
from tfxc.data.vocabulary import Vocabulary

_NO_NAMES = pa.array([], pa.large_string())
_QUOTED = r'^\s+"(.*)"\s*$'


class NameEncoder:
    """Turns a column of names into ids, in two steps.

    `condense` finds the distinct names of a small batch, and may run for several batches in parallel.
    `encode` looks up only these among all names. It hashes all known names again, so that a block should
    hold more rows than there are known names: `len(encoder)`.

    The column's Arrow type may be strings, bytes of UTF-8, UUIDs, integers, decimals or floats that hold
    integers (pandas stores integers with missing values so), booleans, or categories of these; another is a
    ValueError. Known names have the first ids. Blanks around a name do not count if the column is text.
    """

    def __init__(
        self,
        name: str,  # for messages
        kind: pa.DataType,
        known: Vocabulary | None = None,
        missing: pa.Array = _NO_NAMES,  # what else than nothing spells a missing name
        is_text: bool = False,
    ):
        types, plain = pa.types, without_categories(kind)
        kinds = types.is_null, types.is_boolean, types.is_integer, types.is_floating, types.is_decimal
        if not (isinstance(plain, pa.UuidType) or holds_text(plain) or any(own(plain) for own in kinds)):
            raise ValueError(
                f"The column {name!r} is of type {kind}, expected strings, integers or categories: "
                "convert it to one of these."
            )
        self._name, self._vocabulary, self._missing, self._is_text = name, known, missing, is_text
        keeps_type = types.is_integer(kind) and known is None and not len(missing)
        self._kind = kind if keeps_type else pa.large_string()  # integers are hashed in less time than texts
        self._known = pa.array([], self._kind) if known is None else known.names.array

    def __len__(self) -> int:
        return len(self._known)

    def condense(self, batch: pa.Array) -> tuple[pa.DictionaryArray, dict[int, str | None]]:
        """Returns the batch as positions among its distinct names, where null is no name.

        By position, it also returns why a name is null, other than being empty: a reason, or None for a
        spelling of `missing`.
        """
        kind = batch.type
        if pa.types.is_dictionary(kind):
            batch = batch.dictionary_decode()  # its categories may be in any order, or unused
        elif isinstance(kind, pa.UuidType):
            batch = batch.storage
        condensed = batch.dictionary_encode()
        if batch.type == self._kind and pa.types.is_integer(batch.type):
            return condensed, {}
        names, reasons = self._texts(condensed.dictionary, kind)
        names, is_missing = self._cleaned(names)
        reasons |= dict.fromkeys(np.flatnonzero(is_missing).tolist())
        if self._is_text:
            broken = np.flatnonzero(pc.match_substring_regex(names, "[\r\n]").fill_null(False)).tolist()
            reasons |= {place: line_break(names[place].as_py()) for place in broken}
        why = {}
        if reasons:
            indices = condensed.indices.fill_null(-1).to_numpy()
            where = np.flatnonzero(np.isin(indices, list(reasons))).tolist()
            why = {position: reasons[int(indices[position])] for position in where}
        if names.null_count:
            return names.take(condensed.indices).dictionary_encode(), why
        return pa.DictionaryArray.from_arrays(condensed.indices, names), why

    def encode(self, batches: list[pa.DictionaryArray]) -> np.ndarray:
        """Returns the ids [M] int32 of condensed batches, end to end; -1 for null. New names get new ids."""
        known = pa.DictionaryArray.from_arrays(pa.array([], pa.int32()), self._known)
        unified = pa.chunked_array([known, *batches]).unify_dictionaries()
        self._known = unified.chunk(0).dictionary
        return np.concatenate([chunk.indices.fill_null(-1).to_numpy() for chunk in unified.chunks])

    def names(self) -> Names:
        """Returns all names so far. The name of id i is at position i."""
        return Names(self._known.cast(pa.large_string()))

    def _texts(self, values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, dict[int, str | None]]:
        """Returns distinct values as texts, null for none, and why some are none."""
        if isinstance(kind, pa.UuidType):
            names = [None if own is None else str(uuid.UUID(bytes=own)) for own in values.to_pylist()]
            return pa.array(names, pa.large_string()), {}
        if holds_text(values.type):
            return decoded(values)
        if pa.types.is_boolean(values.type):
            values = pc.if_else(values, "True", "False")  # as Python spells them
        elif pa.types.is_floating(values.type):
            values = self._integers(values)
        elif pa.types.is_decimal(values.type):
            values = self._without_fraction(values, pa.decimal256(76, 0), "decimals")
        return values.cast(pa.large_string()), {}

    def _cleaned(self, names: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Returns names without what does not count, null for none, and which are spelled as missing."""
        if self._is_text:
            if pc.any(pc.starts_with(names, " ")).as_py():  # a quote after a blank is none to Arrow
                bare = pc.replace_substring(pc.replace_substring_regex(names, _QUOTED, r"\1"), '""', '"')
                names = pc.if_else(pc.match_substring_regex(names, _QUOTED), bare, names)
            names = pc.utf8_trim_whitespace(names)
        if self._vocabulary is not None:
            names = self._vocabulary.normalized(names)
        is_missing = pc.is_in(names, self._missing)
        is_none = pc.or_(is_missing, pc.equal(pc.binary_length(names), 0))
        return pc.if_else(is_none, None, names), is_missing

    def _integers(self, values: pa.Array) -> pa.Array:
        exact = 2 ** (np.finfo(values.type.to_pandas_dtype()).nmant + 1)
        values = values.cast(pa.float64())
        values = pc.if_else(pc.is_finite(values), values, None)
        largest = pc.max(pc.abs(values)).as_py()
        if largest is not None and largest >= exact:
            raise ValueError(
                f"The column {self._name!r} holds names as floats up to {largest:.0f}. From {exact} on, "
                "several integers are the same float, and would become one name: read the column as strings, "
                'or as integers ("Int64" in pandas).'
            )
        return self._without_fraction(values, pa.int64(), "floats")

    def _without_fraction(self, values, kind, what) -> pa.Array:
        try:
            return values.cast(kind)
        except pa.ArrowInvalid as error:
            raise ValueError(
                f"The column {self._name!r} holds {what} that are not integers ({error}), expected strings "
                "or integers as names: convert it."
            ) from error


def line_break(text: str) -> str:
    """Returns why a row is bad in which a text holds a line break."""
    number = num_line_ends(text)
    return f"holds a line break, which may come from a quote that is not closed (line breaks: {number})"


def holds_text(kind: pa.DataType) -> bool:
    """Whether a type is of strings or bytes."""
    types = pa.types
    kinds = types.is_string, types.is_large_string, types.is_binary, types.is_large_binary
    return any(is_kind(kind) for is_kind in (*kinds, types.is_fixed_size_binary))


def decoded(batch: pa.Array) -> tuple[pa.Array, dict[int, str | None]]:
    """Returns strings or bytes as text, null where they are no UTF-8, and why. A file may say it is text."""
    batch = batch.cast(pa.large_binary())
    why: dict[int, str | None] = {}
    try:
        return batch.cast(pa.large_string()), why
    except pa.ArrowInvalid:
        texts: list[str | None] = []
    for position, raw in enumerate(batch.to_pylist()):
        try:
            texts.append(None if raw is None else raw.decode())
        except UnicodeDecodeError as error:
            texts.append(None)
            why[position] = (
                f"is not UTF-8 at byte {error.start}: {raw[:40]!r}; of a text file, pass encoding="
            )
    return pa.array(texts, pa.large_string()), why
