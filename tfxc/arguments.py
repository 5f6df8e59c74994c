"""Arguments of public constructors, checked alike everywhere."""

import numbers
import os
import random
import re

import numpy as np
import tensorflow as tf

_SCHEME = re.compile(r"[A-Za-z][\w+.-]+:/")  # with one slash where it came as a pathlib.Path


def positive_int(value, name, least=1, most=None):
    """The value as a Python int.

    Args:
        value: an integer of Python or NumPy; no bool, and no float, not even a whole one.
        name: what the error calls it.
        least: the smallest value allowed.
        most: the largest value allowed, or None.

    Raises:
        ValueError: for anything else.

    Example:
        >>> positive_int(np.int64(3), "k")
        3
        >>> positive_int(8.5, "k")
        Traceback (most recent call last):
        ...
        ValueError: k must be an integer of at least 1, but got 8.5.
    """
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_integer or value < least or (most is not None and value > most):
        expected = f"of at least {least}" if most is None else f"in [{least}, {most}]"
        raise ValueError(f"{name} must be an integer {expected}, but got {value!r}.")
    return int(value)


def one_of(value, name, choices):
    """The choice that the value is.

    Args:
        value: a text, or what equals one, as tf.bfloat16 does "bfloat16".
        name: what the error calls it.
        choices: texts; of a dict its keys.

    Raises:
        ValueError: for anything else.

    Example:
        >>> one_of(tf.bfloat16, "table_dtype", ("float32", "bfloat16"))
        'bfloat16'
        >>> one_of("opq", "quantizer", ("rq", "pq"))
        Traceback (most recent call last):
        ...
        ValueError: quantizer must be one of ('rq', 'pq'), but got 'opq'.
    """
    choices = tuple(choices)
    if value not in choices:
        raise ValueError(f"{name} must be one of {choices}, but got {value!r}.")
    return choices[choices.index(value)]


def real_number(value, name):
    """The value as a Python float.

    Args:
        value: a number of Python, NumPy or TensorFlow; no bool, and no text, not even of a number.
        name: what the error calls it.

    Raises:
        ValueError: for anything else.

    Example:
        >>> real_number(np.float32(0.5), "temperature")
        0.5
        >>> real_number(None, "temperature")
        Traceback (most recent call last):
        ...
        ValueError: temperature must be a number, but got None.
    """
    try:
        return float(None if isinstance(value, bool | np.bool_ | str | bytes) else value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number, but got {value!r}.") from None


def local_folder(path):
    """A folder of this machine's disk as it was given; a path of other storage would become one beside it.

    Args:
        path: a string or a path.

    Raises:
        ValueError: for a path of other storage, such as "gs://bucket/run".

    Example:
        >>> local_folder("runs/1")
        'runs/1'
    """
    if _SCHEME.match(os.fspath(path)):
        raise ValueError(
            f"{os.fspath(path)!r} is no folder of this machine: name one on a disk or a mounted file "
            "system, and copy it to other storage from there."
        )
    return path


def require_count(value, name, num_classes=None):
    """Raises ValueError for a count that is no int in its range, and no tensor of integers.

    Args:
        value: an integer of at least 1; of a tensor the graph that runs has to check that.
        name: what the error calls it.
        num_classes: L, the largest value allowed, or None.

    Example:
        >>> require_count(3, "k", num_classes=5)
        >>> require_count(tf.constant(3), "k", num_classes=5)
        >>> require_count(2.5, "k", num_classes=5)
        Traceback (most recent call last):
        ...
        ValueError: k must be an int or an integer scalar tensor, but got 2.5.
    """
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        if value < 1 or (num_classes is not None and value > num_classes):
            expected = (
                "at least 1" if num_classes is None else f"in [1, {num_classes}], the number of classes"
            )
            raise ValueError(f"{name} must be {expected}, but got {value}.")
        return
    dtype = getattr(value, "dtype", None)
    is_integer = dtype is not None and tf.as_dtype(dtype).is_integer
    if not is_integer or tf.TensorShape(value.shape).rank not in (0, None):
        raise ValueError(f"{name} must be an int or an integer scalar tensor, but got {value!r}.")


def count_tensor(value, most):
    """A count as an int32 scalar tensor, clamped to the most that it can be before a cast would cut it.

    Example:
        >>> int(count_tensor(tf.constant(2**32 + 1, tf.int64), most=5))
        5
    """
    if isinstance(value, numbers.Integral):
        return tf.constant(min(value, most), tf.int32)
    return tf.cast(tf.minimum(tf.cast(value, tf.int64), most), tf.int32)


def seed_or_drawn(seed):
    """A seed as a Python int, one drawn by ``random`` for None.

    Example:
        >>> seed_or_drawn(7), 0 <= seed_or_drawn(None) < 2**31
        (7, True)
    """
    return random.randrange(2**31) if seed is None else seed_int(seed)


def seed_int(value):
    """A seed as a Python int.

    Args:
        value: an integer of Python or NumPy that 64 bits hold; no bool, and no float.

    Raises:
        ValueError: for anything else, which a cast would cut.

    Example:
        >>> seed_int(np.int32(7))
        7
        >>> seed_int(1.7)
        Traceback (most recent call last):
        ...
        ValueError: seed must be an integer in [-2^63, 2^63), but got 1.7.
    """
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_integer or not -(2**63) <= value < 2**63:
        raise ValueError(f"seed must be an integer in [-2^63, 2^63), but got {value!r}.")
    return int(value)


def integers(values, name):
    """The values as an array of integers of their own type; what is mapped from disk stays mapped.

    Args:
        values: an array or list of any shape.
        name: what the error calls them.

    Raises:
        ValueError: for numbers of another kind, which a cast would cut.

    Example:
        >>> integers([3, 2**40], "items").dtype.name
        'int64'
        >>> integers([0.5], "items")
        Traceback (most recent call last):
        ...
        ValueError: items must be integers, but are float64.
    """
    values = np.asanyarray(values)
    if values.size and values.dtype.kind not in "iu":
        raise ValueError(f"{name} must be integers, but are {values.dtype}.")
    return values if values.size else values.astype(np.int64)


def by_class(values, name, dtype=np.float64):
    """Numbers of the classes, in id order, as an array.

    Args:
        values: an array or a list; or a pandas Series whose index is that of the class ids.
        name: what the error calls them.
        dtype: of the result.

    Raises:
        ValueError: for a pandas object with another index, as ``value_counts`` makes it: by falling count.

    Example:
        >>> by_class([3, 2], "counts").tolist()
        [3.0, 2.0]
    """
    if hasattr(values, "iloc") and not np.array_equal(np.asarray(values.index), np.arange(len(values))):
        raise ValueError(
            f"{name} come from pandas, and their index is not 0, 1, 2, ... as the class ids are: pass "
            f"{name}.reindex(range(num_classes), fill_value=0) where the index holds class ids, or "
            f"{name}.to_numpy() where the numbers stand in the order of the ids."
        )
    return np.asarray(values, dtype)


def innermost(values):
    """The first of what lists and tuples hold, however deep; an empty one stands for itself.

    Example:
        >>> innermost([["tea"], []]), innermost([])
        ('tea', [])
    """
    while isinstance(values, list | tuple) and values:
        values = values[0]
    return values


def lists_as_tensors(inputs):
    """Inputs, or features, whose lists of numbers or texts are tensors; a list of arrays stays a list.

    Example:
        >>> lists_as_tensors({"text": ["red rose"]})["text"].shape
        TensorShape([1])
    """
    if isinstance(inputs, list) and isinstance(innermost(inputs), list | numbers.Number | str | bytes):
        return tf.convert_to_tensor(inputs)
    if type(inputs) is dict:
        return {name: lists_as_tensors(part) for name, part in inputs.items()}
    if type(inputs) in (list, tuple):
        return type(inputs)(map(lists_as_tensors, inputs))
    return inputs


def positions(values, size, name):
    """Positions int64 [V] in [0, size), chosen by integers, negative ones from the end, or by a boolean mask.

    Args:
        values: integers [V], or booleans [size].
        size: of what they choose from.
        name: what the error calls them.

    Raises:
        ValueError: for other values, positions outside [-size, size), or a mask of another length.

    Example:
        >>> positions([2, -1], 3, "index").tolist(), positions([False, True, True], 3, "index").tolist()
        ([2, 2], [1, 2])
    """
    values = np.asarray(values)
    if values.dtype == bool:
        if values.shape != (size,):
            raise ValueError(
                f"{name} is a mask of shape {values.shape}, but there are {size} to choose from."
            )
        return np.flatnonzero(values)
    values = integers(values, name).astype(np.int64)
    if values.size and not (-size <= values.min() and values.max() < size):
        raise ValueError(
            f"{name} must be positions in [-{size}, {size}), but range from {values.min()} to {values.max()}."
        )
    return np.where(values < 0, values + size, values)
