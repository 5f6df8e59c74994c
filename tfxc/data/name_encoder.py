"""Numbers raw names in order of first appearance, block by block."""

import uuid

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfxc.data.names import Names
from tfxc.data.vocabulary import Vocabulary

_NO_NAMES = pa.array([], pa.large_string())
_QUOTED = r'^\s+"(.*)"\s*$'


class NameEncoder:
    """Turns a column of names into ids, in two steps.

    `condense` finds the distinct names of a small batch, and may run for several batches in parallel.
    `encode` looks up only these among all names. It hashes all known names again, so that a block should
    hold more rows than there are known names: `len(encoder)`.

    Args:
        name: of the column, for messages.
        kind: its Arrow type: strings, bytes of UTF-8, UUIDs, integers, decimals or floats that hold integers
            (pandas stores integers with missing values so), booleans, or categories of these.
        known: its names have the first ids.
        missing: what else than nothing spells a missing name.
        is_text: whether the column comes from a text file, where blanks around a name do not count.

    Raises:
        ValueError: for a column of another type.
    """

    def __init__(
        self,
        name: str,
        kind: pa.DataType,
        known: Vocabulary | None = None,
        missing: pa.Array = _NO_NAMES,
        is_text: bool = False,
    ):
        self._name = name
        native = _native(kind)
        if native is None:
            raise ValueError(
                f"The column {name!r} is of type {kind}, expected strings, integers or categories: "
                "convert it to one of these."
            )
        self._kind = native if known is None else pa.large_string()
        self._known = pa.array([], self._kind) if known is None else known.names.array
        self._vocabulary, self._missing, self._is_text = known, missing, is_text

    def __len__(self) -> int:
        return len(self._known)

    def condense(self, batch: pa.Array) -> tuple[pa.DictionaryArray, dict[int, str | None]]:
        """Returns the batch as positions among its distinct names, where null is no name.

        By position, it also returns why a name is null, other than being empty: a reason, or None for a
        spelling of `missing`.

        Raises ValueError for numbers that are not integers, or so large that several are one float.
        """
        why: dict[int, str | None] = {}
        if pa.types.is_dictionary(batch.type):
            batch = batch.dictionary_decode()  # its categories may be in any order, or unused
        if isinstance(batch.type, pa.UuidType):
            batch = _uuids(batch)
        elif pa.types.is_boolean(batch.type):
            batch = pc.if_else(batch, "True", "False").cast(pa.large_string())  # as Python spells them
        elif pa.types.is_floating(batch.type):
            batch = self._integers(batch)
        elif pa.types.is_decimal(batch.type):
            batch = self._without_fraction(batch, pa.decimal256(76, 0), "decimals").cast(pa.large_string())
        elif is_text(batch.type):
            batch, why = decoded(batch)
        condensed = batch.dictionary_encode()
        if pa.types.is_large_string(condensed.dictionary.type) or len(self._missing):
            cleaned = self._cleaned(condensed.dictionary.cast(pa.large_string()))
            if cleaned is not None:
                names, is_missing = cleaned
                is_missing = is_missing.take(condensed.indices).fill_null(False)
                why |= dict.fromkeys(np.flatnonzero(is_missing).tolist())
                condensed = names.take(condensed.indices).dictionary_encode()
        if condensed.dictionary.type != self._kind:
            indices, names = condensed.indices, condensed.dictionary.cast(self._kind)
            condensed = pa.DictionaryArray.from_arrays(indices, names)
        return condensed, why

    def encode(self, batches: list[pa.DictionaryArray]) -> np.ndarray:
        """Returns the ids [M] int32 of condensed batches, end to end; -1 for null. New names get new ids."""
        ids = np.full(sum(map(len, batches)), -1, np.int32)
        names = pa.chunked_array([self._known, *(batch.dictionary for batch in batches)], self._kind)
        if not len(names):
            return ids
        encoded = names.dictionary_encode()
        start, self._known = len(self._known), encoded.chunk(0).dictionary
        id_of_name = np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks])
        filled = 0
        for batch in batches:
            of_batch = id_of_name[start : start + len(batch.dictionary)]
            start += len(batch.dictionary)
            of_batch = np.append(of_batch, np.int32(-1))  # a null has position -1, which is the last one
            ids[filled : filled + len(batch)] = of_batch[batch.indices.fill_null(-1).to_numpy()]
            filled += len(batch)
        return ids

    def names(self) -> Names:
        """Returns all names so far. The name of id i is at position i."""
        return Names(self._known.cast(pa.large_string()))

    def _cleaned(self, names: pa.Array) -> tuple[pa.Array, pa.Array] | None:
        """Returns names without what does not count, null for none, and which of them are spelled as missing.

        Returns None if all names stay as they are.
        """
        own = names
        if self._is_text:
            if pc.any(pc.starts_with(own, " ")).as_py():  # a quote after a blank is none to Arrow
                bare = pc.replace_substring(pc.replace_substring_regex(own, _QUOTED, r"\1"), '""', '"')
                own = pc.if_else(pc.match_substring_regex(own, _QUOTED), bare, own)
            own = pc.utf8_trim_whitespace(own)
        if self._vocabulary is not None:
            own = self._vocabulary.normalized(own)
        is_none = pc.equal(pc.binary_length(own), 0)
        if not len(self._missing) and not pc.any(is_none).as_py() and (own is names or own.equals(names)):
            return None
        is_missing = pc.is_in(own, self._missing)
        return pc.if_else(pc.or_(is_missing, is_none), None, own), is_missing

    def _integers(self, batch: pa.Array) -> pa.Array:
        exact = 2 ** (np.finfo(batch.type.to_pandas_dtype()).nmant + 1)
        batch = batch.cast(pa.float64())
        batch = pc.if_else(pc.is_finite(batch), batch, None)
        largest = pc.max(pc.abs(batch)).as_py()
        if largest is not None and largest >= exact:
            raise ValueError(
                f"The column {self._name!r} holds names as floats up to {largest:.0f}. From {exact} on, "
                "several integers are the same float, and would become one name: read the column as strings, "
                'or as integers ("Int64" in pandas).'
            )
        return self._without_fraction(batch, pa.int64(), "floats")

    def _without_fraction(self, batch, kind, what) -> pa.Array:
        try:
            return batch.cast(kind)
        except pa.ArrowInvalid as error:
            raise ValueError(
                f"The column {self._name!r} holds {what} that are not integers ({error}), expected strings "
                "or integers as names: convert it."
            ) from error


def _native(kind: pa.DataType) -> pa.DataType | None:
    """Returns the type in which a column's names are hashed, or None if the column cannot hold names."""
    if pa.types.is_dictionary(kind):
        return _native(kind.value_type)
    if pa.types.is_uint64(kind):
        return kind
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return pa.int64()
    others = pa.types.is_null, pa.types.is_boolean, pa.types.is_decimal
    has_text = is_text(kind) or isinstance(kind, pa.UuidType) or any(is_kind(kind) for is_kind in others)
    return pa.large_string() if has_text else None


def is_text(kind) -> bool:
    """Whether a type is of strings or bytes."""
    types = pa.types
    kinds = types.is_string, types.is_large_string, types.is_binary, types.is_large_binary
    return any(is_kind(kind) for is_kind in (*kinds, types.is_fixed_size_binary))


def _uuids(batch: pa.Array) -> pa.Array:
    """Returns UUIDs as their usual text."""
    condensed = batch.storage.dictionary_encode()
    names = [None if own is None else str(uuid.UUID(bytes=own)) for own in condensed.dictionary.to_pylist()]
    return pa.array(names, pa.large_string()).take(condensed.indices)


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
