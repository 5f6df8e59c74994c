"""Training that stops at the first number that is none, before it reaches the weights."""

import tensorflow as tf

from tfxc.require import require


def require_finite_inputs(inputs, optimizer):
    """The inputs of an encoder, once it is certain that the floats among them are finite.

    Args:
        inputs: tensors in any structure.
        optimizer: as of ``require_finite``.

    Raises:
        tf.errors.InvalidArgumentError: as ``require_finite``.
    """

    def checked(part):
        if not isinstance(part, tf.Tensor) or not part.dtype.is_floating or not part.shape.rank:
            return part
        sums = tf.reduce_sum(part, list(range(1, part.shape.rank)))
        with tf.control_dependencies([require_finite(sums, "input", optimizer)]):
            return tf.identity(part)

    return tf.nest.map_structure(checked, inputs)


def require_finite(values, what, optimizer):
    """The values, once it is certain that all are finite.

    Args:
        values: float, a scalar, [N] or [N, D].
        what: they are, for the error.
        optimizer: the one that counts the training steps.

    Raises:
        tf.errors.InvalidArgumentError: naming the step, the value and where in the batch it stood.

    Example:
        >>> optimizer = keras.optimizers.SGD()
        >>> require_finite(tf.constant([1.0, 2.0]), "loss", optimizer).numpy().tolist()
        [1.0, 2.0]
    """
    # A sum is finite only if all of it is, and costs next to nothing beside the step.
    sums = values if values.shape.rank < 2 else tf.reduce_sum(values, -1)
    sums = tf.pad(tf.reshape(sums, [-1]), [[0, 1]])  # one more, so that there is one to read
    row = tf.argmin(tf.cast(tf.math.is_finite(sums), tf.int32))
    where = ["at row", row, "of the batch"] if values.shape.rank else []
    told = [
        f"The {what} of training step",
        tf.cast(optimizer.iterations, tf.int64) + 1,
        "is",
        sums[row],
        *where,
        "and the step was not made: the weights are those before it. Look for NaN and infinity in the batch; "
        "if there are none, lower the learning rate or clip gradients (clipnorm=1.0).",
    ]
    with tf.control_dependencies(require(tf.reduce_all(tf.math.is_finite(sums)), *told)):
        return tf.identity(values)
