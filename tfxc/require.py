"""What must hold while a graph runs."""

import numpy as np
import tensorflow as tf

_NUM_SHOWN = 3


def require(condition, *message):
    """What to wait for, by ``tf.control_dependencies``, to be certain that a condition holds.

    One op in a graph. ``tf.debugging.Assert`` makes a function of either outcome there: to trace them takes
    longer than all else of a check, and every step runs through them.

    Args:
        condition: bool scalar.
        message: what the error says: texts, and tensors of which the first few values are shown.

    Returns:
        A list of ops, empty in eager execution.

    Raises:
        tf.errors.InvalidArgumentError: the condition does not hold.

    Example:
        >>> x = tf.constant(2)
        >>> with tf.control_dependencies(require(x < 3, "The number", x, "is too large.")):
        ...     int(tf.identity(x))
        2
    """
    if tf.executing_eagerly():
        if not condition:
            raise tf.errors.InvalidArgumentError(None, None, " ".join(map(_shown, message)))
        return []
    return [tf.raw_ops.Assert(condition=condition, data=list(message))]


def at_least_one(number, name):
    """``require``: a number of a graph is 1 or more."""
    return require(number >= 1, f"{name} must be at least 1, but is", number)


def in_range(ids, low, limit, what):
    """``require``: ids of any shape are in [low, limit). The first that is not is told, and its position."""
    bad = tf.where((ids < low) | (ids >= limit))[:1]
    end, size = ("n", ["with n =", limit]) if tf.is_tensor(limit) else (limit, [])
    message = [what, tf.gather_nd(ids, bad), "at position", bad, f"is outside [{low}, {end})", *size]
    return require(tf.equal(tf.size(bad), 0), *message)


def finite_rows(values, name):
    """``require``: there is no NaN or infinity in values [N, n], a row for each query."""
    bad = tf.where(~tf.reduce_all(tf.math.is_finite(values), axis=1))[:1, 0]
    message = f"{name} must be finite, but there is NaN or infinity in the row of query"
    return require(tf.equal(tf.size(bad), 0), message, bad)


def _shown(part):
    """A text, or the first few values of a tensor, nearly as the op shows them."""
    if not tf.is_tensor(part):
        return str(part)
    values = np.ravel(part.numpy())
    shown = [
        value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        for value in values[:_NUM_SHOWN]
    ]
    return " ".join(shown) + "..." * (len(values) > _NUM_SHOWN)
