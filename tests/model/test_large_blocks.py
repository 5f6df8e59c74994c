"""What a step frees stays with the process, also where TensorFlow has asked for the opposite."""

import numpy as np
from malloc_checks import BLOCK, needs_glibc, return_all_at_once, returned_bytes

import tfxc
from tfxc._keras import keras
from tfxc.model.large_blocks import KeepLargeBlocks

pytestmark = needs_glibc


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


def test_only_the_first_report_of_an_epoch_sets_limits():
    """Its number is that of the last step of several at once."""
    return_all_at_once()
    callback = KeepLargeBlocks()
    for _ in range(2):
        callback.on_epoch_begin(0)
        callback.on_train_batch_end(3)
        assert returned_bytes() == 0
        return_all_at_once()
        callback.on_train_batch_end(7)
        assert returned_bytes() >= BLOCK
