"""Training that stops at the first number that is none, before it reaches the weights."""

import tensorflow as tf

from tfxc._keras.layers import layers_of
from tfxc._keras.weights import layer_and_name
from tfxc.require import require

_NOT_MADE = "and the step was not made: the weights are those before it."
_OF_VALUES = (
    "Look for NaN and infinity in the batch; if there are none, lower the learning rate or clip gradients "
    "(clipnorm=1.0)."
)
_OF_GRADIENTS = (
    "The loss is finite: look for a function whose slope is not, such as sqrt(x), log(x) or the length of a "
    "vector at 0, and add a small number there."
)


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
        sums = _sum(part, list(range(1, part.shape.rank)))
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
    sums = values if values.shape.rank < 2 else _sum(values, -1)
    sums = tf.pad(tf.reshape(sums, [-1]), [[0, 1]])  # one more, so that there is one to read
    row = tf.argmin(tf.cast(tf.math.is_finite(sums), tf.int32))
    where = ["at row", row, "of the batch"] if values.shape.rank else []
    told = [
        f"The {what} of training step",
        _step(optimizer),
        "is",
        sums[row],
        *where,
        f"{_NOT_MADE} {_OF_VALUES}",
    ]
    with tf.control_dependencies(require(tf.reduce_all(tf.math.is_finite(sums)), *told)):
        return tf.identity(values)


def require_finite_step(loss, gradients, variables, model):
    """What to wait for, by ``tf.control_dependencies``, to be certain that the loss and gradients are finite.

    The gradients are those of the encoder, and of layers within the head, which may do anything. What a head
    computes with its own weights is as finite as the gradient of the queries, which the encoder's come from;
    to look at each of its rows, too, would take a tenth of a step.

    Args:
        loss: a scalar.
        gradients: of the loss; None where it does not depend on a weight.
        variables: the weights.
        model: the ``ExtremeClassifier``.

    Raises:
        tf.errors.InvalidArgumentError: naming the step, and what is not finite: the loss, or a weight.
    """
    layers = [model.encoder, *layers_of(model.head)[1:]]
    watched = {id(weight) for layer in layers for weight in getattr(layer, "trainable_weights", ())}
    names, sums = ["The loss of"], [tf.cast(loss, tf.float32)]
    for gradient, variable in zip(gradients, variables, strict=True):
        if gradient is not None and id(variable) in watched:
            names.append(f"The gradient of {layer_and_name(variable).removesuffix(':0')} in")
            sums.append(tf.cast(_sum(getattr(gradient, "values", gradient)), tf.float32))
    sums = tf.stack(sums)
    is_finite = tf.math.is_finite(sums)
    first = tf.argmin(tf.cast(is_finite, tf.int32))
    return require(
        tf.reduce_all(is_finite),
        tf.gather(names, first),
        "training step",
        _step(model.optimizer),
        "is",
        sums[first],
        _NOT_MADE,
        tf.gather([_OF_VALUES, _OF_GRADIENTS], tf.minimum(first, 1)),
    )


def _sum(values, axis=None):
    """A sum is finite only if all of it is; of float16 it may be infinite, though all of it is finite."""
    return tf.reduce_sum(tf.cast(values, tf.float32) if values.dtype == tf.float16 else values, axis)


def _step(optimizer):
    return tf.cast(optimizer.iterations, tf.int64) + 1
