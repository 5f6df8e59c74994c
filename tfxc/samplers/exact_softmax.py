"""Draws from the softmax itself, by scoring all classes: what fast proposals are measured against."""

import tensorflow as tf


def exact_draw(query, vectors, num_samples, seed):
    """Draws S classes a query, with replacement, from ``softmax(z · w)`` over all classes.

    Args:
        query: float32 [N, D].
        vectors: class vectors float32 [L, D].
        num_samples: S.
        seed: [2] integers; the same seed gives the same draws.

    Returns:
        Class ids int32 [N, S], and the log-probability of each float32 [N, S].

    Raises:
        tf.errors.InvalidArgumentError: for a logit that is NaN or infinite.
    """
    log_probs = exact_log_probs(query, vectors)
    # Not tf.random.stateless_categorical, whose threads share random numbers: a third of the draws repeat.
    cumulative = tf.cumsum(tf.exp(tf.cast(log_probs, tf.float64)), axis=1)
    uniform = tf.random.stateless_uniform([tf.shape(query)[0], num_samples], seed, dtype=tf.float64)
    ids = tf.searchsorted(cumulative, uniform * cumulative[:, -1:], side="right")
    ids = tf.minimum(ids, tf.shape(vectors)[0] - 1)  # rounding may lift the product to the total
    return ids, tf.gather(log_probs, ids, batch_dims=1)


def exact_log_probs(query, vectors):
    """Log of the softmax over all classes, float32 [N, L]; arguments and errors as of ``exact_draw``."""
    logits = tf.matmul(query, vectors, transpose_b=True)
    finite = tf.reduce_all(tf.math.is_finite(logits), axis=1)
    message = "Logits must be finite, but there is NaN or infinity among those of query"
    check = tf.debugging.Assert(tf.reduce_all(finite), [message, tf.where(~finite)[:1, 0]])
    with tf.control_dependencies([check] if check is not None else []):
        return tf.nn.log_softmax(logits)
