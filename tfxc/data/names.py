"""Many strings as one list without a Python object each."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tfxc.arguments import positions

_PER_BLOCK = 1 << 16
_SHOWN = 10


class Names(Sequence):
    """An immutable list of strings kept as one Arrow array: ten million cost their characters and 8 bytes
    each.

    It reads like a list of `str`, which it equals if that holds the same strings. A slice, an array of
    positions or a boolean mask gives `Names` again.

    Args:
        names: the strings; anything else is converted with `str`. An Arrow array of strings is not copied.

    Raises:
        ValueError: for an Arrow array with nulls.

    Example:
        >>> names = Names(["ann", "bob", 7])
        >>> names[-1], names[[1, 0]] == ["bob", "ann"], len(names)
        ('7', True, 3)
    """

    def __init__(self, names: Iterable):
        array: Any = names.array if isinstance(names, Names) else names
        if not isinstance(array, pa.Array):
            array = pa.array([str(name) for name in names], pa.large_string())
        if array.null_count:
            raise ValueError(f"{array.null_count} of {len(array)} names are null; a name must be a string.")
        self.array: pa.Array = array.cast(pa.large_string())

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, where):
        if isinstance(where, slice):
            where = np.arange(len(self))[where]
        if np.ndim(where):
            return Names(self.array.take(pa.array(positions(where, len(self), "where"))))
        return self.array[range(len(self))[where]].as_py()  # negative positions, and IndexError past the end

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _PER_BLOCK):
            yield from self.array.slice(start, _PER_BLOCK).to_pylist()

    def __eq__(self, other) -> bool:
        if isinstance(other, Names):
            return self.array.equals(other.array)
        return isinstance(other, list | tuple) and len(other) == len(self) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __repr__(self) -> str:
        first = self.array.slice(0, _SHOWN).to_pylist()
        return repr(first) if len(self) <= _SHOWN else f"{repr(first)[:-1]}, ... {len(self)} names]"
