"""Gradients that add up over several calls, row by row, before an optimizer steps by their mean.

A weight has two slots for it: ``gradient``, the sum so far, of the weight's shape, and ``touched``, bool
``[rows]``, which rows got a gradient. A call costs what its gradient costs, not what the table costs.
"""

import tensorflow as tf

from tfxc._keras import IS_KERAS_3
from tfxc.arguments import positive_int
from tfxc.ops.row_updates import row_sgd_update, touched_rows

OPTION = "gradient_accumulation_steps"
SLOTS = ("gradient", "touched")


def accumulation_steps(value):
    """The number of calls that make one update, as a Python int, or None; else a ValueError."""
    if value is None:
        return None
    if not IS_KERAS_3:
        raise ValueError(
            f"{OPTION} needs Keras 3, but this is tf-keras: unset TF_USE_LEGACY_KERAS, or use a larger "
            "batch, whose encoder tfxc.encoders.GradCache runs in chunks where memory is short."
        )
    return positive_int(
        value, f"{OPTION} must be None, for a step at each call, or a number of calls, which", 2
    )


def refuse_replicas():
    """Raises ValueError where several replicas would each have a sum of their own."""
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if replicas > 1:
        raise ValueError(
            f"{OPTION} works on one device, but the strategy has {replicas} replicas: leave it out and use a "
            "larger batch, which the strategy splits."
        )


def add_gradient(total, touched, gradient):
    """Adds a gradient, dense or ``tf.IndexedSlices``, to the two slots of its weight."""
    if not isinstance(gradient, tf.IndexedSlices):
        total.assign_add(tf.cast(gradient, total.dtype))
        touched.assign(tf.ones_like(touched))
        return
    rows = tf.IndexedSlices(tf.cast(gradient.values, total.dtype), gradient.indices)
    row_sgd_update(total, rows, -1.0)
    row_ids = touched_rows(total, rows)
    touched.scatter_update(tf.IndexedSlices(tf.ones_like(row_ids, tf.bool), row_ids))


def take_mean(total, touched, steps, is_sparse):
    """The mean gradient of so many calls, if ``is_sparse`` of the touched rows alone; empties the slots."""
    if is_sparse:
        row_ids = tf.squeeze(tf.where(touched), 1)
        sums = tf.gather(total, row_ids)
        total.scatter_update(tf.IndexedSlices(tf.zeros_like(sums), row_ids))
        mean = tf.IndexedSlices(sums / steps, row_ids, tf.shape(total))
    else:
        mean = total / steps
        total.assign(tf.zeros_like(total))
    touched.assign(tf.zeros_like(touched))
    return mean
