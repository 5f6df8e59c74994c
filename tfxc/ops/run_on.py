"""Work done on one device, with its gradient: only inputs and answers travel."""

import tensorflow as tf

from tfxc.ops.custom_gradient import custom_gradient
from tfxc.ops.table_rows import mark_read_only


def run_on(device, function, inputs, variables):
    """``function(*inputs)``, and later its gradient, computed on a device: variables that lie there stay.

    What a gradient is made of, too: TensorFlow itself would add up the sparse gradients of a variable on
    whatever machine asked for them, and so send the rows there and back. A gradient by a variable has the
    variable's dtype. The function maps tensors to a list of tensors, and reads no variable but those given.
    Inputs of floats get a gradient.
    """
    mark_read_only(*variables)
    inputs = [tf.convert_to_tensor(given) for given in inputs]
    with tf.device(device), tf.GradientTape(persistent=True) as tape:
        # Cut off from what is around, whose tapes would find their own way through the function.
        own = [tf.stop_gradient(given) for given in inputs]
        tape.watch([given for given in own if given.dtype.is_floating])
        found = function(*own)
    with tf.device(device):
        found_alone = [tf.stop_gradient(part) for part in found]

    @custom_gradient
    def answer(*given):
        def gradient(*of_answers):
            with tf.device(device):
                sources = [*own, *variables]
                found_gradients = tape.gradient(found, sources, output_gradients=list(of_answers))
                return [_of_dtype(*pair) for pair in zip(found_gradients, sources, strict=True)]

        with tf.device(device):
            return [tf.identity(part) for part in found_alone], gradient

    return answer(*inputs, *[variable.handle for variable in variables])


def _of_dtype(gradient, source):
    """A gradient in the dtype of what it is the gradient of."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.cast(gradient.values, source.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    gradient = tf.cast(gradient, source.dtype)
    if isinstance(source, tf.Variable) and source.dtype == tf.bfloat16:
        # As rows: to a dense gradient TensorFlow adds those of lookups, all of a row's, in bfloat16, where a
        # sum of many stands still; rows it joins, and whoever takes them sums them in float32.
        return tf.IndexedSlices(gradient, tf.range(source.shape[0]), tf.constant(source.shape.as_list()))
    return gradient
