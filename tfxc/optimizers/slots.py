"""Forgetting what an optimizer knows of single weights."""

import re

import numpy as np

from tfxc._keras import IS_KERAS_3, tf_variable

# "..._momentum:0" in Keras 3, "m/kernel:0" in tf-keras.
_MOMENTUM = re.compile(r"(^|[/_])(m|momentum)([/:]|$)")


def slots_of(optimizer, variable):
    """The optimizer's variables that belong to a weight and have its shape, as ``tf.Variable``.

    Both Keras build the slots in lists parallel to the trainable variables.
    """
    if hasattr(optimizer, "optimizer_of"):
        optimizer = optimizer.optimizer_of(variable)
    if IS_KERAS_3:
        owners = [id(other) for other in optimizer._trainable_variables] if optimizer.built else []
        index = owners.index(id(variable)) if id(variable) in owners else None
    else:
        owners = getattr(optimizer, "_index_dict", {})
        index = owners.get(optimizer._var_key(variable))
    if index is None:
        return []
    lists = [
        value for value in vars(optimizer).values() if isinstance(value, list) and len(value) == len(owners)
    ]
    slots = [items[index] for items in lists if hasattr(items[index], "assign")]
    slots = [tf_variable(slot) for slot in slots if slot is not variable]
    return [slot for slot in slots if slot.shape == variable.shape]


def reset_slots(optimizer, variable, columns):
    """Makes an optimizer forget what it knows of some entries of a weight.

    Momenta are set to 0, sums of squares (Adam's second moment, Adagrad's accumulator) to the mean of the
    other entries of their row: from 0 they would make the next hundreds of steps several times too long,
    for Adam's bias correction counts the steps of the whole weight.

    Args:
        optimizer: a Keras optimizer.
        variable: the weight [L, K], as Keras holds it.
        columns: int [L, n], the entries of each row, distinct in it.

    Example:
        >>> layer, optimizer = keras.layers.Dense(2, use_bias=False), keras.optimizers.Adagrad()
        >>> layer.build((None, 1))
        >>> optimizer.build(layer.trainable_variables)
        >>> _ = optimizer.apply_gradients([(tf.constant([[1.0, 2.0]]), layer.trainable_variables[0])])
        >>> reset_slots(optimizer, layer.trainable_variables[0], np.array([[1]]))
        >>> slots_of(optimizer, layer.trainable_variables[0])[0].numpy().round(1)
        array([[1.1, 1.1]], dtype=float32)
    """
    for slot in slots_of(optimizer, variable):
        values = np.array(slot.numpy())
        fresh = np.zeros(len(values), np.float32)
        if not _MOMENTUM.search(slot.name):
            lost = np.take_along_axis(values, columns, 1).sum(1, dtype=np.float32)
            kept = values.sum(1, dtype=np.float32) - lost
            fresh = np.maximum(kept, 0) / max(1, values.shape[1] - columns.shape[1])
        np.put_along_axis(values, columns, fresh.astype(values.dtype)[:, np.newaxis], 1)
        slot.assign(values)
