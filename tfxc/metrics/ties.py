"""Classes with the same score: which of them rank first is chance, and no merit of the model."""

import contextlib
import warnings

import tensorflow as tf


def mostly_tied(scores, ids):
    """Whether most of the best classes of a query, scores and ids [N, k], have one score: bool [N]."""
    apart = tf.maximum(tf.shape(scores)[1] // 2, 1)
    return tf.reduce_any((scores[:, apart:] == scores[:, :-apart]) & (ids[:, apart:] >= 0), axis=1)


@contextlib.contextmanager
def warned_of_ties(share):
    """Warns at the end if more than half of the queries are ``mostly_tied``; ``share`` is their mean."""
    share.reset_state()
    yield
    warn_of_ties(float(share.result()))


def warn_of_ties(share):
    """Warns if the share of queries that are ``mostly_tied`` is more than half."""
    if share > 0.5:
        warnings.warn(
            f"Most of the best classes have one and the same score for {share:.0%} of the queries, and there "
            "the lower id ranks first: ranking metrics tell about the order of the ids, not about the model. "
            "Look whether training has collapsed (lower the learning rate), or not begun.",
            stacklevel=2,
        )


def in_random_order(scores, k, seed):
    """``tf.math.top_k`` where equal scores rank in another order for each row, by a seed, two integers."""
    num_rows, num_classes = tf.unstack(tf.shape(scores))
    # By sorting: XLA, under which a model without a head may run, knows no stateless_shuffle.
    order = tf.argsort(tf.random.stateless_uniform([num_classes], seed, None, None, tf.int32))
    # Each row starts at another place, so that over the rows each class comes at each rank alike.
    starts = tf.range(num_rows) * tf.maximum(num_classes // tf.maximum(num_rows, 1), 1)
    places = (starts[:, tf.newaxis] + tf.range(num_classes)) % tf.maximum(num_classes, 1)
    ids = tf.gather(order, places)
    best, places = tf.math.top_k(tf.gather(scores, ids, batch_dims=1), k)
    return best, tf.gather(ids, places, batch_dims=1)
