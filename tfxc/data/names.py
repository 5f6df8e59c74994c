"""Many strings as one list without a Python object each."""

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


class Names(Sequence):
    """An immutable list of strings kept as one Arrow array: ten million cost their characters and 8 bytes
    each.

    It reads like a list of `str`, which it equals if that holds the same strings. A slice, an array of
    positions or a boolean mask gives `Names` again.

    Args:
        names: texts or UTF-8 bytes; an integer counts as its `str`. An Arrow array of strings is not copied.

    Raises:
        ValueError: for a name that is missing (None, NaN, those of pandas and Arrow) or a float, or a set.

    Example:
        >>> names = Names(["ann", "bob", 7])
        >>> names[-1], names[[1, 0]] == ["bob", "ann"], len(names)
        ('7', True, 3)
    """

    def __init__(self, names: Iterable) -> None:
        array: Any = names.array if isinstance(names, Names) else names
        if not isinstance(array, pa.Array) or pa.types.is_floating(array.type):
            array = arrow_texts(texts(array))
        if array.null_count:
            raise ValueError(
                f"{array.null_count} of {len(array)} names are null, the first at position "
                f"{array.is_null().index(True)}: leave them out, or name them."
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


def first_repeated(names: pa.Array) -> str | None:
    """The first name that stands further in front, too; None where all are distinct.

    >>> first_repeated(pa.array(["tea", "milk", "tea"]))
    'tea'
    """
    # Millions of names take a quarter of the memory of ``count_distinct``, and half of its time.
    place = pc.index_in(names, value_set=names).to_numpy()
    repeated = np.flatnonzero(place < np.arange(len(names)))
    return names[int(repeated[0])].as_py() if len(repeated) else None


def texts(names: Any, where: str = "", keep_missing: bool = False) -> list:
    """Raw names as a list of strings.

    Bytes are UTF-8; an integer, as whatever else is no text, counts as its `str`.

    Args:
        names: a list, an array, a tensor, a pandas Series or anything else of one dimension.
        where: they stand, for messages.
        keep_missing: give None for a name that is missing (None, NaN, those of pandas and Arrow).

    Raises:
        ValueError: for a name that is missing or a float, bytes that are no UTF-8, several dimensions, or a
            set.

    Example:
        >>> texts(["tea", b"milk", 7]), texts(tf.constant(["tea", "milk"]))
        (['tea', 'milk', '7'], ['tea', 'milk'])
    """
    if isinstance(names, set | frozenset):  # the keys of a dict have an order
        raise ValueError(f"Names{where} are a set, which has no order: pass sorted(names).")
    if tf.is_tensor(names) and not hasattr(names, "numpy"):
        raise ValueError(
            f"Names{where} are a tensor of a graph, as in the map of a tf.data.Dataset, where a Vocabulary "
            "cannot look them up: encode them before, or map keras.layers.StringLookup(num_oov_indices=0, "
            "vocabulary=list(vocabulary.names)), which gives the same ids, but refuses unknown names."
        )
    if not isinstance(names, list):
        names = names.numpy() if tf.is_tensor(names) else names
        if getattr(names, "ndim", 1) != 1:
            raise ValueError(f"Names{where} must be of one dimension, but are of shape {names.shape}.")
        names = list(names)
    kinds = set(map(type, names))  # there may be ten million to ask
    if kinds <= {str}:
        return names
    if any(issubclass(kind, pa.Scalar | tf.Tensor) for kind in kinds):
        names = [_plain(name) for name in names]
        kinds = set(map(type, names))
    if all(issubclass(kind, str | int | np.integer) for kind in kinds):
        return list(map(str, names))
    if any(issubclass(kind, _FLOAT) for kind in kinds):
        _refuse_floats(names, where)
    own = [_text(name) for name in names]
    if not keep_missing and None in own:
        raise ValueError(
            f"The name at position {own.index(None)}{where} is missing: leave it out, or name it."
        )
    return own


def arrow_texts(names: list, where: str = "at position") -> pa.Array:
    """Strings, and None where there is none, as an Arrow array.

    Args:
        names: the strings.
        where: what comes before the number of a name, for the error.

    Raises:
        ValueError: for a string that UTF-8 cannot write.

    Example:
        >>> arrow_texts(["tea", None]).null_count
        1
    """
    try:
        return pa.array(names, pa.large_string())
    except UnicodeEncodeError as error:
        raise ValueError(
            f"The name {where} {names.index(error.object)}, {error.object!r}, holds half a character (a lone "
            'surrogate), which is no text: name.encode("utf-8", "replace").decode() puts "?" in its place.'
        ) from error


def _plain(name):
    if isinstance(name, pa.Scalar):
        return name.as_py()
    return name.numpy() if tf.is_tensor(name) else name


def _refuse_floats(names, where):
    for position, name in enumerate(names):
        if isinstance(name, _FLOAT) and name == name:
            raise ValueError(
                f"Names are texts or integers, but the one at position {position}{where} is the float "
                f'{name}: convert them, with astype("Int64") or astype(str) say.'
            )


def _text(name):
    if isinstance(name, bytes):
        try:
            return name.decode()
        except UnicodeDecodeError:
            raise ValueError(
                f'The name {name!r} is no UTF-8: decode names first, name.decode("latin-1") say.'
            ) from None
    return str(name) if isinstance(name, str) or not _is_missing(name) else None


def _is_missing(name):
    # pandas, which need not be there, has one that cannot be compared: pandas.NA.
    return name is None or type(name).__name__ == "NAType" or bool(name != name)
