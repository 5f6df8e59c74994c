"""Universal hashing of class ids that can be inverted."""

import functools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfxc.arguments import positive_int

_MAX_KEYS = 2**31 - 1  # itself a prime; products of two keys fit in 63 bits


class UniversalHash(NamedTuple):
    """R independent functions ``h_r(i) = ((a_r · i + b_r) mod p) mod M`` of the 2-universal family.

    Two different keys in [0, L) share a bucket of one function with probability at most 1/M over the draw of
    a and b. p is the smallest prime that is at least L. Nearly every value of ``a · i + b`` then belongs to a
    key, so inverting the function finds the keys of a bucket without a table. All arithmetic is in 64 bits.

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

    coefficients: tf.Tensor  # int64 [R, 3]: a_r in [1, p), b_r in [0, p) and the inverse of a_r modulo p
    num_keys: int  # L, in [1, 2^31)
    num_buckets: int  # M

    @property
    def prime(self) -> int:
        """p, the smallest prime that is at least L."""
        return next_prime(self.num_keys)

    @property
    def collision_probability(self) -> float:
        """The probability that two keys share a bucket, over a and b; slightly below 1/M if L >> M."""
        # The values mod p of two keys are distributed like two different numbers drawn at random.
        size, larger = divmod(self.prime, self.num_buckets)
        pairs = larger * (size + 1) * size + (self.num_buckets - larger) * size * (size - 1)
        return pairs / (self.prime * (self.prime - 1))

    def buckets(self, keys) -> tf.Tensor:
        """The bucket of each key under each function: int32 [R, ...] for integer keys [...]."""
        keys = tf.cast(keys, tf.int64)
        a, b, _ = self._columns(keys.shape.rank)
        return tf.cast((a * keys + b) % self.prime % self.num_buckets, tf.int32)

    def members(self, buckets) -> tf.Tensor:
        """All keys int32 [R, ..., ceil(p / M)], padded with -1, of buckets [R, ...] in [0, M)."""
        buckets = tf.cast(buckets, tf.int64)[..., tf.newaxis]
        _, b, inverse = self._columns(buckets.shape.rank - 1)
        # The values in a bucket are bucket, bucket + M, bucket + 2M, ...
        value = buckets + tf.range(0, self.prime, self.num_buckets, dtype=tf.int64)
        keys = inverse * ((value - b) % self.prime) % self.prime
        return tf.cast(tf.where((value < self.prime) & (keys < self.num_keys), keys, -1), tf.int32)

    def _columns(self, rank):
        """a, b and the inverse of a, each int64 [R, 1, ..., 1] with ``rank`` ones."""
        return [tf.reshape(column, [-1] + [1] * rank) for column in tf.unstack(self.coefficients, axis=1)]


def universal_coefficients(num_keys: int, functions: Iterable[int], seed: int) -> np.ndarray:
    """Draws the coefficients int64 [R, 3] of a :class:`UniversalHash` of L keys, in [1, 2^31).

    Seed and number, both at least 0, alone determine a function.

    Example:
        >>> both, second = (universal_coefficients(50, numbers, seed=3) for numbers in (range(2), [1]))
        >>> bool((both[1:] == second).all())
        True
    """
    num_keys = positive_int(num_keys, "num_keys", most=_MAX_KEYS)
    prime = next_prime(num_keys)
    rows = []
    for number in functions:
        random = np.random.default_rng([seed, number])
        a, b = int(random.integers(1, prime)), int(random.integers(prime))
        rows.append([a, b, pow(a, -1, prime)])
    return np.array(rows, np.int64).reshape(-1, 3)


@functools.cache
def next_prime(number: int) -> int:
    """The smallest prime that is at least ``number``.

    >>> next_prime(1), next_prime(1_000_000), next_prime(2**31 - 1)
    (2, 1000003, 2147483647)
    """
    number = max(int(number), 2)
    while not all(number % divisor for divisor in range(2, int(number**0.5) + 1)):
        number += 1
    return number
