"""Gradients that add up over several calls, row by row, before an optimizer steps by their mean.

A weight has two slots for it: ``gradient``, the sum so far, of the weight's shape, and ``touched``, uint8
``[rows]``, which rows got a gradient. A call costs what its gradient costs, not what the table costs.
"""

import tensorflow as tf

from tfxc._keras.optimizers import ACCUMULATES_GRADIENTS
from tfxc.arguments import positive_int
from tfxc.ops.row_updates import row_sgd_update, touched_rows

OPTION = "gradient_accumulation_steps"


def accumulation_steps(value):
    """The number of calls that make one step, or None for a step at each call; else ValueError."""
    if value is None:
        return None
    if not ACCUMULATES_GRADIENTS:
        raise ValueError(
            f"{OPTION} needs Keras 3, but this is tf-keras: unset TF_USE_LEGACY_KERAS, or use a larger "
            "batch, whose encoder tfxc.encoders.GradCache runs in chunks where memory is short."
        )
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if replicas > 1:  # each would have a sum of its own
        raise ValueError(
            f"{OPTION} works on one device, not on {replicas} replicas: use a larger batch, which they split."
        )
    return positive_int(value, f"{OPTION} must be None, or", least=2)


def add_gradient(slots, gradient):
    """Adds a gradient, dense or ``tf.IndexedSlices``, to the slots of its weight, a dict."""
    total, touched = slots["gradient"], slots["touched"]
    if not isinstance(gradient, tf.IndexedSlices):
        total.assign_add(tf.cast(gradient, total.dtype))
        touched.assign(tf.ones_like(touched))
        return
    rows = tf.IndexedSlices(tf.cast(gradient.values, total.dtype), gradient.indices)
    row_sgd_update(total, rows, -1.0)
    row_ids = touched_rows(total, rows)
    touched.scatter_update(tf.IndexedSlices(tf.ones_like(row_ids, tf.uint8), row_ids))


def take_mean(slots, gradient, steps):
    """The mean of what so many calls added, sparse if the last gradient is; the slots are empty then."""
    total, touched = slots["gradient"], slots["touched"]
    if isinstance(gradient, tf.IndexedSlices):
        row_ids = tf.squeeze(tf.where(touched), 1)
        sums = tf.gather(total, row_ids)
        total.scatter_update(tf.IndexedSlices(tf.zeros_like(sums), row_ids))
        mean = tf.IndexedSlices(sums / steps, row_ids, tf.shape(total))
    else:
        mean = total / steps
        total.assign(tf.zeros_like(total))
    touched.assign(tf.zeros_like(touched))
    return mean
