"""Arguments of public constructors, checked alike everywhere."""

import numbers


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
