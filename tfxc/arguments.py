"""Checks of arguments that many public functions and constructors share."""

import numbers
import os
import random
import re

import numpy as np
import tensorflow as tf

# A drive of Windows, or the scheme of a URL, of which pathlib.Path turns the two slashes into one.
_ELSEWHERE = re.compile(r"([A-Za-z][\w+.-]*):[\\/]")


def is_integer(value):
    """Whether a value is an integer of Python or NumPy. Booleans and whole floats are not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def positive_int(value, name, least=1, most=None):
    """An integer of Python or NumPy in [least, most] as a Python int; else a ValueError that names it."""
    if not is_integer(value) or value < least or (most is not None and value > most):
        expected = f"of at least {least}" if most is None else f"in [{least}, {most}]"
        raise ValueError(f"{name} must be an integer {expected}, but got {value!r}.")
    return int(value)


def one_of(value, name, choices):
    """The text among the choices that equals the value: tf.bfloat16 is "bfloat16". Else a ValueError."""
    choices = tuple(choices)
    if value not in choices:
        raise ValueError(f"{name} must be one of {choices}, but got {value!r}.")
    return choices[choices.index(value)]


def real_number(value, name):
    """Returns a number of Python, NumPy or TensorFlow as a float; ValueError for booleans and texts, too."""
    try:
        return float(None if isinstance(value, bool | np.bool_ | str | bytes) else value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be a number, but got {value!r}.") from None


def is_in(values, interval):
    """Whether a number, or each of an array, is in an interval such as "(0, 1]" or "[0, inf)"."""
    least, most = map(float, interval[1:-1].split(","))
    is_above = values >= least if interval[0] == "[" else values > least
    return is_above & (values <= most if interval[-1] == "]" else values < most)


def number_in(value, name, interval):
    """A real number in an interval as of ``is_in``, as a float; else a ValueError."""
    number = real_number(value, name)
    if not is_in(number, interval):
        raise ValueError(f"{name} must be in {interval}, but got {value!r}.")
    return number


def local_path(path):
    """A path as it was given; ValueError for what is none, is of remote storage, or of Windows elsewhere."""
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"path must be that of a file or folder, but is of {type(path).__name__}.")
    elsewhere = _ELSEWHERE.match(os.fspath(path))
    if elsewhere and not (os.name == "nt" and len(elsewhere[1]) == 1):
        raise ValueError(
            f"{os.fspath(path)!r} is not a path of this machine: name one on a disk or mounted file system, "
            r"as /mnt/c/run is for C:\run under WSL, and copy it to remote storage from there."
        )
    return path


def require_count(value, name, num_classes=None):
    """Raises ValueError unless a count is an integer in [1, L] or an integer scalar tensor, of any value."""
    if is_integer(value):
        positive_int(value, name, most=num_classes)
        return
    dtype = getattr(value, "dtype", None)
    has_integers = dtype is not None and tf.as_dtype(dtype).is_integer
    if not has_integers or tf.TensorShape(value.shape).rank not in (0, None):
        raise ValueError(f"{name} must be an int or an integer scalar tensor, but got {value!r}.")


def count_tensor(value, most):
    """Returns a count as an int32 scalar tensor of at most ``most``; clamping it first prevents overflow."""
    if isinstance(value, numbers.Integral):
        return tf.constant(min(value, most), tf.int32)
    return tf.cast(tf.minimum(tf.cast(value, tf.int64), most), tf.int32)


def seed_or_drawn(seed):
    """Returns a seed as a Python int. Python's ``random`` draws one for None."""
    return random.randrange(2**31) if seed is None else seed_int(seed)


def seed_int(value):
    """Returns an integer of Python or NumPy that fits in 64 bits as a Python int; else raises ValueError."""
    if not is_integer(value) or not -(2**63) <= value < 2**63:
        raise ValueError(f"seed must be an integer in [-2^63, 2^63), but got {value!r}.")
    return int(value)


def require_kind(value, kind, name, remedy):
    """Raises ValueError, with a remedy, for a value that is not of a class of ``tfxc.data``."""
    if not isinstance(value, kind):
        raise ValueError(
            f"{name} must be tfxc.data.{kind.__name__}, but got {type(value).__name__}: pass {remedy}."
        )


def refuse_masked(values, name):
    """Raises ValueError for an array of NumPy with masked values, which would count as any others."""
    if np.ma.is_masked(values):
        raise ValueError(
            f"{name} hold masked values, {np.ma.count_masked(values)} of {np.size(values)}: leave them out, "
            "or give them a value by filled()."
        )


def integers(values, name, limit=None, least=0):
    """Integers in [least, limit) as an array of their type, still mapped if they were; else a ValueError."""
    try:
        values = np.asanyarray(values)
    except ValueError as error:
        raise ValueError(f"{name} must be an array of integers, but: {error}") from error
    refuse_masked(values, name)
    if not values.size:
        return values.astype(np.int64)
    if values.dtype.kind not in "iu":
        raise ValueError(f"{name} must be integers, but are {values.dtype}.")
    if limit is not None and (values.min() < least or values.max() >= limit):
        raise ValueError(
            f"{name} must be integers in [{least}, {limit}), but range from {values.min()} to {values.max()}."
        )
    return values


def by_class(values, name, dtype=np.float64):
    """Numbers of the classes as an array; ValueError for a dict, or a pandas index other than 0, 1, 2, ..."""
    refuse_masked(values, name)
    if isinstance(values, dict):
        raise ValueError(
            f"{name} must hold a value for each class, [L], but are a {type(values).__name__}: pass "
            f"[{name}.get(i, 0) for i in range(num_classes)] if its keys are class ids."
        )
    if hasattr(values, "iloc") and not np.array_equal(np.asarray(values.index), np.arange(len(values))):
        raise ValueError(
            f"{name} come from pandas, but their index is not 0, 1, 2, ... as the class ids are: pass "
            f"{name}.reindex(range(num_classes), fill_value=0) if the index holds class ids, or "
            f"{name}.to_numpy() if the numbers are in the order of the ids."
        )
    return np.asarray(values, dtype)


def innermost(values):
    """Returns the first element of nested lists and tuples; an empty one stands for itself."""
    while isinstance(values, list | tuple) and values:
        values = values[0]
    return values


def lists_as_tensors(inputs):
    """Returns inputs with each list of numbers or texts as a tensor. A list of arrays stays a list."""
    if isinstance(inputs, list) and isinstance(innermost(inputs), list | numbers.Number | str | bytes):
        return tf.convert_to_tensor(inputs)
    if type(inputs) is dict:
        return {name: lists_as_tensors(part) for name, part in inputs.items()}
    if type(inputs) in (list, tuple):
        return type(inputs)(map(lists_as_tensors, inputs))
    return inputs


def positions(values, size, name):
    """Positions int64 [V] in [0, size) of integers, below 0 from the end, or a mask [size]; or ValueError."""
    values = np.asarray(values)
    if values.ndim > 1:
        raise ValueError(f"{name} must have one dimension, but is of shape {values.shape}.")
    if values.dtype == bool:
        if values.shape != (size,):
            raise ValueError(f"{name} is a mask of shape {values.shape}, but it must be of shape ({size},).")
        return np.flatnonzero(values)
    values = integers(values, name, size, -size).astype(np.int64)
    return np.where(values < 0, values + size, values)
