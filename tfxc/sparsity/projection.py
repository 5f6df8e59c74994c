"""Short vectors whose inner products are nearly those of long ones, for queries like those of recent steps.

The queries [N, E] of a model lie near a subspace of few dimensions. With V [d, E] an orthonormal basis of it,
``(V z) · (V w)`` is ``z · w`` but for the part of z outside the subspace. The basis is that of the range of
the queries' second moments, ``Y = mean z [zᵀΩ, 1]`` [E, d], with a random Ω: the mean query lies in it, and
most of what the other principal directions hold.

Reference:
    Halko, Martinsson, Tropp, "Finding Structure with Randomness: Probabilistic Algorithms for Constructing
    Approximate Matrix Decompositions", 2011; Clarkson, Woodruff, "Low-Rank Approximation and Regression in
    Input Sparsity Time", 2013 (an Ω with one number, -1 or 1, in each row).
"""

import functools

import numpy as np
import tensorflow as tf

_NUM_QUERIES = 32  # of a step; more tell hardly more, since many steps count
_MOST_STEPS = 100  # steps that count alike


@functools.cache
def _random_signs(num_inputs, dim, seed):
    """Ω [E, dim]: for each of E inputs the column int32 in [0, dim) of its number, and that, -1 or 1."""
    rng = np.random.default_rng([seed, num_inputs, dim])
    return rng.integers(dim, size=num_inputs, dtype=np.int32), rng.choice(np.float32([-1, 1]), num_inputs)


def follow(moments, query, num_steps, seed):
    """Takes the queries of a step into their running moments Y, unless one of them is not finite.

    The first 100 steps count alike. From then on a new step weighs a hundredth, and older ones ever less.

    Args:
        moments: ``tf.Variable`` float32 [E, d].
        query: [N, E]; some of them, evenly spaced, stand for all.
        num_steps: int64 scalar, the number of steps with this one.
        seed: int.
    """
    num_inputs, dim = moments.shape
    num_queries = tf.shape(query)[0]
    taken = tf.minimum(num_queries, _NUM_QUERIES)
    query = tf.cast(tf.gather(query, tf.range(taken) * num_queries // tf.maximum(taken, 1)), tf.float32)
    inputs_first = tf.transpose(query)
    products = tf.ones([taken, 1])
    if dim > 1:
        column, sign = _random_signs(num_inputs, dim - 1, seed)
        sums = tf.math.unsorted_segment_sum(inputs_first * sign[:, np.newaxis], column, dim - 1)
        products = tf.concat([tf.transpose(sums), products], 1)
    new = tf.math.divide_no_nan(tf.matmul(inputs_first, products), tf.cast(taken, tf.float32))
    known = (taken > 0) & tf.reduce_all(tf.math.is_finite(query))
    share = tf.where(known, 1 / tf.cast(tf.clip_by_value(num_steps, 1, _MOST_STEPS), tf.float32), 0.0)
    moments.assign_add(share * (tf.where(known, new, 0.0) - moments))


def basis_of(moments, before):
    """An orthonormal basis float32 [d, E] of the range of the moments [E, d].

    Of all bases it is the one nearest to ``before``, so that what was projected before stays comparable while
    the range hardly turns.
    """
    basis = np.linalg.qr(moments)[0]
    left, _, right = np.linalg.svd(basis.T @ before.T)  # the orthogonal Procrustes problem
    return np.ascontiguousarray((basis @ (left @ right)).T, np.float32)
