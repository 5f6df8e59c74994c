"""Families of hash functions: locality-sensitive codes of vectors, and universal hashing of class ids.

A locality-sensitive family is a pair of functions. One draws its parameters, a dict of arrays, from a seed;
the other turns vectors [n, D] into codes int32 [n, T] in [0, 2^b), one for each of T tables, given those
parameters.
"""

import functools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

_MAX_WINDOW_BITS = 3  # windows of eight coordinates, as in the paper
_NUM_PROBES = 16
_MAX_KEYS = 2**31 - 1  # itself a prime; products of two keys fit in 63 bits


def draw_simhash(dim, num_tables, num_bits, seed):
    """Parameters of :func:`simhash`: ``projections`` float32 [D, T·b], standard normal.

    Example:
        >>> draw_simhash(8, num_tables=3, num_bits=2, seed=0)["projections"].shape
        (8, 6)
    """
    random = np.random.default_rng(seed)
    return {"projections": random.normal(size=(dim, num_tables * num_bits)).astype(np.float32)}


def simhash(vectors, num_bits, projections):
    """Signs of random projections: a bit of two vectors agrees with probability ``1 − θ/π``.

    θ is the angle between them, so a code of b bits agrees with probability ``(1 − θ/π)^b``.

    Args:
        vectors: float [n, D].
        num_bits: b, in [1, 16].
        projections: float [D, T·b], see :func:`draw_simhash`.

    Returns:
        Codes int32 [n, T]; the zero vector has code 0.

    Example:
        >>> simhash(tf.constant([[1.0, -2.0]]), 2, projections=tf.constant([[1.0, 0, 0, 1], [0, 1, -1, 0]]))
        <tf.Tensor: shape=(1, 2), dtype=int32, numpy=array([[1, 3]], dtype=int32)>

    Reference:
        Charikar, "Similarity Estimation Techniques from Rounding Algorithms", 2002.
    """
    bits = tf.matmul(tf.cast(vectors, tf.float32), projections) > 0
    bits = tf.reshape(bits, [tf.shape(bits)[0], projections.shape[1] // num_bits, num_bits])
    return tf.reduce_sum(tf.where(bits, 2 ** tf.range(num_bits), 0), axis=2)


def draw_dwta(dim, num_tables, num_bits, seed):
    """Parameters of :func:`dwta`: ``windows`` int32 [T, W, 8 or less] and ``probes`` int32 [16, T].

    The windows are cut from random permutations of the D coordinates. A window of fewer coordinates than
    the widest repeats its first, which as a repetition is never the winner.

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


def dwta(vectors, num_bits, windows, probes):
    """Densified winner-take-all: which coordinate of a few is the largest; for sparse, non-negative vectors.

    A code is made of W = ⌈b/3⌉ windows of 8, 4 or 2 coordinates, which give 3, 2 or 1 bits each. It depends
    on the order of the coordinates only. A window of nothing but zeros takes the winner of the same window
    of another table, the first of ``probes`` that has one; if none has, it gives 0.

    Args:
        vectors: float [n, D].
        num_bits: b, in [1, 16].
        windows: int32 [T, W, V], see :func:`draw_dwta`.
        probes: int32 [A, T], tables to borrow from, in order.

    Returns:
        Codes int32 [n, T].

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
    winner = tf.cond(
        tf.reduce_all(occupied), lambda: winner, lambda: _borrow_winners(winner, occupied, probes)
    )
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
    """Bits of each of the ⌈b/3⌉ windows of a code, as alike as possible."""
    count = -(-num_bits // _MAX_WINDOW_BITS)
    return num_bits // count + (np.arange(count) < num_bits % count)


class UniversalHash(NamedTuple):
    """R independent functions ``h_r(i) = ((a_r · i + b_r) mod p) mod M`` of the 2-universal family.

    Two different keys in [0, L) share a bucket of one function with probability at most 1/M over the draw of
    a and b. p is the smallest prime from L on: then ``a · i + b`` runs through almost only keys, and the keys
    of a bucket are found by inverting it, without a table. All arithmetic is in 64 bits.

    Attributes:
        coefficients: int64 [R, 3]: a_r in [1, p), b_r in [0, p) and the inverse of a_r modulo p.
        num_keys: L, in [1, 2^31).
        num_buckets: M.

    Example:
        >>> family = UniversalHash(universal_coefficients(1000, range(2), seed=1), 1000, 16)
        >>> buckets = family.buckets(tf.range(1000))
        >>> buckets.shape, bool(tf.reduce_all((buckets >= 0) & (buckets < 16)))
        (TensorShape([2, 1000]), True)
        >>> keys = family.members(buckets[:, 7:8])  # every key of the buckets that hold key 7; -1 is padding
        >>> bool(tf.reduce_all(tf.reduce_any(keys == 7, -1)))
        True

    Reference:
        Carter, Wegman, "Universal Classes of Hash Functions", 1979.
    """

    coefficients: tf.Tensor
    num_keys: int
    num_buckets: int

    @property
    def prime(self) -> int:
        """p, the smallest prime from L on."""
        return next_prime(self.num_keys)

    @property
    def collision_probability(self) -> float:
        """The probability that two keys share a bucket, over a and b; hardly below 1/M if L >> M."""
        # Two values mod p are as good as two different ones drawn at random.
        size, larger = divmod(self.prime, self.num_buckets)
        pairs = larger * (size + 1) * size + (self.num_buckets - larger) * size * (size - 1)
        return pairs / (self.prime * (self.prime - 1))

    def buckets(self, keys):
        """The bucket of each key under each function: int32 [R, ...] of integer keys [...]."""
        keys = tf.cast(keys, tf.int64)
        a, b, _ = self._columns(keys.shape.rank)
        return tf.cast((a * keys + b) % self.prime % self.num_buckets, tf.int32)

    def members(self, buckets):
        """All keys of chosen buckets of each function.

        Args:
            buckets: integers [R, ...] in [0, M).

        Returns:
            int32 [R, ..., ceil(p / M)], padded with -1; about L / M of each bucket are keys.
        """
        buckets = tf.cast(buckets, tf.int64)[..., tf.newaxis]
        _, b, inverse = self._columns(buckets.shape.rank - 1)
        # What is mod M in the bucket is bucket, bucket + M, bucket + 2M, ...
        value = buckets + tf.range(0, self.prime, self.num_buckets, dtype=tf.int64)
        keys = inverse * ((value - b) % self.prime) % self.prime
        return tf.cast(tf.where((value < self.prime) & (keys < self.num_keys), keys, -1), tf.int32)

    def _columns(self, rank):
        """a, b and the inverse of a, int64 [R, 1, ..., 1] with that many ones."""
        return [tf.reshape(column, [-1] + [1] * rank) for column in tf.unstack(self.coefficients, axis=1)]


def universal_coefficients(num_keys, functions, seed):
    """Draws the coefficients of a :class:`UniversalHash`.

    Args:
        num_keys: L, in [1, 2^31).
        functions: numbers (at least 0) of the functions: number r of a seed is the same function in whatever
            company it is drawn.
        seed: int, at least 0.

    Returns:
        int64 [R, 3].

    Raises:
        ValueError: if num_keys is out of range.

    Example:
        >>> both, second = (universal_coefficients(50, numbers, seed=3) for numbers in (range(2), [1]))
        >>> bool((both[1:] == second).all())
        True
    """
    if not 1 <= num_keys <= _MAX_KEYS:
        raise ValueError(f"num_keys must be in [1, {_MAX_KEYS}], but got {num_keys}.")
    prime = next_prime(num_keys)
    rows = []
    for number in functions:
        random = np.random.default_rng([seed, number])
        a, b = int(random.integers(1, prime)), int(random.integers(prime))
        rows.append([a, b, pow(a, -1, prime)])
    return np.array(rows, np.int64).reshape(-1, 3)


@functools.cache
def next_prime(number):
    """The smallest prime that is at least ``number``.

    >>> next_prime(1), next_prime(1_000_000), next_prime(2**31 - 1)
    (2, 1000003, 2147483647)
    """
    number = max(int(number), 2)
    while not all(number % divisor for divisor in range(2, int(number**0.5) + 1)):
        number += 1
    return number
