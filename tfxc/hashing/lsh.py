"""Locality-sensitive codes of vectors: SimHash and densified winner-take-all.

A family is a pair of functions. One draws its parameters, a dict of arrays, from a seed. The other uses these
parameters to turn vectors [n, D] into codes int32 [n, T] in [0, 2^b), one for each of T tables.
"""

import numpy as np
import tensorflow as tf

_MAX_WINDOW_BITS = 3  # windows of eight coordinates, as in the paper
_NUM_PROBES = 16


def draw_simhash(dim: int, num_tables: int, num_bits: int, seed) -> dict[str, np.ndarray]:
    """Draws the parameters of :func:`simhash`: ``projections`` float32 [D, T·b], standard normal.

    Example:
        >>> draw_simhash(8, num_tables=3, num_bits=2, seed=0)["projections"].shape
        (8, 6)
    """
    random = np.random.default_rng(seed)
    return {"projections": random.normal(size=(dim, num_tables * num_bits)).astype(np.float32)}


def simhash(vectors, num_bits: int, projections) -> tf.Tensor:
    """The codes int32 [n, T] of vectors [n, D]: signs of random projections, as of :func:`draw_simhash`.

    A bit of two vectors agrees with probability ``1 − θ/π``, where θ is the angle between them, so a code of
    b bits, in [1, 16], with probability ``(1 − θ/π)^b``. The zero vector has code 0.

    Example:
        >>> simhash(tf.constant([[1.0, -2.0]]), 2, projections=tf.constant([[1.0, 0, 0, 1], [0, 1, -1, 0]]))
        <tf.Tensor: shape=(1, 2), dtype=int32, numpy=array([[1, 3]], dtype=int32)>

    Reference:
        Charikar, "Similarity Estimation Techniques from Rounding Algorithms", 2002.
    """
    bits = tf.cast(tf.matmul(tf.cast(vectors, tf.float32), projections) > 0, tf.float32)
    bits = tf.reshape(bits, [tf.shape(bits)[0], projections.shape[1] // num_bits, num_bits])
    # Exact, and twice as fast as a sum of integers.
    return tf.cast(tf.einsum("ntb,b->nt", bits, 2 ** np.arange(num_bits, dtype=np.float32)), tf.int32)


def draw_dwta(dim: int, num_tables: int, num_bits: int, seed) -> dict[str, np.ndarray]:
    """Draws the parameters of :func:`dwta`: ``windows`` int32 [T, W, 8 or less], ``probes`` int32 [16, T].

    The windows are cut from random permutations of the D coordinates. A window of fewer coordinates than the
    widest one repeats its first coordinate, and the repetition never wins.

    Example:
        >>> parameters = draw_dwta(32, num_tables=3, num_bits=6, seed=0)
        >>> parameters["windows"].shape, parameters["probes"].shape
        ((3, 2, 8), (16, 3))
    """
    random = np.random.default_rng(seed)
    bits = _window_bits(num_bits)
    needed = num_tables * int(np.sum(2**bits))
    order = np.concatenate([random.permutation(dim) for _ in range(-(-needed // dim))])[:needed]
    windows = np.empty((num_tables, len(bits), 2 ** bits.max()), np.int32)
    parts = np.split(order.reshape(num_tables, -1), np.cumsum(2**bits)[:-1], axis=1)
    for window, part in enumerate(parts):
        windows[:, window] = part[:, :1]
        windows[:, window, : part.shape[1]] = part
    probes = random.integers(num_tables, size=(_NUM_PROBES, num_tables), dtype=np.int32)
    return {"windows": windows, "probes": probes}


def dwta(vectors, num_bits: int, windows, probes) -> tf.Tensor:
    """The densified winner-take-all codes int32 [n, T] of sparse, non-negative vectors [n, D].

    A code consists of W = ⌈b/3⌉ windows of 8, 4 or 2 coordinates. The place of the largest coordinate of a
    window gives 3, 2 or 1 bits, so only the order of the coordinates matters. A window of zeros takes the
    winner of the same window in another table, the first of ``probes`` that has one. If none has, it gives 0.
    Windows and probes are as of :func:`draw_dwta`; the number b of bits is in [1, 16].

    Example:
        >>> windows = tf.constant([[[0, 1, 2, 3]], [[4, 5, 6, 7]]])
        >>> vectors = tf.constant([[0.0, 3, 9, 1, 0, 0, 0, 0], [0.0, 0, 0, 0, 1, 0, 0, 2]])
        >>> dwta(vectors, 2, windows, probes=tf.constant([[1, 0]])).numpy().tolist()
        [[2, 2], [3, 3]]

    Reference:
        Chen, Shrivastava, "Densified Winner Take All (WTA) Hashing for Sparse Datasets", 2018.
    """
    values = tf.gather(vectors, windows, axis=1)  # [n, T, W, V]
    winner = tf.argmax(values, axis=3, output_type=tf.int32)
    occupied = tf.reduce_any(values != 0, axis=3)
    is_full = tf.reduce_all(occupied)
    winner = tf.cond(is_full, lambda: winner, lambda: _borrow_winners(winner, occupied, probes))
    shift = np.concatenate([[0], np.cumsum(_window_bits(num_bits))[:-1]])
    return tf.reduce_sum(winner * (2**shift).astype(np.int32), axis=2)


def _borrow_winners(winner, occupied, probes):
    found = tf.where(occupied, winner, 0)
    done = occupied
    for probe in tf.unstack(probes):
        lent = tf.gather(occupied, probe, axis=1) & ~done
        found = tf.where(lent, tf.gather(winner, probe, axis=1), found)
        done |= lent
    return found


def _window_bits(num_bits):
    """The bits of each of the ⌈b/3⌉ windows of a code, as equal as possible."""
    count = -(-num_bits // _MAX_WINDOW_BITS)
    return num_bits // count + (np.arange(count) < num_bits % count)
