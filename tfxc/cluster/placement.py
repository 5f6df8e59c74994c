"""Where variables lie: on which parameter server, in which shards."""

import contextlib
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable

from tfxc._keras.weights import tf_variables, variables_of

BLOCK_BYTES = 1 << 23  # of what a server is sent, or writes, at a time
_SERVERS = "ps"


class Shard(NamedTuple):
    """The rows of a table from ``start`` on that one ``tf.Variable`` holds."""

    start: int
    variable: tf.Variable

    @property
    def device(self):
        return self.variable.device

    @property
    def stop(self):
        """The row of the table behind the shard's last."""
        return self.start + (self.variable.shape[0] if self.variable.shape.rank else 1)

    def own(self, rows):
        """Rows of the table, integers of any shape, as rows of the shard; -1 for those of other shards."""
        return tf.where((rows >= self.start) & (rows < self.stop), rows - self.start, -1)


def shards_of(weight):
    """The shards of a weight, in the order of their rows; a weight that is not cut is one shard."""
    shards = []
    for variable in tf_variables(weight):
        shards.append(Shard(shards[-1].stop if shards else 0, variable))
    return shards


def on_server(variable):
    return tf.DeviceSpec.from_string(variable.device).job == _SERVERS


def is_on_servers(layer):
    """Whether weights of a layer or model lie on parameter servers."""
    # tf-keras cannot list the weights of a model that is not built.
    return layer.built and any(on_server(variable) for variable in variables_of(layer))


def with_servers():
    """Whether the strategy in whose scope this is called keeps variables on parameter servers."""
    return isinstance(tf.distribute.get_strategy(), tf.distribute.ParameterServerStrategy)


@contextlib.contextmanager
def lying_with(first, names=()):
    """A context in which, with parameter servers, all new variables lie whole on the server of a first one.

    With None they lie with the first that is created, which the strategy may cut by its rows, and with it
    those of the ``names``: the others with its first shard.
    """

    def create(next_creator, **options):
        nonlocal first
        is_cut = isinstance(first, ShardedVariable) and options.get("name") in names
        if first is not None and not is_cut:
            options["colocate_with"] = shards_of(first)[0].variable
        variable = next_creator(**options)
        first = variable if first is None else first
        return variable

    with tf.variable_creator_scope(create) if with_servers() else contextlib.nullcontext():
        yield


def assign(variable, value):
    """Gives a ``tf.Variable`` another value; on a server in blocks, so that little is held twice."""
    if not np.ndim(value) or not on_server(variable):
        variable.assign(value)
        return
    for first, num_rows in row_blocks(variable):
        values = tf.convert_to_tensor(value[first : first + num_rows], variable.dtype)
        variable.scatter_update(tf.IndexedSlices(values, tf.range(first, first + num_rows)))
        tf.gather(variable, first).numpy()  # waits: else all blocks would be on their way at once


def row_blocks(variable):
    """(first row, number of rows) of blocks of rows of a variable, of at most 8 MB or of one row."""
    num_rows, block = variable.shape[0], max(BLOCK_BYTES // row_bytes(variable), 1)
    return [(first, min(block, num_rows - first)) for first in range(0, num_rows, block)]


def row_bytes(variable):
    """Bytes of a row of a variable, at least one (a text's are not known); a scalar is a row."""
    return max(variable.shape[1:].num_elements() * variable.dtype.size, 1)


def put_together(places, values, shape):
    """Values [n] or [n, ...] of each shard at places int64 [n, r] in a tensor of a shape, 0 elsewhere."""
    places, values = tf.cast(tf.concat(places, 0), tf.int64), tf.concat(values, 0)
    # TensorFlow can put a row without values, such as the scores of a class for no queries, nowhere.
    num_put = tf.where(tf.reduce_prod(shape) > 0, tf.shape(places)[0], 0)
    return tf.scatter_nd(places[:num_put], values[:num_put], shape)
