"""Checks that run inside a graph."""

import numpy as np
import tensorflow as tf

_NUM_SHOWN = 3


def require(condition, *message):
    """A list of ops, none in eager mode, that check a bool scalar, for ``tf.control_dependencies``.

    If it is false, they raise an InvalidArgumentError of the message's texts and first values of its tensors.
    A graph gets a single op: ``tf.debugging.Assert`` would add a conditional, slower to trace and to run.
    """
    if tf.executing_eagerly():
        if not condition:
            raise tf.errors.InvalidArgumentError(None, None, " ".join(map(_shown, message)))
        return []
    return [tf.raw_ops.Assert(condition=condition, data=list(message))]


def at_least_one(number, name):
    return require(number >= 1, f"{name} must be at least 1, but is", number)


def in_range(ids, low, limit, what):
    """``require``: ids of any shape are in [low, limit). The error names the first bad id and its place."""
    bad = tf.where((ids < low) | (ids >= limit))[:1]
    end, size = ("n", ["with n =", limit]) if tf.is_tensor(limit) else (limit, [])
    message = [what, tf.gather_nd(ids, bad), "at position", bad, f"is outside [{low}, {end})", *size]
    return require(tf.equal(tf.size(bad), 0), *message)


def finite_rows(values, name):
    """``require``: values [N, n], a row for each query, are finite."""
    bad = tf.where(~tf.reduce_all(tf.math.is_finite(values), axis=1))[:1, 0]
    message = f"{name} must be finite, but there is NaN or infinity in the row of query"
    return require(tf.equal(tf.size(bad), 0), message, bad)


def _shown(part):
    """Returns a text, or the first few values of a tensor, nearly as the op shows them."""
    if not tf.is_tensor(part):
        return str(part)
    values = np.ravel(part.numpy())
    first = values[:_NUM_SHOWN]
    shown = [own.decode(errors="replace") if isinstance(own, bytes) else str(own) for own in first]
    return " ".join(shown) + "..." * (len(values) > _NUM_SHOWN)
