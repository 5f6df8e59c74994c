"""Inputs at no multiple of 64 bytes, as a part of a tensor or one of another library may be."""

import numpy as np
import pytest
import tensorflow as tf
from kernel_calls import CALLS


def unaligned(array):
    array = np.ascontiguousarray(array)
    room = np.zeros(array.size + 1 + 64 // array.itemsize, array.dtype)
    start = (-room.ctypes.data % 64) // array.itemsize + 1
    own = room[start : start + array.size].reshape(array.shape)
    own[...] = array
    tensor = tf.experimental.dlpack.from_dlpack(own.__dlpack__())
    assert np.from_dlpack(tensor).ctypes.data % 64 == array.itemsize
    return tensor


@pytest.mark.kernels
@pytest.mark.parametrize("name", CALLS)
def test_they_give_what_aligned_ones_give(name):
    call, *arrays = CALLS[name]
    for one, other in zip(call(*map(tf.constant, arrays)), call(*map(unaligned, arrays)), strict=True):
        np.testing.assert_array_equal(one, other)
