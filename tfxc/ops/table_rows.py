"""Rows of a float32 or bfloat16 table, in float32 and with gradients in float32."""

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from tfxc.ops.custom_gradient import custom_gradient


def rows_dtype(table):
    """The dtype in which ops compute with rows of a table: float32 for bfloat16, else the table's own."""
    return tf.float32 if table.dtype == tf.bfloat16 else table.dtype


def mark_read_only(*variables):
    """Tells gradient tapes and functions that an op reads variables of which it gets only the handles."""
    for variable in variables:
        resource_variable_ops.variable_accessed(variable)


def gather_rows(table, row_ids):
    """Rows [n, D] of a variable [rows, D] by ids [n]; gradient ``tf.IndexedSlices``; in ``rows_dtype``."""
    if table.dtype != tf.bfloat16:
        return tf.gather(table, row_ids)
    mark_read_only(table)

    @custom_gradient
    def read(handle):
        def gradient(upstream):  # the gradient of a cast would be rounded
            return tf.IndexedSlices(upstream, row_ids, tf.constant(table.shape.as_list()))

        return read_rows(table, row_ids), gradient

    return read(table.handle)


def read_rows(table, row_ids):
    """As ``gather_rows``, without a gradient: for use inside custom gradients, which tapes must not watch."""
    rows = tf.raw_ops.ResourceGather(resource=table.handle, indices=row_ids, dtype=table.dtype)
    return tf.cast(rows, rows_dtype(table))


def refuse_plain_steps(table):
    """Makes a table of bfloat16 refuse steps that are rounded to the nearest number, as Keras's optimizers'.

    Small steps would be lost. What sets a table (``assign``, ``scatter_update``) and what rounds
    stochastically is left alone.
    """

    def refuse(*args, **kwargs):
        raise ValueError(
            f"{table.name} is a table of bfloat16, and this step would be rounded to the nearest number: "
            "steps below 1/256 of a number would be lost. Train it by tfxc.optimizers.LazyAdam, LazySGD or "
            "RowwiseAdagrad, which round stochastically, or leave out table_dtype."
        )

    for replica in getattr(table, "values", [table]):
        for name in ("assign_add", "assign_sub", "scatter_add", "scatter_sub"):
            setattr(replica, name, refuse)
