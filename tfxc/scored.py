"""Scored classes: what samplers, heads and losses hand each other."""

from typing import NamedTuple

import tensorflow as tf

# Added to a logit to take a class out. Finite, so that a row with nothing left has gradient 0, not NaN.
MASKED_LOGIT = -1e30


class Scored(NamedTuple):
    """Scored classes: their logits, and the log of how often each is expected among the candidates.

    Args:
        logits: float32 [N, P] of positives, or [N, S] of candidates.
        log_count: float32 of the same shape, or [S].

    Example:
        >>> positives = Scored(logits=tf.zeros([1, 1]), log_count=tf.zeros([1, 1]))
        >>> negatives = Scored(logits=tf.zeros([1, 3]), log_count=tf.zeros([3]))
        >>> loss = tfxc.losses.SoftmaxCrossentropy().sampled(positives, negatives, tf.constant([[True]]))
        >>> round(float(loss[0]), 4)
        1.3863
    """

    logits: tf.Tensor
    log_count: tf.Tensor
