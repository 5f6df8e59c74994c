"""Weights put aside in files, so that the memory they took is there for others."""

import os

import numpy as np
import tensorflow as tf

_BLOCK_BYTES = 1 << 25


class Spool:
    """Copies of variables in files, read and written in blocks of rows.

    Args:
        folder: where the files are.
        variables: ``tf.Variable`` list; what they hold is written at once.

    Raises:
        OSError: if there is no space on the disk; the variables are as they were.

    Example:
        >>> import tempfile
        >>> old, new = tf.Variable([[1.0], [2.0], [3.0]]), tf.Variable(tf.zeros([2, 1]))
        >>> spool = Spool(tempfile.mkdtemp(), [old])
        >>> spool.free()
        >>> spool.copy(0, new, np.array([1, -1, 0]))
        >>> new.numpy().tolist()
        [[3.0], [1.0]]
    """

    def __init__(self, folder, variables):
        self._folder = folder
        self._variables = variables
        self._shapes = [_shape_of(variable) for variable in variables]
        for place, variable in enumerate(variables):
            with open(self._path(place), "wb") as file:
                for block in blocks_of(variable):
                    file.write(block.tobytes())

    def _path(self, place):
        return os.path.join(self._folder, str(place))

    def free(self):
        """Gives the memory of the variables back; they hold nothing from here on."""
        for variable, shape in zip(self._variables, self._shapes, strict=True):
            if shape.rank:
                _replace(variable, tf.zeros([0, *shape[1:]], variable.dtype))

    def restore(self):
        """Makes the variables what they were."""
        for place, variable in enumerate(self._variables):
            _replace(variable, tf.zeros(self._shapes[place], variable.dtype))
            self.copy(place, variable)

    def copy(self, place, variable, destinations=None):
        """Puts what a variable held into another one.

        Args:
            place: of the variable in the list.
            variable: the other one. Without destinations of the same shape.
            destinations: None for the same row, or int64 [rows], the row each row goes to, -1 for none.
        """
        source, shape = self._variables[place], self._shapes[place]
        dtype, size = source.dtype.as_numpy_dtype, shape.num_elements() * source.dtype.size
        with open(self._path(place), "rb") as file:
            if destinations is None and size <= _BLOCK_BYTES:
                # Assigned whole: what is read whole would be copied each time once rows were scattered in.
                variable.assign(np.frombuffer(file.read(), dtype).reshape(shape))
                return
            row_bytes = _row_bytes(shape, source.dtype)
            for start, stop in _row_blocks(shape[0], row_bytes):
                data = file.read((stop - start) * row_bytes)
                rows = np.frombuffer(data, dtype).reshape(stop - start, *shape[1:])
                to = np.arange(start, stop) if destinations is None else destinations[start:stop]
                variable.scatter_update(tf.IndexedSlices(rows[to >= 0], to[to >= 0]))


def blocks_of(variable, ids=None):
    """The rows of a variable, or those of some ids, as NumPy arrays of bounded size; a scalar as one."""
    if not variable.shape.rank:
        yield variable.numpy()
        return
    shape = _shape_of(variable)
    num_rows = shape[0] if ids is None else len(ids)
    # Gathered: of a table that was ever gathered from, each read of the whole is a copy.
    for start, stop in _row_blocks(num_rows, _row_bytes(shape, variable.dtype)):
        yield tf.gather(variable, np.arange(start, stop) if ids is None else ids[start:stop]).numpy()


def _row_blocks(num_rows, row_bytes):
    at_once = max(1, _BLOCK_BYTES // max(1, row_bytes))
    for start in range(0, num_rows, at_once):
        yield start, min(start + at_once, num_rows)


def _row_bytes(shape, dtype):
    return int(np.prod(shape[1:])) * dtype.size


def _shape_of(variable):
    """The shape there is now: what layers adapt to in tf-keras may be of any number of columns."""
    return variable.shape if variable.shape.is_fully_defined() else variable.read_value().shape


def _replace(variable, value):
    # assign() would insist on the shape.
    with tf.device(variable.device):
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.identity(value), validate_shape=False)
