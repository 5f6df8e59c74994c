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

_EVERY = 8  # steps: what follows queries is not to cost much of a step
_NUM_QUERIES = 128  # of such a step
_MOST_STEPS = 32  # such steps that count alike


@functools.cache
def _random_signs(num_inputs, dim, seed):
    """Ω [E, dim]: for each of E inputs the column int32 in [0, dim) of its number, and that, -1 or 1."""
    rng = np.random.default_rng([seed, num_inputs, dim])
    return rng.integers(dim, size=num_inputs, dtype=np.int32), rng.choice(np.float32([-1, 1]), num_inputs)


def follow(moments, query, num_steps, seed):
    """Takes the queries of every eighth step into their running moments Y, unless one of them is not finite.

    The moments are a ``tf.Variable`` float32 [E, d]. Of the queries [N, E] at most 128, evenly spaced, stand
    for all. ``num_steps``, an int64 scalar, counts this step. The first 32 such steps count alike, a later
    one weighs a 32nd.
    """

    def take():
        num_queries = tf.shape(query)[0]
        taken = tf.minimum(num_queries, _NUM_QUERIES)
        some = tf.gather(query, tf.range(taken) * num_queries // tf.maximum(taken, 1))
        new = _moments_of(tf.cast(some, tf.float32), *moments.shape, seed)
        known = (taken > 0) & tf.reduce_all(tf.math.is_finite(new))
        share = 1 / tf.cast(tf.clip_by_value((num_steps - 1) // _EVERY + 1, 1, _MOST_STEPS), tf.float32)
        moments.assign_add(tf.where(known, share * (new - moments), 0.0))
        return known

    # Each replica follows its own queries: a condition cannot bring replicas together.
    tf.cond((num_steps - 1) % _EVERY == 0, take, lambda: False)


def _moments_of(query, num_inputs, dim, seed):
    """The mean of ``z [zᵀΩ, 1]`` [E, dim] over queries [n, E]; dim is at least 2."""
    inputs_first, (column, sign) = tf.transpose(query), _random_signs(num_inputs, dim - 1, seed)
    sums = tf.math.unsorted_segment_sum(inputs_first * sign[:, np.newaxis], column, dim - 1)
    products = tf.concat([tf.transpose(sums), tf.ones([tf.shape(query)[0], 1])], 1)
    return tf.matmul(inputs_first, products) / tf.cast(tf.shape(query)[0], tf.float32)


def basis_of(moments, before):
    """An orthonormal basis float32 [d, E] of the range of the moments [E, d], the one nearest to ``before``.

    So earlier projections stay comparable while the range hardly turns.
    """
    basis = np.linalg.qr(moments)[0]
    left, _, right = np.linalg.svd(basis.T @ before.T)  # the orthogonal Procrustes problem
    return np.ascontiguousarray((basis @ (left @ right)).T, np.float32)
