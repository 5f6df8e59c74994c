"""Numbers raw names in order of first appearance, block by block."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfxc.data.names import Names


class NameEncoder:
    """Turns a column of strings or integers into ids, in two steps.

    `condense` finds the distinct names of a small batch, and may run for several batches in parallel.
    `encode` looks up only these among all names. It hashes all known names again, so that a block should
    hold more rows than there are known names: `len(encoder)`.

    Args:
        name: of the column, for messages.
        kind: its Arrow type: strings, integers, floats that hold integers (pandas stores integers with
            missing values so), booleans, or categories of these.
        known: names that have the first ids.

    Raises:
        ValueError: for a column of another type.
    """

    def __init__(self, name: str, kind: pa.DataType, known: Names | None = None):
        self._name = name
        native = _native(kind)
        if native is None:
            raise ValueError(
                f"The column {name!r} is of type {kind}, expected strings, integers or categories: "
                "convert it to one of these."
            )
        self._kind = native if known is None else pa.large_string()
        self._known = pa.array([], self._kind) if known is None else known.array

    def __len__(self) -> int:
        return len(self._known)

    def condense(self, batch: pa.Array) -> pa.DictionaryArray:
        """Returns the batch as positions among its distinct names. An empty or missing name is null.

        Raises ValueError for floats that are not integers, or so large that several integers are one float.
        """
        if pa.types.is_dictionary(batch.type):
            batch = batch.dictionary_decode()  # its categories may be in any order, or unused
        if pa.types.is_floating(batch.type):
            batch = self._integers(batch)
        if pa.types.is_string(batch.type) or pa.types.is_large_string(batch.type):
            is_empty = pc.equal(pc.binary_length(batch), 0)
            batch = pc.if_else(is_empty, None, batch) if pc.any(is_empty).as_py() else batch
        elif pa.types.is_boolean(batch.type):
            batch = pc.if_else(batch, "True", "False").cast(self._kind)  # as Python spells them
        elif batch.type != self._kind:
            batch = batch.cast(self._kind)
        return batch.dictionary_encode()

    def encode(self, batches: list[pa.DictionaryArray]) -> np.ndarray:
        """Returns the ids [M] int32 of condensed batches, end to end; -1 for null. New names get new ids."""
        ids = np.full(sum(map(len, batches)), -1, np.int32)
        names = pa.chunked_array(
            [self._known, *(batch.dictionary.cast(self._kind) for batch in batches)], self._kind
        )
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

    def _integers(self, batch: pa.Array) -> pa.Array:
        batch = pc.if_else(pc.is_finite(batch), batch, None)
        largest = pc.max(pc.abs(batch)).as_py()
        exact = 2 ** (np.finfo(batch.type.to_pandas_dtype()).nmant + 1)
        if largest is not None and largest >= exact:
            raise ValueError(
                f"The column {self._name!r} holds names as floats up to {largest:.0f}. From {exact} on, "
                "several integers are the same float, and would become one name: read the column as strings, "
                'or as integers ("Int64" in pandas).'
            )
        try:
            return batch.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise ValueError(
                f"The column {self._name!r} holds floats that are not integers ({error}), expected strings "
                "or integers as names: convert it."
            ) from error


def _native(kind: pa.DataType) -> pa.DataType | None:
    """Returns the type in which a column's names are hashed, or None if the column cannot hold names."""
    if pa.types.is_dictionary(kind):
        return _native(kind.value_type)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_boolean(kind):
        return pa.large_string()
    if pa.types.is_uint64(kind):
        return kind
    return pa.int64() if pa.types.is_integer(kind) or pa.types.is_floating(kind) else None
