"""Initializes a large table block by block."""

import numbers
import random

import numpy as np
import tensorflow as tf

from tfxc._keras import keras

_BLOCK_ELEMENTS = 1 << 22
_PLAIN = keras.initializers.RandomNormal, keras.initializers.RandomUniform, keras.initializers.TruncatedNormal
_RANDOM = keras.initializers.VarianceScaling, *_PLAIN


def in_blocks(initializer):
    """Returns a Keras initializer of tables [rows, D] that takes little memory besides the table.

    Keras's random initializers hold three copies of a float32 table. This one draws each block of their
    numbers, in float32, with a seed of its own; a table of one block equals Keras's. Rows that a strategy
    asks for are in the scale of the whole table. Any other initializer makes its table at once.
    """

    def initialize(shape, dtype="float32", **partition):
        rows, dim = partition.get("partition_shape", shape)
        first = partition.get("partition_offset", [0])[0]
        size = max(1, _BLOCK_ELEMENTS // max(1, dim))
        block_initializer = None if rows <= size and not partition else _drawing(initializer, shape)
        if block_initializer is None:
            drawn = "float32" if _is_one(initializer, _RANDOM) else dtype
            return tf.cast(initializer(shape, dtype=drawn, **partition), dtype)
        table = tf.raw_ops.Empty(shape=[rows, dim], dtype=dtype)
        for number, start in enumerate(range(0, rows, size)):
            stop = min(start + size, rows)
            values = block_initializer(stop - start, [number, first])
            table = tf.raw_ops.InplaceUpdate(x=table, i=tf.range(start, stop), v=tf.cast(values, dtype))
        return table

    return initialize


def some_rows(initializer, shape, num_rows):
    """Rows float32 [num_rows, D] such as an initializer makes for a table of this shape, always the same.

    None for an initializer that is not one of Keras's random ones: it may hold the table itself.
    """
    if not _is_one(initializer, _RANDOM):
        return None
    seeded = type(initializer).from_config({**initializer.get_config(), "seed": 0})
    return _drawing(seeded, shape)(num_rows, [0])


def _drawing(initializer, shape):
    """A function (number of rows, integers of a block) -> float32 values; None for others' initializers."""
    if _is_one(initializer, [keras.initializers.VarianceScaling]):
        rows, dim = shape
        fan = {"fan_in": lambda n: n, "fan_out": lambda n: dim, "fan_avg": lambda n: (n + dim) / 2}
        fan = fan[initializer.mode]

        def of_block(num_rows, seed):
            # Keras scales by the shape of the block, so correct the scale to that of the whole table.
            scale = initializer.scale * max(1, fan(num_rows)) / max(1, fan(rows))
            return keras.initializers.VarianceScaling(scale, initializer.mode, initializer.distribution, seed)
    elif _is_one(initializer, _PLAIN):

        def of_block(num_rows, seed):
            return type(initializer).from_config({**initializer.get_config(), "seed": seed})
    else:
        return None
    own = random.randrange(2**31) if initializer.seed is None else initializer.seed
    is_number = isinstance(own, numbers.Integral)  # else a SeedGenerator, which counts its draws

    def draw(num_rows, block):
        seed = own
        if is_number:
            words = [int(own) % 2**64, *block]  # NumPy refuses negative words
            seed = int(np.random.SeedSequence(words).generate_state(1)[0]) >> 1
        return of_block(num_rows, seed)((num_rows, shape[1]), dtype="float32")

    return draw


def _is_one(initializer, kinds):
    """Whether an initializer draws like one of these kinds. A subclass may override ``__call__``."""
    call = type(initializer).__call__
    return any(isinstance(initializer, kind) and call is kind.__call__ for kind in kinds)
