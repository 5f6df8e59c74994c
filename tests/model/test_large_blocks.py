"""What a step frees stays with the process, also where TensorFlow has asked for the opposite."""

import ctypes
import sys

import numpy as np
import pytest

import tfxc
from tfxc._keras import keras
from tfxc.model.large_blocks import KeepLargeBlocks, keep_large_blocks

BLOCK = 8 << 20

C = ctypes.CDLL(None)

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(C, "mallinfo2"), reason="needs glibc 2.33"
)


class MallocInfo(ctypes.Structure):
    """As in malloc.h: what glibc took of the system, in numbers of blocks and in bytes."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    ]


def info():
    C.mallinfo2.restype = MallocInfo
    return C.mallinfo2()


def returned_bytes():
    """What goes back to the system when a large block is freed. Page faults would tell too, but not alike on
    every kernel."""
    C.malloc.restype, C.malloc.argtypes, C.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    block = C.malloc(BLOCK)
    taken = info()
    C.free(block)
    left = info()
    return (taken.arena + taken.hblkhd) - (left.arena + left.hblkhd)


def return_all_at_once():
    """As TensorFlow does when data come from a generator, where glibc has not adjusted its limits yet."""
    for limit in (-1, -3):
        C.mallopt(limit, 128 << 10)


def test_blocks_stay(monkeypatch):
    return_all_at_once()
    assert returned_bytes() >= BLOCK
    monkeypatch.setenv("MALLOC_ARENA_MAX", "8")  # somebody else sees to it
    keep_large_blocks()
    assert returned_bytes() >= BLOCK
    monkeypatch.delenv("MALLOC_ARENA_MAX")
    keep_large_blocks()
    assert returned_bytes() == 0


def test_a_training_from_a_generator_keeps_them():
    encoder = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)])
    model = tfxc.ExtremeClassifier(encoder, tfxc.layers.DenseHead(30), tfxc.samplers.Uniform(5))
    model.compile(tfxc.optimizers.LazyAdam(), loss=tfxc.losses.SoftmaxCrossentropy())

    def batches():
        while True:
            yield np.ones((2, 4), np.float32), np.ones((2, 1), np.int32)

    return_all_at_once()
    model.fit(batches(), steps_per_epoch=2, verbose=0)
    assert returned_bytes() == 0


def test_only_the_first_batch_of_an_epoch_sets_limits():
    return_all_at_once()
    KeepLargeBlocks().on_train_batch_end(1)
    assert returned_bytes() >= BLOCK
    KeepLargeBlocks().on_train_batch_end(0)
    assert returned_bytes() == 0
