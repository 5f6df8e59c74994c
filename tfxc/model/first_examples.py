"""The first examples of whatever Keras trains on, as tensors."""

import numpy as np
import scipy.sparse
import tensorflow as tf

from tfxc._keras import unpack_x_y_sample_weight
from tfxc.data.batching import epoch_orders


def first_examples(x):
    """Inputs of a few examples of data: of a data set its first batch, of arrays the first row.

    Args:
        x: what ``fit`` takes.

    Returns:
        Tensors in the structure of ``x``; None for a generator, which could not be read again.

    Raises:
        ValueError: for a data set without a batch.

    Example:
        >>> first_examples({"price": np.array([2.0, 3.0])})["price"].numpy().tolist()
        [2.0]
    """
    if isinstance(x, tf.data.Dataset):
        orders = [(order, order.next) for order in epoch_orders(x)]
        batch = next(iter(x), None)
        for order, epoch in orders:  # no epoch was read
            order.next = epoch
        if batch is None:
            raise ValueError(
                "The data set has no batch: it is empty, or drop_remainder=True leaves nothing of it."
            )
        return unpack_x_y_sample_weight(batch)[0]
    if hasattr(x, "__getitem__") and not isinstance(x, dict | list | tuple) and not hasattr(x, "shape"):
        return unpack_x_y_sample_weight(x[0])[0]  # keras.utils.PyDataset, Sequence
    if hasattr(x, "__next__"):
        return None
    return tf.nest.map_structure(_first_row, x)


def as_tensor(part):
    """The tensor of an array or a SciPy matrix; ragged and sparse tensors, and None, stay what they are.

    Example:
        >>> as_tensor(scipy.sparse.eye(2)).dense_shape.numpy().tolist()
        [2, 2]
    """
    if scipy.sparse.issparse(part):
        part = part.tocoo()
        indices = np.stack([part.row, part.col], 1).astype(np.int64)
        return tf.sparse.reorder(tf.SparseTensor(indices, part.data, part.shape))
    return part if part is None or tf.is_tensor(part) else tf.convert_to_tensor(part)


def _first_row(part):
    if part is None:
        return None
    if isinstance(part, tf.SparseTensor):
        shape = part.dense_shape
        return tf.sparse.slice(part, tf.zeros_like(shape), tf.concat([[1], shape[1:]], 0))
    return as_tensor((part.tocsr() if scipy.sparse.issparse(part) else part)[:1])
