import numpy as np
import tensorflow as tf
from scipy import special

from tfxc.layers.head import Head
from tfxc.model.step import example_losses

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


def targets_of(logits, labels):
    """1 for the labels of each example, and 0 for all other classes [N, L]."""
    return np.array([np.isin(np.arange(logits.shape[1]), positives_of(row)) for row in labels]).astype(float)


def softmax(logits):
    return special.softmax(np.asarray(logits, np.float64), axis=-1)


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
    targets = targets_of(logits, labels)
    logits = np.asarray(logits, np.float64)
    losses = (targets * softplus(-logits) + (1 - targets) * softplus(logits)).sum(1)
    return losses, 1 / (1 + np.exp(-logits)) - targets


def hinge_reference(logits, labels):
    """As ``softmax_reference``, for the squared hinge summed over the classes."""
    sign = 2 * targets_of(logits, labels) - 1
    margin = np.maximum(0, 1 - sign * np.asarray(logits, np.float64))
    return (margin**2).sum(1), -2 * sign * margin


def value_and_gradient(function, logits):
    logits = tf.constant(logits)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        losses = function(logits)
        total = tf.reduce_sum(losses)
    return losses.numpy(), tape.gradient(total, logits).numpy()


class TableOfLogits:
    """In the place of a head: the logits [N, L] of each query are given."""

    approximate, effective_dim = False, None  # queries of any width

    def __init__(self, logits):
        self.logits, self.num_classes = logits, logits.shape[1]

    def effective_query(self, query):
        return tf.convert_to_tensor(query)

    def score(self, query, ids):
        ids = tf.maximum(ids, 0)
        return tf.gather(self.logits, ids, axis=1, batch_dims=ids.shape.rank - 1)

    def _score_both(self, query, labels, ids):
        return self.score(query, labels), self.score(query, ids)

    candidates, observe = Head.candidates, Head.observe


def sampled_losses(loss, sampler, query, logits, labels):
    """Losses [N] of logits [N, L] by sampled classes, the way a model does it."""
    return example_losses(TableOfLogits(logits), loss, query, tf.convert_to_tensor(labels), sampler)


def no_hits(negatives):
    return tf.fill(tf.shape(negatives.logits), -1)


def sampled_statistics(loss, sampler, query, logits, labels, copies=2000):
    """Loss and gradient [1 + L] of one example over many copies of it: the mean and its standard error."""
    repeat = lambda row: tf.repeat(tf.constant(row)[tf.newaxis], copies, axis=0)  # noqa: E731
    losses, gradients = value_and_gradient(
        lambda logits: sampled_losses(loss, sampler, repeat(query), logits, repeat(labels)), repeat(logits)
    )
    values = np.concatenate([losses[:, np.newaxis], gradients], axis=1).astype(np.float64)
    return values.mean(0), values.std(0) / np.sqrt(copies)


def check_over_classes(loss, reference, labels, scale=2.0, atol=1e-5, rtol=1e-5, of_gradient=None):
    """The loss and its gradient over all classes, for labels of ``CASES``, against those by definition."""
    logits = logits_for(5, 7, scale)
    losses, gradients = value_and_gradient(lambda x: loss.call(np.array(labels), x), logits)
    want, want_gradients = reference(logits, labels)
    np.testing.assert_allclose(losses, want, rtol=rtol, atol=atol)
    np.testing.assert_allclose(gradients, want_gradients, **(of_gradient or {"atol": 1e-5}))
