"""However many threads a kernel runs on, however wide its vectors, wherever its inputs lie: the same bits."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from kernel_calls import CALLS
from processes import Process

DIGESTS = """
import hashlib
import tensorflow as tf
from kernel_calls import CALLS

for name, (call, *arrays) in CALLS.items():
    found = call(*map(tf.constant, arrays))
    print(hashlib.sha256(b"".join(part.numpy().tobytes() for part in found)).hexdigest(), name)
"""
AVX2 = Path(__file__).parents[2] / "build/custom_ops/x86-64-v3/_tfxc_ops.so"  # by `make setup-tests`
NARROW = {"TFXC_OPS_LIBRARY": str(AVX2)} if AVX2.exists() else {}


@pytest.mark.long
@pytest.mark.kernels
def test_neither_threads_nor_the_width_of_vectors_change_a_bit(capsys):
    other = Process(DIGESTS, TF_NUM_INTRAOP_THREADS="4", **NARROW)
    exec(DIGESTS, {})  # here on one thread, or on two: see conftest.py
    assert capsys.readouterr().out == other.output()


def unaligned(array):
    """At no multiple of 64 bytes, as a part of a tensor or one of another library may be."""
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
def test_unaligned_inputs_give_what_aligned_ones_give(name):
    call, *arrays = CALLS[name]
    for one, other in zip(call(*map(tf.constant, arrays)), call(*map(unaligned, arrays)), strict=True):
        np.testing.assert_array_equal(one, other)
