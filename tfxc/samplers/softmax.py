"""Draws from the softmax itself, by scoring all classes: the measure of faster proposals."""

import tensorflow as tf

from tfxc._keras import register
from tfxc._keras.weights import add_weight, tf_variable
from tfxc.class_vectors import copy_class_vectors
from tfxc.require import finite_rows
from tfxc.samplers.sampler import Sampler
from tfxc.samplers.step import Step


@register
class Softmax(Sampler):
    """Draws from the softmax over the class vectors of the last refresh: ``Q(i|z) = softmax(z · w)_i``.

    It measures the other proposals at small L: a query costs O(L·D), as the full softmax does. It keeps a
    copy of the class vectors. Before its first ``refresh`` Q is exactly uniform.

    Args:
        num_negatives, shared, seed: see ``Sampler``.

    Raises:
        ValueError: if num_negatives is not a positive integer.

    Example:
        >>> head = tfxc.layers.DenseHead(5)
        >>> head.build((None, 8))
        >>> sampler = Softmax(4, seed=1)
        >>> sampler.build((5, 8))
        >>> sampler.refresh(head)
        >>> query = tf.ones([3, 8])
        >>> wanted = tf.math.log_softmax(head.score(query, tf.constant([0, 1, 2, 3, 4])))
        >>> found = sampler.log_prob(query, tf.range(5))
        >>> bool(tf.reduce_all(tf.abs(found - wanted) < 1e-5))
        True

    Reference:
        Bengio, Senécal, "Adaptive Importance Sampling to Accelerate Training of a Neural Probabilistic
        Language Model", 2008 (the softmax as the best proposal).
    """

    def build_index(self):
        shape = (self.num_classes, self.query_dim)
        self.vectors = add_weight(self, "vectors", shape, trainable=False)

    def refresh(self, head) -> None:
        self.check_head(head)
        copy_class_vectors(head, tf_variable(self.vectors))

    def prepare(self, step: Step) -> tf.Tensor:
        """The log softmax over all classes, float32 [N, L]."""
        logits = tf.matmul(step.query, tf_variable(self.vectors), transpose_b=True)
        with tf.control_dependencies(finite_rows(logits, "logits")):
            return tf.nn.log_softmax(logits)

    def draw(self, given, seed):
        # The threads of stateless_categorical share random numbers, so a third of its draws repeat others.
        cumulative = tf.cumsum(tf.exp(tf.cast(given, tf.float64)), axis=1)
        shape = [tf.shape(given)[0], self.num_negatives]
        uniform = tf.random.stateless_uniform(shape, seed, dtype=tf.float64)
        ids = tf.searchsorted(cumulative, uniform * cumulative[:, -1:], side="right")
        ids = tf.minimum(ids, self.num_classes - 1)  # rounding may lift the product to the total
        return ids, self.log_expected_count(given, ids)

    def log_expected_count(self, given, ids):
        return self.log_num_draws + tf.gather(given, ids, batch_dims=1)
