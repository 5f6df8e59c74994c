"""Forgetting what an optimizer knows of single weights."""

import numpy as np
import tensorflow as tf

from tfxc._keras import IS_KERAS_3, tf_variable


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
    """Sets the slots of some entries of a weight to 0.

    The step count stays, so Adam no longer corrects the bias of these entries: like those of a weight that
    had no gradient so far, their first step is ``(1 - beta_1) / sqrt(1 - beta_2)`` learning rates, about 3.

    Args:
        optimizer: a Keras optimizer.
        variable: the weight [L, K], as Keras holds it.
        columns: int [L, n], the entries of each row.

    Example:
        >>> layer, optimizer = keras.layers.Dense(2, use_bias=False), keras.optimizers.SGD(momentum=0.5)
        >>> layer.build((None, 1))
        >>> optimizer.build(layer.trainable_variables)
        >>> _ = optimizer.apply_gradients([(tf.ones([1, 2]), layer.trainable_variables[0])])
        >>> reset_slots(optimizer, layer.trainable_variables[0], np.array([[1]]))
        >>> slots_of(optimizer, layer.trainable_variables[0])[0].numpy()[0, 1].tolist()
        0.0
    """
    rows = np.broadcast_to(np.arange(len(columns))[:, np.newaxis], columns.shape)
    entries = np.stack([rows.ravel(), columns.ravel()], 1)
    for slot in slots_of(optimizer, variable):
        slot.scatter_nd_update(entries, tf.zeros([len(entries)], slot.dtype))
