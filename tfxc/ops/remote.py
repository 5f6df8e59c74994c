"""Work done on the machine that holds a variable, with its gradient: only inputs and answers travel."""

import contextlib
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable

from tfxc.ops.custom_gradient import custom_gradient
from tfxc.ops.table_rows import mark_read_only

BLOCK_BYTES = 1 << 23  # of what a server is sent, or writes, at a time
_SERVERS = "ps"


class Shard(NamedTuple):
    """Some rows of a table, and where they lie.

    Args:
        start: the row of the table that is the shard's first.
        variable: the ``tf.Variable`` that holds the rows.
    """

    start: int
    variable: tf.Variable

    @property
    def device(self):
        """The name of the device that holds the rows."""
        return self.variable.device


def shards_of(variable):
    """The shards of a table that lies on parameter servers, in the order of their rows; else an empty list.

    Args:
        variable: a ``tf.Variable``, or the ``ShardedVariable`` that a strategy with parameter servers makes.

    >>> shards_of(tf.Variable(tf.zeros([4, 2])))
    []
    """
    if isinstance(variable, ShardedVariable):
        starts = [offsets[0] for offsets in variable._var_offsets]
        return [Shard(start, part) for start, part in zip(starts, variable.variables, strict=True)]
    return [Shard(0, variable)] if on_server(variable) else []


def whole_of(variable):
    """The ``ShardedVariable`` that a ``tf.Variable`` is a shard of; of any other, itself.

    >>> variable = tf.Variable(1.0)
    >>> whole_of(variable) is variable
    True
    """
    table = getattr(variable, "_sharded_container", None)  # a weak reference, of shards alone
    return variable if table is None else table()


def on_server(variable):
    """Whether a ``tf.Variable`` lies on a parameter server.

    >>> on_server(tf.Variable(1.0))
    False
    """
    return tf.DeviceSpec.from_string(variable.device).job == _SERVERS


def colocated_with(variable):
    """A context in which new variables lie whole on the parameter server of a variable.

    Anywhere else, or beside a variable that is cut into shards, it changes nothing.

    >>> with colocated_with(tf.Variable(1.0)):
    ...     bias = tf.Variable(2.0)
    """
    if isinstance(variable, ShardedVariable) or not on_server(variable):
        return contextlib.nullcontext()
    return tf.distribute.get_strategy().extended.colocate_vars_with(variable)


def with_servers():
    """Whether the strategy in whose scope this is called keeps variables on parameter servers.

    >>> with_servers()
    False
    """
    return isinstance(tf.distribute.get_strategy(), tf.distribute.ParameterServerStrategy)


def assign(variable, value):
    """Gives a variable another value; on parameter servers in blocks, so that little is held twice.

    Args:
        variable: a ``tf.Variable`` or a ``ShardedVariable``.
        value: array of its shape.

    >>> variable = tf.Variable([1.0, 2.0])
    >>> assign(variable, [3.0, 4.0])
    >>> variable.numpy().tolist()
    [3.0, 4.0]
    """
    shards = shards_of(variable) if np.ndim(value) else []
    if not shards:
        variable.assign(value)
    for start, part in shards:
        for first, num_rows in row_blocks(part):
            rows = tf.range(first, first + num_rows)
            values = tf.convert_to_tensor(value[start + first : start + first + num_rows], part.dtype)
            part.scatter_update(tf.IndexedSlices(values, rows))
            tf.gather(part, first).numpy()  # waits: else all blocks would be on their way at once


def row_blocks(variable):
    """(first row, number of rows) of blocks of rows of a variable, of at most 8 MB or of one row.

    >>> row_blocks(tf.Variable(tf.zeros([3, 2 << 20])))
    [(0, 1), (1, 1), (2, 1)]
    """
    num_rows, block = variable.shape[0], max(BLOCK_BYTES // row_bytes(variable), 1)
    return [(first, min(block, num_rows - first)) for first in range(0, num_rows, block)]


def row_bytes(variable):
    """Bytes of a row of a variable, at least one (a text's are not known); a scalar is a row.

    >>> row_bytes(tf.Variable(tf.zeros([3, 8])))
    32
    """
    return max(variable.shape[1:].num_elements() * variable.dtype.size, 1)


def put_together(places, values, shape):
    """Values of several shards as one tensor of a shape, 0 where there is none.

    Args:
        places: for each shard, int64 [n, r], where its values stand.
        values: for each, [n], or [n, ...] where each place is one of rows.
        shape: int64, of the whole tensor.

    >>> put_together([[[0, 1]], [[1, 0]]], [[5], [7]], tf.constant([2, 2], tf.int64)).numpy().tolist()
    [[0, 5], [7, 0]]
    """
    places, values = tf.cast(tf.concat(places, 0), tf.int64), tf.concat(values, 0)
    # Rows that hold no value, as the scores of a class for no queries, TensorFlow puts nowhere.
    num_put = tf.where(tf.reduce_prod(shape) > 0, tf.shape(places)[0], 0)
    return tf.scatter_nd(places[:num_put], values[:num_put], shape)


def run_on(device, function, inputs, variables):
    """``function(*inputs)``, and later its gradient, computed on a device: variables that lie there stay.

    What a gradient is made of, too: TensorFlow itself would add up the sparse gradients of a variable on
    whatever machine asked for them, and so send the rows there and back. A gradient by a variable has the
    variable's dtype.

    Args:
        device: name of the device.
        function: of tensors to a list of tensors. It reads no variable but those given.
        inputs: list of tensors; those of floats get a gradient.
        variables: list of ``tf.Variable``.

    Returns:
        List of tensors, computed on the device.

    >>> table = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    >>> with tf.GradientTape() as tape:
    ...     (rows,) = run_on("CPU:0", lambda ids: [tf.gather(table, ids)], [tf.constant([1])], [table])
    >>> rows.numpy().tolist(), tape.gradient(rows, table).indices.numpy().tolist()
    ([[3.0, 4.0]], [1])
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
