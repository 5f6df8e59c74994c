"""The queries of recent steps, by their moments or a sample of them, and the class frequencies that follow.

A sample costs a product of each of its queries with each class. The moments take queries for normal, which
those of a sparse head behind a ReLU layer are not.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfxc._keras import keras
from tfxc._keras.weights import add_weight, tf_variable

_MOST_STEPS = 100  # steps that count alike in the moments of queries
_SIZE, _A_STEP = 256, 8  # queries of a sample, and of them those of a step
_MOST_SCORES = 1 << 28  # of a query and a class
_LEAST = 64  # queries, however many classes there are


class Moments(NamedTuple):
    """The mean and the variance of each component of many vectors, both float32 [D]."""

    mean: np.ndarray
    variance: np.ndarray

    @classmethod
    def of(cls, vectors):
        """The moments of vectors [n, D]."""
        return cls(vectors.mean(0), vectors.var(0))


def log_frequency(vectors, queries, classes):
    """The log of how often a model of logits ``z·w`` answers with a class, up to a constant, float32 [n].

    The frequency of a class is the mean of its softmax, ``E exp(z·w) / Z(z)``. Both the queries and the
    classes that Z sums over are taken as normal with these ``Moments`` and independent components. With the
    queries' μ and σ², the classes' variance s, and δ the difference of w from the classes' mean, the log is
    ``Σ_d (μ_d δ_d + ½ σ_d² δ_d²) / (1 + σ_d² s_d)``. A head without biases needs the second term: there,
    frequent classes have long vectors. The class vectors are float32 [n, D].
    """
    damping = 1 + queries.variance * classes.variance
    square = queries.variance / damping / 2
    # The classes' mean goes into the linear term: to subtract it from all vectors would cost twice as much.
    linear = queries.mean / damping - 2 * square * classes.mean
    return vectors @ linear + np.square(vectors) @ square


class QueryMoments(keras.layers.Layer):
    """The running moments of the queries [N, D] of the steps; 0 before the first."""

    def build(self, input_shape):
        for name in ("mean", "mean_square"):
            setattr(self, name, add_weight(self, name, input_shape, trainable=False, aggregation="mean"))
        self.built = True

    def follow(self, query, num_steps):
        """Takes in the queries of the step of this number, unless one is not finite.

        The first 100 steps count alike. From then on a new step weighs a hundredth, and older ones ever less.
        """
        count = tf.cast(tf.shape(query)[0], tf.float32)
        means = [tf.math.divide_no_nan(tf.reduce_sum(own, 0), count) for own in (query, tf.square(query))]
        # Queries that are all 0, or none at all, tell nothing.
        known = tf.reduce_any(means[1] > 0) & tf.reduce_all(tf.math.is_finite(query))
        share = 1 / tf.cast(tf.clip_by_value(num_steps, 1, _MOST_STEPS), tf.float32)
        for variable, mean in zip((self.mean, self.mean_square), means, strict=True):
            variable = tf_variable(variable)
            variable.assign_add(tf.where(known, share * (mean - variable), 0.0))

    def moments(self):
        mean, mean_square = (tf_variable(variable).numpy() for variable in (self.mean, self.mean_square))
        return Moments(mean, np.maximum(mean_square - np.square(mean), 0))


class QuerySample(keras.layers.Layer):
    """Some queries of each of the last 32 steps: 256 in all, evenly spaced in their batches."""

    def build(self, input_shape):
        self.rows = add_weight(self, "rows", (_SIZE, *input_shape), trainable=False)
        self.built = True

    def follow(self, query, num_steps):
        """Takes in queries [N, D] of the step of this number, unless one is not finite or all are 0."""
        num_queries = tf.shape(query)[0]
        taken = tf.minimum(num_queries, _A_STEP)
        number = tf.range(taken)
        query = tf.gather(query, number * num_queries // tf.maximum(taken, 1))
        first = tf.cast(_A_STEP * num_steps % _SIZE, tf.int32)
        rows, places = tf_variable(self.rows), first + number
        known = tf.reduce_all(tf.math.is_finite(query)) & tf.reduce_any(query != 0)
        rows.scatter_update(tf.IndexedSlices(tf.where(known, query, tf.gather(rows, places)), places))

    def queries(self, num_classes):
        """Those of the sample float32 [n, D] by which so many classes are weighed; none before a step."""
        rows = tf_variable(self.rows).numpy()
        rows = rows[rows.any(1)]
        most = max(_MOST_SCORES // num_classes, _LEAST)
        return rows[np.arange(min(most, len(rows))) * len(rows) // max(min(most, len(rows)), 1)]


def log_partitions(blocks, queries):
    """The log [n] of what the exponentials of all scores of each query [n, D] add up to.

    ``blocks`` yields (start, class vectors float32 [b, D]).
    """
    parts = [tf.reduce_logsumexp(tf.matmul(queries, vectors, transpose_b=True), 1) for _, vectors in blocks]
    return tf.reduce_logsumexp(tf.stack(parts), 0)


def mean_log_softmax(vectors, queries, log_partition):
    """The log of the mean over queries [n, D] of the softmax of classes at w [b, D], ``exp(z·w) / Z(z)``.

    ``log_partition`` is log Z of each query [n]. Without queries all classes are as frequent.
    """
    if not len(queries):
        return np.zeros(len(vectors), np.float32)
    log_shares = tf.matmul(vectors, queries, transpose_b=True) - log_partition
    return tf.reduce_logsumexp(log_shares, 1).numpy() - np.float32(np.log(len(queries)))
