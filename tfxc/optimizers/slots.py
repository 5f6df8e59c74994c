"""What an optimizer remembers of a weight, and forgetting it for single entries."""

import numpy as np

from tfxc._keras.optimizers import inner_optimizer, keras_slots, part_of
from tfxc._keras.weights import tf_variable
from tfxc.ops.remote import Shard, shards_of

# Where an entry's step is divided by (the root of) what it remembers of the size of its gradients.
_SIZES = {"velocity", "velocity_hat", "accumulator", "norm", "squared_gradient", "squared_update"}


def slots_of(optimizer, variable):
    """What an optimizer remembers of a weight: a dict, name -> ``tf.Variable``; empty if it is not trained.

    The optimizer's own ``slots_of(variable)`` answers, if it has one; else it must be one of Keras's.

    Raises:
        TypeError: for an optimizer of neither kind.
    """
    optimizer = inner_optimizer(optimizer)
    own = optimizer if hasattr(optimizer, "slots_of") else part_of(optimizer, variable)
    return own.slots_of(variable) if hasattr(own, "slots_of") else keras_slots(own, variable)


def reset_slots(optimizer, variable, columns):
    """Makes an optimizer forget what it knows of some entries of a weight.

    What tells the size of gradients (Adam's second moment, Adagrad's accumulator) is set to the mean of the
    other entries of its row, or of all where there are no others: from 0 it would make the next hundreds of
    steps several times too long, for Adam's bias correction counts the steps of the whole weight. All else
    (momenta, gradients that wait for their step, Ftrl's linear term) is set to 0. One number for a whole row
    stays.

    Args:
        optimizer: a Keras optimizer, of this package, of Keras, or with a method ``slots_of(variable)``.
        variable: the weight [L, K], as Keras holds it; in shards or not.
        columns: int [L, n], the entries of each row, distinct in it.

    Raises:
        TypeError: for an optimizer whose slots are not known.

    Example:
        >>> layer, optimizer = keras.layers.Dense(2, use_bias=False), keras.optimizers.Adagrad()
        >>> layer.build((None, 1))
        >>> optimizer.build(layer.trainable_variables)
        >>> _ = optimizer.apply_gradients([(tf.constant([[1.0, 2.0]]), layer.trainable_variables[0])])
        >>> reset_slots(optimizer, layer.trainable_variables[0], np.array([[1]]))
        >>> slots_of(optimizer, layer.trainable_variables[0])["accumulator"].numpy().round(1)
        array([[1.1, 1.1]], dtype=float32)
    """
    for start, part in shards_of(tf_variable(variable)) or [Shard(0, variable)]:
        _reset(optimizer, part, columns[start : start + part.shape[0]])


def _reset(optimizer, variable, columns):
    for name, slot in slots_of(optimizer, variable).items():
        if slot.shape != variable.shape:
            continue
        values = slot.numpy()
        fresh = np.zeros(len(values), np.float32)
        if name in _SIZES:
            # In float64: beside one that goes and is much larger, float32 would leave nothing of the others.
            total, num_kept = values.sum(1, dtype=np.float64), values.shape[1] - columns.shape[1]
            if num_kept:
                total = np.maximum(total - np.take_along_axis(values, columns, 1).sum(1, dtype=np.float64), 0)
            fresh = total / (num_kept or values.shape[1])
        np.put_along_axis(values, columns, fresh.astype(values.dtype)[:, np.newaxis], 1)
        slot.assign(values)
