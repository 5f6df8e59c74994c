"""Initial values of a bfloat16 table, made in float32 a block of rows at a time."""

import random

import numpy as np
import tensorflow as tf

from tfxc._keras import keras

_BLOCK_ELEMENTS = 1 << 22


def in_blocks(initializer):
    """An initializer of tables [rows, D] in bfloat16 that never holds them in float32.

    Drawn are the numbers of Keras's random initializers, as for the whole table, each block by a seed of its
    own. Any other initializer is asked for the whole table, in bfloat16.

    Args:
        initializer: a Keras initializer.

    Returns:
        A function of a shape to a tensor, as Keras takes for an initializer.

    Example:
        >>> in_blocks(keras.initializers.RandomNormal(stddev=0.1))([1000, 4]).dtype
        tf.bfloat16
    """

    def initialize(shape, dtype=None, **options):
        del dtype
        block_initializer = _drawing(initializer, shape)
        if block_initializer is None:
            return tf.cast(initializer(shape, dtype="bfloat16", **options), tf.bfloat16)
        rows, dim = shape
        size = max(1, _BLOCK_ELEMENTS // max(1, dim))
        table = tf.raw_ops.Empty(shape=shape, dtype=tf.bfloat16)
        for number, start in enumerate(range(0, rows, size)):
            ids = tf.range(start, min(start + size, rows))
            values = block_initializer(len(ids), number)
            table = tf.raw_ops.InplaceUpdate(x=table, i=ids, v=tf.cast(values, tf.bfloat16))
        return table

    return initialize


def _drawing(initializer, shape):
    """A function of a number of rows and of a block to float32 values; None if the initializer draws none."""
    known = keras.initializers
    if isinstance(initializer, known.VarianceScaling):
        rows, dim = shape
        fan = {"fan_in": lambda n: n, "fan_out": lambda n: dim, "fan_avg": lambda n: (n + dim) / 2}
        fan = fan[initializer.mode]

        def of_block(num_rows, seed):
            # Its scale goes by the shape: that of the block, where that of the table is meant.
            scale = initializer.scale * max(1, fan(num_rows)) / max(1, fan(rows))
            return known.VarianceScaling(scale, initializer.mode, initializer.distribution, seed)
    elif isinstance(initializer, known.RandomNormal | known.RandomUniform | known.TruncatedNormal):

        def of_block(num_rows, seed):
            return type(initializer).from_config({**initializer.get_config(), "seed": seed})
    else:
        return None
    own = initializer.seed if isinstance(initializer.seed, int) else random.randrange(2**31)

    def draw(num_rows, number):
        seed = int(np.random.SeedSequence([own, number]).generate_state(1)[0]) >> 1
        return of_block(num_rows, seed)((num_rows, shape[1]), dtype="float32")

    return draw
