"""Numbering raw names in order of first appearance, block by block."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfxc.data.names import Names


class NameEncoder:
    """Turns the blocks of a column of strings or integers into ids.

    Each block is hashed together with the names known so far, so a block should not be much smaller than
    these are many: `len(encoder)`.

    Args:
        name: of the column, for messages.
        kind: its Arrow type: strings, integers, floats that hold integers (as pandas makes of integers with
            gaps), booleans, or categories of these.
        known: names that have ids already, the first ones.

    Raises:
        ValueError: for a column of another type.

    Example:
        >>> encoder = NameEncoder("user", pa.string())
        >>> blocks = [pa.chunked_array([["b", "a"]]), pa.chunked_array([["c", None, "a"]])]
        >>> [encoder.encode(block).tolist() for block in blocks]
        [[0, 1], [2, -1, 1]]
        >>> encoder.names()
        ['b', 'a', 'c']
    """

    def __init__(self, name: str, kind: pa.DataType, known: Names | None = None):
        self._name = name
        self._kind = _native(kind)
        if self._kind is None:
            raise ValueError(
                f"The column {name!r} is of type {kind}, expected strings, integers or categories: "
                "convert it to one of these."
            )
        if known is not None:
            self._kind = pa.large_string()
        self._known = pa.array([], self._kind) if known is None else known.array

    def __len__(self) -> int:
        return len(self._known)

    def native(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """The block as the strings or integers that are hashed; what is no name is null."""
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pa.types.is_floating(column.type):
            column = self._integers(column)
        if column.type != self._kind:
            column = column.cast(self._kind)
        return column

    def encode(self, column: pa.ChunkedArray) -> np.ndarray:
        """Ids [M] int32 of a block, -1 for a null; new names get the next ids."""
        if not len(column):
            return np.zeros(0, np.int32)
        joined = pa.chunked_array([self._known, *self.native(column).chunks])
        encoded = joined.dictionary_encode()
        ids = [chunk.indices.fill_null(-1).to_numpy() for chunk in encoded.chunks]
        num_known, self._known = len(self._known), encoded.chunk(0).dictionary
        return np.concatenate(ids)[num_known:]

    def names(self) -> Names:
        """All names so far; that of id i at position i."""
        return Names(self._known.cast(pa.large_string()))

    def _integers(self, column) -> pa.ChunkedArray:
        column = pc.if_else(pc.is_finite(column), column, None)
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise ValueError(
                f"The column {self._name!r} holds floats that are no integers ({error}), expected strings or "
                "integers as names: convert it."
            ) from error


def _native(kind: pa.DataType) -> pa.DataType | None:
    """What a column of a type is hashed as."""
    if pa.types.is_dictionary(kind):
        return _native(kind.value_type)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.large_string()
    if pa.types.is_uint64(kind) or pa.types.is_boolean(kind):
        return kind
    return pa.int64() if pa.types.is_integer(kind) or pa.types.is_floating(kind) else None
