"""Stochastic rounding to bfloat16, whose mean is the exact number: so steps below its precision add up."""

import tensorflow as tf

_LOW = 0xFFFFFFFF
_INFINITY = 0x7F800000


def stochastic_round(rows, row_ids, seed):
    """Rounds rows float32 [n, ...] to bfloat16, up or down with the chance that makes the mean exact.

    The random numbers, 16 bits of Philox each, belong to the seed, the row and the column, whatever else is
    rounded. A number that is a bfloat16 already stays; so do NaN and infinity. A finite number never becomes
    infinite: it becomes the largest finite one. The compiled row updates give the same bits. Row ids are
    int32 or int64 [n], in [0, 2^32); the seed int64 [2] is a key and a counter of steps.

    Reference:
        Gupta et al., "Deep Learning with Limited Numerical Precision", 2015;
        Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011 (Philox).
    """
    flat = tf.reshape(rows, [tf.shape(rows)[0], rows.shape[1:].num_elements()])
    bits = tf.bitcast(flat, tf.int32)
    up = tf.bitwise.right_shift(bits + random_16_bits(row_ids, flat.shape[1], seed), 16)
    becomes_infinite = tf.bitwise.bitwise_and(up, 0x7FFF) == _INFINITY >> 16
    up -= tf.cast(becomes_infinite & tf.math.is_finite(flat), tf.int32)
    quiet = tf.bitwise.bitwise_or(tf.bitwise.right_shift(bits, 16), 0x40)
    halves = tf.bitwise.bitwise_and(tf.where(tf.math.is_nan(flat), quiet, up), 0xFFFF)
    return tf.reshape(tf.bitcast(tf.cast(halves, tf.uint16), tf.bfloat16), tf.shape(rows))


def random_16_bits(row_ids, width, seed):
    """Random numbers int32 [n, width] in [0, 2^16) that belong to rows and a seed of ``stochastic_round``."""
    count = -(-width // 64) * 8  # the compiled op makes eight counters at once
    key, sequence = tf.unstack(tf.cast(seed, tf.int64))
    shape = [tf.size(row_ids), count]
    counter = [
        tf.broadcast_to(tf.range(count, dtype=tf.int64), shape),
        tf.broadcast_to(tf.cast(row_ids, tf.int64)[:, tf.newaxis], shape),
        tf.fill(shape, _low(sequence)),
        tf.fill(shape, _high(sequence)),
    ]
    x = philox(counter, [_low(key), _high(key)])
    words = tf.concat([tf.reshape(tf.stack(pair, 2), [shape[0], 2 * count]) for pair in (x[:2], x[2:])], 1)
    halves = tf.stack([tf.bitwise.bitwise_and(words, 0xFFFF), tf.bitwise.right_shift(words, 16)], 2)
    return tf.cast(tf.reshape(halves, [shape[0], 8 * count])[:, :width], tf.int32)


def philox(counter, key):
    """Philox4x32-10: four int64 tensors of 32 random bits, from four words of a counter and two of a key."""
    x0, x1, x2, x3 = counter
    key0, key1 = key
    for _ in range(10):
        first, second = x0 * 0xD2511F53, x2 * 0xCD9E8D57  # modulo 2^64
        x0 = tf.bitwise.bitwise_xor(tf.bitwise.bitwise_xor(_high(second), x1), key0)
        x2 = tf.bitwise.bitwise_xor(tf.bitwise.bitwise_xor(_high(first), x3), key1)
        x1, x3 = _low(second), _low(first)
        key0, key1 = _low(key0 + 0x9E3779B9), _low(key1 + 0xBB67AE85)
    return x0, x1, x2, x3


def _low(words):
    return tf.bitwise.bitwise_and(words, tf.constant(_LOW, tf.int64))


def _high(words):
    return _low(tf.bitwise.right_shift(words, tf.constant(32, tf.int64)))
