"""Proposals that need no index: uniform, and log-uniform over ids sorted by frequency."""

import math

import tensorflow as tf

from tfxc._keras import register
from tfxc.samplers.sampler import Sampler


@register
class Uniform(Sampler):
    """Draws every class alike: ``Q(i) = 1 / L``. The baseline, which needs to know nothing of the classes.

    Args:
        num_negatives, shared, seed: see ``Sampler``.

    Raises:
        ValueError: if num_negatives is not a positive integer.

    Example:
        >>> sampler = Uniform(3, seed=1)
        >>> sampler.build((1000, 8))
        >>> draw = sampler.sample(tfxc.samplers.Step(tf.zeros([2, 8]), tf.zeros([2, 1], tf.int32)))
        >>> draw.ids.shape, round(float(draw.log_expected_count[0, 0]), 4)
        (TensorShape([2, 3]), -5.8091)

    Reference:
        Bengio, Senécal, "Quick Training of Probabilistic Neural Nets by Importance Sampling", 2003.
    """

    def draw(self, given, seed):
        shape = [tf.shape(given)[0], self.num_negatives]
        # Uniform floats have 2^23 values, too few. With integers of 64 bits the bias is below 1e-12.
        ids = tf.random.stateless_uniform(shape, seed, 0, self.num_classes, tf.int64)
        return tf.cast(ids, tf.int32), self.log_expected_count(given, ids)

    def log_expected_count(self, given, ids):
        return tf.fill(tf.shape(ids), math.log(self.num_negatives / self.num_classes))


@register
class LogUniform(Sampler):
    """Zipf's law for class ids sorted by falling frequency: ``Q(i) = log((i+2)/(i+1)) / log(L+1)``.

    Use it when ids are frequency ranks but the counts are not at hand; with counts, ``Unigram`` fits better.

    Args:
        num_negatives, shared, seed: see ``Sampler``.

    Raises:
        ValueError: if num_negatives is not a positive integer.

    Example:
        >>> sampler = LogUniform(3, seed=1)
        >>> sampler.build((1000, 8))
        >>> float(tf.reduce_sum(tf.exp(sampler.log_prob(tf.zeros([1, 8]), tf.range(1000)))).numpy().round(4))
        1.0

    Reference:
        Jean, Cho, Memisevic, Bengio, "On Using Very Large Target Vocabulary for Neural Machine
        Translation", 2015.
    """

    def draw(self, given, seed):
        shape = [tf.shape(given)[0], self.num_negatives]
        uniform = tf.random.stateless_uniform(shape, seed, dtype=tf.float64)
        # The inverse of the distribution function log(i + 1) / log(L + 1).
        ids = tf.cast(tf.exp(uniform * math.log(self.num_classes + 1)), tf.int32) - 1
        ids = tf.clip_by_value(ids, 0, self.num_classes - 1)
        return ids, self.log_expected_count(given, ids)

    def log_expected_count(self, given, ids):
        rank = tf.cast(ids, tf.float64)
        count = tf.math.log1p(1.0 / (rank + 1.0)) * self.num_negatives / math.log(self.num_classes + 1)
        return tf.cast(tf.math.log(count), tf.float32)
