import numpy as np
import pytest
import tensorflow as tf

from tfxc.aligned import aligned_zeros, taken_over


@pytest.mark.parametrize("dtype", ["float32", "int32", "int8", "uint16", tf.bfloat16.as_numpy_dtype])
@pytest.mark.parametrize("shape", [(0, 3), (5,), (7, 3, 2)])
def test_zeros_of_any_shape(shape, dtype):
    array = aligned_zeros(shape, dtype)
    assert array.shape == shape and array.dtype == dtype and not array.any()
    assert array.size == 0 or array.ctypes.data % 64 == 0


def test_a_tensor_has_the_memory_of_an_aligned_array_and_a_copy_of_others():
    aligned, other = aligned_zeros([9, 4], np.float32), np.zeros(37, np.float32)[1:]
    aligned[:], other[:] = 1, 1
    tensors = [taken_over(array) for array in (aligned, other)]
    aligned[2, 1] = 7
    assert tensors[0][2, 1] == 7 and (tensors[1].numpy() == 1).all()
    view = np.asarray(tensors[0])  # of an aligned tensor, but read-only
    assert not view.flags.writeable and (taken_over(view) == tensors[0]).numpy().all()
    del aligned, view
    assert tf.reduce_sum(tensors[0]) == 9 * 4 + 6
