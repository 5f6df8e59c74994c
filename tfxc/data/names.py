"""A list of many strings that needs no Python object for each."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from tfxc.arguments import positions

_PER_BLOCK = 1 << 16
_SHOWN = 10
_FLOAT = float | np.floating
_READY = pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_integer


class Names(Sequence):
    """An immutable list of strings in one Arrow array. Each string takes its characters and 8 bytes.

    It reads like a list of `str`, and equals a list of the same strings. A slice, an array of positions or a
    boolean mask returns `Names` again.

    Args:
        names: texts or UTF-8 bytes; an integer counts as its `str`. An Arrow array of strings is not copied.

    Raises:
        ValueError: for a name that is missing (None, NaN, the missing values of pandas and Arrow), a float or
            a list; for a set, and for what is no list.

    Example:
        >>> names = Names(["ann", "bob", 7])
        >>> names[-1], names[[1, 0]] == ["bob", "ann"], len(names)
        ('7', True, 3)
    """

    def __init__(self, names: Iterable) -> None:
        array: Any = names.array if isinstance(names, Names) else names
        if not isinstance(array, pa.Array) or not any(is_kind(array.type) for is_kind in _READY):
            array = arrow_texts(texts(array))
        if array.null_count:
            raise ValueError(
                f"{array.null_count} of {len(array)} names are null, the first at position "
                f"{array.is_null().index(True)}: leave them out, or give them names."
            )
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


def places_of(names: pa.Array, others: pa.Array) -> np.ndarray:
    """Returns the position int64 of each name among others, -1 for none."""
    found = pc.index_in(names, value_set=others).cast(pa.int64())
    return pc.fill_null(found, -1).to_numpy(zero_copy_only=False)


def first_repeated(names: pa.Array) -> str | None:
    """Returns the first name that repeats an earlier one, or None if all are distinct."""
    # For millions of names, index_in takes a quarter of the memory and half the time of count_distinct.
    place = pc.index_in(names, value_set=names).to_numpy()
    repeated = np.flatnonzero(place < np.arange(len(names)))
    return names[int(repeated[0])].as_py() if len(repeated) else None


def texts(names: Any, where: str = "", keep_missing: bool = False) -> list:
    """Returns raw names of one dimension (a list, array, tensor or pandas Series, ...) as a list of strings.

    Bytes are decoded as UTF-8. An integer, or any other object, counts as its `str`. With `keep_missing`, a
    name that is missing (None, NaN, the missing values of pandas and Arrow) becomes None.
    """
    if isinstance(names, set | frozenset):  # a dict is fine: its keys have an order
        raise ValueError(f"Names{where} are a set, which has no order: pass sorted(names).")
    if tf.is_tensor(names) and not hasattr(names, "numpy"):
        raise ValueError(
            f"Names{where} are a tensor of a graph, as in the map of a tf.data.Dataset, where a Vocabulary "
            "cannot look them up: encode them before, or map keras.layers.StringLookup(num_oov_indices=0, "
            "vocabulary=list(vocabulary.names)), which returns the same ids, but refuses unknown names."
        )
    if isinstance(names, np.ma.MaskedArray):
        names = names.tolist()  # with None for what is masked
    if not isinstance(names, list):
        names = names.numpy() if tf.is_tensor(names) else names
        if getattr(names, "ndim", 1) != 1:
            raise ValueError(f"Names{where} must have one dimension, but are of shape {names.shape}.")
        if isinstance(names, bytes) or not isinstance(names, Iterable):
            raise ValueError(f"Names{where} must be a list of names, but are {names!r}: pass a list.")
        names = list(names)
    kinds = set(map(type, names))  # fast for ten million names
    if kinds <= {str}:
        return names
    if any(issubclass(kind, pa.Scalar | tf.Tensor) for kind in kinds):
        names = [name.as_py() if isinstance(name, pa.Scalar) else name for name in names]
        names = [name.numpy() if tf.is_tensor(name) else name for name in names]
        kinds = set(map(type, names))
    if all(issubclass(kind, str | int | np.integer) for kind in kinds):
        return list(map(str, names))
    for position, name in enumerate(names if any(issubclass(kind, _FLOAT) for kind in kinds) else ()):
        if isinstance(name, _FLOAT) and name == name:
            raise ValueError(
                f"Names must be texts or integers, but the one at position {position}{where} is the float "
                f'{name}: convert them, for example by astype("Int64") or astype(str).'
            )
    nested = next(
        (own for own in names if isinstance(own, Iterable) and not isinstance(own, str | bytes)), None
    )
    if nested is not None:
        raise ValueError(f"Names{where} must have one dimension, but hold {nested!r}.")
    own = [_text(name) for name in names]
    if not keep_missing and None in own:
        raise ValueError(
            f"The name at position {own.index(None)}{where} is missing: leave it out, or give it a name."
        )
    return own


def arrow_texts(names: list, where: str = "at position") -> pa.Array:
    """Returns strings, and null for None, as an Arrow array; ValueError for one that UTF-8 cannot encode."""
    try:
        return pa.array(names, pa.large_string())
    except UnicodeEncodeError as error:
        raise ValueError(
            f"The name {where} {names.index(error.object)}, {error.object!r}, holds half a character (a lone "
            'surrogate), which is not text: replace it with "?" by name.encode("utf-8", "replace").decode().'
        ) from error


def _text(name):
    if isinstance(name, bytes):
        try:
            return name.decode()
        except UnicodeDecodeError:
            raise ValueError(
                f'The name {name!r} is not UTF-8: decode names first, for example by name.decode("latin-1").'
            ) from None
    # pandas.NA cannot be compared. It is known by its type, as pandas need not be installed.
    is_missing = name is None or type(name).__name__ == "NAType" or bool(name != name)
    return None if is_missing else str(name)
