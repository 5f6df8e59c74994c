"""The slots of an optimizer for a weight, and their reset for single entries."""

import numpy as np

from tfxc._keras.optimizers import inner_optimizer, keras_slots, part_of
from tfxc._keras.weights import tf_variables

# Slots that hold the size of an entry's gradients; a step is divided by them, or by their root.
_SIZES = {"velocity", "velocity_hat", "accumulator", "norm", "squared_gradient", "squared_update"}

AVERAGES = {"average", "weight"}  # names of slots that hold earlier values of a weight


def slots_of(optimizer, variable):
    """The slots of a weight by name, as its optimizer's ``slots_of`` or Keras's lists tell; or TypeError."""
    optimizer = inner_optimizer(optimizer)
    own = optimizer if hasattr(optimizer, "slots_of") else part_of(optimizer, variable)
    return own.slots_of(variable) if hasattr(own, "slots_of") else keras_slots(own, variable)


def reset_slots(optimizer, variable, columns):
    """Resets the slots for some entries of a weight [L, K]: columns int [L, n], distinct in each row.

    A slot that holds the size of gradients (Adam's second moment, Adagrad's accumulator) is set to the mean
    of the other entries of the row, or of all where there are no others: from 0, the next hundreds of steps
    would be several times too long, since Adam's bias correction counts the steps of the whole weight. All
    other slots are set to 0. A slot with one number for a whole row stays.
    """
    start = 0
    for rows in tf_variables(variable):
        _reset(optimizer, rows, columns[start : start + rows.shape[0]])
        start += rows.shape[0]


def _reset(optimizer, variable, columns):
    for name, slot in slots_of(optimizer, variable).items():
        if slot.shape != variable.shape:
            continue
        values = slot.numpy()
        fresh = np.zeros(len(values), np.float32)
        if name in _SIZES:
            # In float64: the difference would lose the kept entries where a reset entry is much larger.
            total, num_kept = values.sum(1, dtype=np.float64), values.shape[1] - columns.shape[1]
            if num_kept:
                total = np.maximum(total - np.take_along_axis(values, columns, 1).sum(1, dtype=np.float64), 0)
            fresh = total / (num_kept or values.shape[1])
        np.put_along_axis(values, columns, fresh.astype(values.dtype)[:, np.newaxis], 1)
        slot.assign(values)
