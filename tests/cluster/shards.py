"""Heads whose rows are cut as parameter servers hold them, but which lie on this machine."""

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable

from tfxc._keras.weights import tf_variable
from tfxc.cluster.sharded_head import ShardedHead


def in_shards(head, names, starts):
    """The ``ShardedHead`` of a built head whose weights of these names are cut before these rows."""
    for name in names:
        variable = tf_variable(getattr(head, name))
        rows = np.split(variable.numpy(), starts[1:])
        parts = [tf.Variable(own, variable.trainable, name=f"{name}/part_{i}") for i, own in enumerate(rows)]
        setattr(head, name, ShardedVariable(parts))
    sharded = ShardedHead(head)
    sharded.build((None, head.query_dim))
    return sharded
