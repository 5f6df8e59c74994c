"""Arrays that TensorFlow takes over as they lie in memory, where it would copy others."""

import numpy as np
import tensorflow as tf

_BYTES = 64


def aligned_zeros(shape, dtype):
    """An array of zeros whose memory ``taken_over`` shares; it takes memory as it is written."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    buffer = np.zeros(size + _BYTES, np.uint8)
    start = -buffer.ctypes.data % _BYTES
    return buffer[start : start + size].view(dtype).reshape(shape)


def taken_over(array):
    """A tensor of an array that nobody writes any more: of the same memory if that is aligned, or a copy.

    A view that cannot be written, such as that of a tensor, is copied: DLPack does not take it.
    """
    if array.ctypes.data % _BYTES or not array.flags.writeable:
        return tf.constant(array)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
