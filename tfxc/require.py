"""What must hold while a graph runs."""

import tensorflow as tf


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
        tf.debugging.Assert(condition, list(message))
        return []
    return [tf.raw_ops.Assert(condition=condition, data=list(message))]
