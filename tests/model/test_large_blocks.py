"""What a step frees stays with the process, also where TensorFlow has asked for the opposite."""

import ctypes
import resource
import sys

import numpy as np
import pytest

import tfxc
from tfxc._keras import keras
from tfxc.model.large_blocks import KeepLargeBlocks, keep_large_blocks

BLOCK = 8 << 20

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc"
)


def return_all_at_once():
    """As TensorFlow does when data come from a generator, where glibc has not adjusted its limits yet."""
    for limit in (-1, -3):
        ctypes.CDLL(None).mallopt(limit, 128 << 10)


def num_faults(num_blocks=20):
    """Pages that the system has to clear while this thread takes large blocks and frees them."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for _ in range(num_blocks):
        np.ones(BLOCK, np.int8)
    return (resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before) / num_blocks


def test_blocks_stay(monkeypatch):
    return_all_at_once()
    pages = BLOCK / 4096 / 512  # they may be huge ones
    assert num_faults() >= pages
    monkeypatch.setenv("MALLOC_ARENA_MAX", "8")  # somebody else sees to it
    keep_large_blocks()
    assert num_faults() >= pages
    monkeypatch.delenv("MALLOC_ARENA_MAX")
    keep_large_blocks()
    num_faults()
    assert num_faults() < 1


def test_a_training_from_a_generator_keeps_them():
    encoder = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)])
    model = tfxc.ExtremeClassifier(encoder, tfxc.layers.DenseHead(30), tfxc.samplers.Uniform(5))
    model.compile(tfxc.optimizers.LazyAdam(), loss=tfxc.losses.SoftmaxCrossentropy())

    def batches():
        while True:
            yield np.ones((2, 4), np.float32), np.ones((2, 1), np.int32)

    return_all_at_once()
    model.fit(batches(), steps_per_epoch=2, verbose=0)
    num_faults()
    assert num_faults() < 1


def test_only_the_first_batch_of_an_epoch_sets_limits():
    return_all_at_once()
    KeepLargeBlocks().on_train_batch_end(1)
    assert num_faults() >= BLOCK / 4096 / 512
    KeepLargeBlocks().on_train_batch_end(0)
    num_faults()
    assert num_faults() < 1
