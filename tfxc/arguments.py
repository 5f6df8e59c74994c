"""Arguments of public constructors, checked alike everywhere."""

import numbers

import numpy as np


def positive_int(value, name, least=1):
    """The value as a Python int.

    Args:
        value: an integer of Python or NumPy; no bool, and no float, not even a whole one.
        name: what the error calls it.
        least: the smallest value allowed.

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
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, but got {value!r}.")
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
