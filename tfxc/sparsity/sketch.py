"""Count sketches: short vectors whose inner products estimate those of long sparse ones.

A hash sends every input j to one of dim buckets, with a random sign s_j; the sketch of a vector holds the sum
of ``s_j · x_j`` over each bucket. ``sketch(x) · sketch(w)`` has mean ``x · w`` and a variance of about ``|x|²
|w|² / dim``.

Reference:
    Charikar, Chen, Farach-Colton, "Finding Frequent Items in Data Streams", 2002; Weinberger et al.,
    "Feature Hashing for Large Scale Multitask Learning", 2009.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf


class Sketch(NamedTuple):
    """The bucket int32 [E] in [0, dim) and the sign float32 [E], -1 or 1, of each of E inputs."""

    bucket: np.ndarray
    sign: np.ndarray
    dim: int


def random_sketch(num_inputs, dim, seed):
    """A random ``Sketch``; the same for the same arguments."""
    rng = np.random.default_rng([seed, num_inputs, dim])
    bucket = rng.integers(dim, size=num_inputs, dtype=np.int32)
    return Sketch(bucket, rng.choice(np.float32([-1, 1]), num_inputs), dim)


def sketch_queries(query, sketch):
    """Sketches [N, dim] of dense vectors [N, E]."""
    inputs_first = tf.transpose(query * sketch.sign)
    return tf.transpose(tf.math.unsorted_segment_sum(inputs_first, sketch.bucket, sketch.dim))


def sketch_rows(weights, indices, sketch):
    """Sketches [b, dim] of sparse vectors: weights [b, K] at inputs ``indices`` [b, K]."""
    num_rows = tf.shape(weights)[0]
    cell = tf.range(num_rows)[:, tf.newaxis] * sketch.dim + tf.gather(sketch.bucket, indices)
    signed = weights * tf.gather(sketch.sign, indices)
    sums = tf.math.unsorted_segment_sum(
        tf.reshape(signed, [-1]), tf.reshape(cell, [-1]), num_rows * sketch.dim
    )
    return tf.reshape(sums, [num_rows, sketch.dim])
