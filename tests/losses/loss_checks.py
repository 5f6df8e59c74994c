"""What the tests of all losses share: float64 references, and losses sampled from a table of logits."""

import numpy as np
import tensorflow as tf
from sampler_checks import log_count, sample

from tfxc.ids import count_hits, is_positive
from tfxc.scored import MASKED_LOGIT, Scored

CASES = {  # labels by name, for 5 examples of 7 classes
    "one": [[0], [6], [3], [3], [1]],
    "padded": [[0, 2, -1], [-1, -1, -1], [6, 5, 4], [-1, 1, -1], [3, -1, 2]],
    "duplicates": [[0, 0], [2, 5], [6, 6], [-1, -1], [4, 4]],
}


def logits_for(num_queries, num_classes, scale=2.0, seed=0):
    random = np.random.default_rng(seed)
    return (scale * random.normal(size=(num_queries, num_classes))).astype(np.float32)


def positives_of(row):
    return sorted({label for label in np.atleast_1d(row) if label >= 0})


def softmax(logits):
    logits = np.asarray(logits, np.float64)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def softplus(x):
    return np.logaddexp(0, np.asarray(x, np.float64))


def softmax_reference(logits, labels):
    """Losses [N] and their gradients [N, L] in float64, example by example."""
    losses, gradients = np.zeros(len(logits)), np.zeros(logits.shape)
    for n, row in enumerate(labels):
        probs, positives = softmax(logits[n]), positives_of(row)
        for label in positives:
            losses[n] -= np.log(probs[label]) / len(positives)
            gradients[n] += (probs - np.eye(len(probs))[label]) / len(positives)
    return losses, gradients


def binary_reference(logits, labels):
    """As ``softmax_reference``, for the binary cross-entropy summed over the classes."""
    targets = np.zeros(logits.shape)
    for n, row in enumerate(labels):
        targets[n, positives_of(row)] = 1
    logits = np.asarray(logits, np.float64)
    losses = (targets * softplus(-logits) + (1 - targets) * softplus(logits)).sum(1)
    return losses, 1 / (1 + np.exp(-logits)) - targets


def hinge_reference(logits, labels):
    """As ``softmax_reference``, for the squared hinge summed over the classes."""
    sign = -np.ones(logits.shape)
    for n, row in enumerate(labels):
        sign[n, positives_of(row)] = 1
    margin = np.maximum(0, 1 - sign * np.asarray(logits, np.float64))
    return (margin**2).sum(1), -2 * sign * margin


def value_and_gradient(function, logits):
    logits = tf.constant(logits)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        losses = function(logits)
        total = tf.reduce_sum(losses)
    return losses.numpy(), tape.gradient(total, logits).numpy()


def sampled_losses(loss, sampler, query, logits, labels):
    """Losses [N] of logits [N, L] by sampled classes, the way a model does it."""
    ids, counted = sample(sampler, query, labels)
    if ids.shape.rank == 1:
        drawn = tf.gather(logits, tf.maximum(ids, 0), axis=1)
    else:
        drawn = tf.gather(logits, tf.maximum(ids, 0), batch_dims=1)
    drawn = tf.where(is_positive(ids, labels) | (ids < 0), MASKED_LOGIT, drawn)
    own = tf.gather(logits, tf.maximum(labels, 0), batch_dims=1)
    own_count = log_count(sampler, query, labels, labels)
    num_hits = None if sampler.draws_labels else count_hits(ids, labels)
    return loss.sampled(Scored(own, own_count), Scored(drawn, counted), labels >= 0, num_hits)


def sampled_statistics(loss, sampler, query, logits, labels, copies=2000):
    """Loss and gradient [1 + L] of one example over many copies of it: the mean and its standard error."""
    repeat = lambda row: tf.repeat(tf.constant(row)[tf.newaxis], copies, axis=0)  # noqa: E731
    losses, gradients = value_and_gradient(
        lambda logits: sampled_losses(loss, sampler, repeat(query), logits, repeat(labels)), repeat(logits)
    )
    values = np.concatenate([losses[:, np.newaxis], gradients], axis=1).astype(np.float64)
    return values.mean(0), values.std(0) / np.sqrt(copies)
