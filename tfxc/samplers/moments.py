"""Queries and classes by their means and variances, and the frequencies of the classes that follow."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfxc._keras import keras
from tfxc._keras.weights import add_weight, tf_variable

_MOST_STEPS = 100  # steps that count alike in the moments of queries


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
