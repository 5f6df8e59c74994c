"""A sample of recent queries, and the frequencies of classes that follow from it.

It costs a product of each of its queries with each class. The frequencies by ``tfxc.samplers.moments`` take
queries for normal, which those of a sparse head behind a ReLU layer are not.
"""

import numpy as np
import tensorflow as tf

from tfxc._keras import keras
from tfxc._keras.weights import add_weight, tf_variable

_SIZE = 256
_A_STEP = 8
_MOST_SCORES = 1 << 28  # of a query and a class
_LEAST = 64  # queries, however many classes there are


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
