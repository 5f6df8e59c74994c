"""Moves weights to files, so that their memory is free, unless another model holds them, too."""

import gc
import os

import numpy as np
import tensorflow as tf

from tfxc._keras import keras
from tfxc._keras.layers import layers_of
from tfxc._keras.weights import layer_and_name, own_weights, tf_variable

_BLOCK_BYTES = 1 << 25


class Moved:
    """Stands for the memory of a weight that was moved: whoever reads, changes or saves it gets an error."""

    def __getattr__(self, name):
        raise ValueError(
            "change_classes has moved this weight into the model that it returned: use its encoder and head."
        )

    def __tf_tensor__(self, dtype=None, name=None):
        return self.value


class Spool:
    """Copies of a list of ``tf.Variable`` in files of an existing folder, read and written in blocks of rows.

    OSError if there is no space. ``kept`` are the ids of those that keep their values when others are freed.
    """

    def __init__(self, folder, variables, kept=()):
        self._folder = folder
        self._variables = variables
        self._freed = [own for own in variables if own.shape.rank and id(own) not in kept]
        self._shapes = [_shape_of(variable) for variable in variables]
        for place, variable in enumerate(variables):
            with open(self._path(place), "wb") as file:
                for block in blocks_of(variable):
                    file.write(block.tobytes())

    def _path(self, place):
        return os.path.join(self._folder, str(place))

    def free(self):
        """Frees the memory of the variables that do not keep their values: they become empty."""
        for variable in self._freed:
            _replace(variable, tf.zeros([0, *_shape_of(variable)[1:]], variable.dtype))

    def restore(self):
        for place, variable in enumerate(self._variables):
            _replace(variable, tf.zeros(self._shapes[place], variable.dtype))
            self.copy(place, variable)

    def seal(self):
        """Ends the use of the variables that were freed: nobody may save an empty weight, or train it."""
        for variable in self._freed:
            getattr(variable, "_variable", variable)._handle = Moved()  # mixed precision wraps it in tf-keras

    def copy(self, place, variable, destinations=None):
        """Copies a place's saved value into a variable, row i to ``destinations[i]``, -1 for none."""
        source, shape = self._variables[place], self._shapes[place]
        dtype, size = source.dtype.as_numpy_dtype, shape.num_elements() * source.dtype.size
        with open(self._path(place), "rb") as file:
            if destinations is None and size <= _BLOCK_BYTES:
                # Scattering rows into a variable would make each later read of all of it a copy.
                variable.assign(np.frombuffer(file.read(), dtype).reshape(shape))
                return
            row_bytes = _row_bytes(shape, source.dtype)
            for start, stop in _row_blocks(shape[0], row_bytes):
                data = file.read((stop - start) * row_bytes)
                rows = np.frombuffer(data, dtype).reshape(stop - start, *shape[1:])
                to = np.arange(start, stop) if destinations is None else destinations[start:stop]
                variable.scatter_update(tf.IndexedSlices(rows[to >= 0], to[to >= 0]))


def blocks_of(variable, ids=None):
    """Yields the rows of a variable, or those of some ids, as NumPy arrays of bounded size."""
    if not variable.shape.rank:
        yield variable.numpy()
        return
    shape = _shape_of(variable)
    num_rows = shape[0] if ids is None else len(ids)
    # Gather rows: after the first gather, TensorFlow copies a table whenever all of it is read.
    for start, stop in _row_blocks(num_rows, _row_bytes(shape, variable.dtype)):
        yield tf.gather(variable, np.arange(start, stop) if ids is None else ids[start:stop]).numpy()


def _row_blocks(num_rows, row_bytes):
    at_once = max(1, _BLOCK_BYTES // max(1, row_bytes))
    for start in range(0, num_rows, at_once):
        yield start, min(start + at_once, num_rows)


def _row_bytes(shape, dtype):
    return int(np.prod(shape[1:])) * dtype.size


def _shape_of(variable):
    """Returns the current shape. In tf-keras, adapted variables may have an undefined number of columns."""
    return variable.shape if variable.shape.is_fully_defined() else variable.read_value().shape


def _replace(variable, value):
    # assign() would refuse another shape.
    with tf.device(variable.device):
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.identity(value), validate_shape=False)


def refuse_other_holders(model, variables):
    """Raises ValueError where a living model beside the given one holds one of its ``tf.Variable``s."""
    moved = set(map(id, variables))
    if _other_holder(model, moved) is not None:
        gc.collect()  # it may be a model that nobody holds any more
    if (found := _other_holder(model, moved)) is not None:
        other, weight = found
        raise ValueError(
            f"The {type(other).__name__} {other.name!r} holds {layer_and_name(weight)} as well, which would "
            "move out of both: delete that model first, or load the given one from a file."
        )


def _other_holder(model, moved):
    """A layer or model that is no part of the given one, and the weight that it shares; None without one."""
    parts = layers_of(model)
    parts += [part._functional for part in parts if hasattr(part, "_functional")]  # a Sequential makes it
    parts = set(map(id, parts))
    for other in gc.get_objects():
        is_layer = issubclass(type(other), keras.layers.Layer)
        if not is_layer or id(other) in parts or getattr(other, "is_consumed", False):
            continue
        for layer in layers_of(other):
            for weight in own_weights(layer):
                if id(tf_variable(weight)) in moved:
                    return other, weight
    return None
