import numpy as np
import tensorflow as tf
from kernel_checks import reduced_by_hand

from tfxc.losses import LOGSUMEXP, SOFTPLUS, SQUARED_HINGE
from tfxc.ops.sparse_head import sparse_head_reduce
from tfxc.sparsity import random_topology


class Problem:
    def __init__(self, num_queries, num_inputs, num_classes, fan_in, use_bias, group_size=1):
        random = np.random.default_rng(num_queries + num_inputs)
        self.query = random.normal(size=(num_queries, num_inputs)).astype(np.float32)
        weights = random.normal(size=(num_classes, fan_in)).astype(np.float32)
        self.weights = tf.Variable(weights)
        topology = random_topology(-(-num_classes // group_size), fan_in, num_inputs, seed=1)
        self.indices, self.group_size = tf.Variable(topology), group_size
        self.inputs = np.repeat(topology, group_size, 0)[:num_classes]
        self.bias = tf.Variable(random.normal(size=num_classes if use_bias else 0).astype(np.float32))
        self.ids = random.integers(-1, num_classes, size=(num_queries, 4)).astype(np.int32)
        self.dense = np.zeros((num_classes, num_inputs))
        np.put_along_axis(self.dense, self.inputs, weights.astype(np.float64), 1)
        bias = self.bias.numpy() if use_bias else 0.0
        self.logits = self.query @ self.dense.T + bias

    @property
    def given(self):
        """What the ops read, after the query."""
        return self.weights, self.indices, tf.identity(self.bias)

    def chosen(self):
        picked = np.take_along_axis(self.logits, np.maximum(self.ids, 0), 1) if len(self.query) else self.ids
        return np.where(self.ids >= 0, picked, 0.0)

    def gradients(self, of_logits):
        """Gradients of query, weights and bias, from those of all logits [N, L]."""
        of_rows = of_logits.T @ self.query
        of_weights = np.take_along_axis(of_rows, self.inputs, 1)
        return of_logits @ self.dense, of_weights, of_logits.sum(0)[: len(self.bias.numpy())]

    def of_chosen(self, upstream):
        gradient = np.zeros(self.logits.shape)
        for (n, s), i in np.ndenumerate(self.ids):
            if i >= 0:
                gradient[n, i] += upstream[n, s]
        return gradient


def check_gradients(problem, function, of_logits):
    query = tf.constant(problem.query)
    with tf.GradientTape() as tape:
        tape.watch(query)
        total = function(query)
    got = tape.gradient(total, [query, problem.weights, problem.bias])
    for one, want in zip(got, problem.gradients(of_logits), strict=True):
        one = np.zeros(want.shape) if one is None and not want.size else tf.convert_to_tensor(one)
        np.testing.assert_allclose(one, want, rtol=1e-4, atol=2e-4 * max(1.0, np.abs(want).max(initial=0)))
    return got


BY_NAME = {reduction.kernel: reduction for reduction in (SQUARED_HINGE, SOFTPLUS, LOGSUMEXP)}


def check_reduction(problem, reduction, upstream, for_labels):
    """The reduction, the positives' logits and the gradients, for upstream gradients [N] and [N, P]."""
    want, of_logits = reduced_by_hand(problem.logits, reduction)

    def total(query):
        given = query, *problem.given, problem.ids
        reduced, positives = sparse_head_reduce(*given, BY_NAME[reduction], problem.group_size)
        np.testing.assert_allclose(reduced, want, rtol=1e-5)
        np.testing.assert_allclose(positives, problem.chosen(), rtol=1e-4, atol=1e-5)
        return tf.reduce_sum(reduced * upstream) + tf.reduce_sum(positives * for_labels)

    of_logits = of_logits * upstream[:, np.newaxis] + problem.of_chosen(for_labels)
    check_gradients(problem, total, of_logits)
