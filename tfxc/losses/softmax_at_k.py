"""Softmax cross-entropy that weighs examples by whether their label is, or nearly is, among the k best."""

from typing import Literal

import tensorflow as tf

from tfxc._keras import register
from tfxc.arguments import number_in, positive_int
from tfxc.losses.classification_loss import ClassificationLoss, mean_over_labels
from tfxc.losses.reductions import LOGSUMEXP_OF_CANDIDATES
from tfxc.losses.softmax import SoftmaxCrossentropy
from tfxc.scored import MASKED_LOGIT


@register
class SoftmaxAtK(SoftmaxCrossentropy):
    """The softmax loss at k (SL@K), for recommendations that are judged by their first k.

    Each label's term of the sampled ``SoftmaxCrossentropy`` ("ranking") is weighted by ``σ((o_y − τ) / T)``,
    where τ is the k-th largest logit of the example: a label far below the k best classes counts less. A step
    estimates τ from the classes it scores. A draw whose expected count is e stands for 1 / e classes, a label
    for itself, and τ is the logit at which these come to k, to the nearest class. Where they are fewer, the
    weight is near 1. Unlike in the paper, no gradient flows through the weights.

    τ is right in the mean, but 100 draws among half a million classes put τ far too low, and the loss near
    ``SoftmaxCrossentropy``. There let a search bring the best classes:
    ``Mixture([MIDX(80), SearchedHardNegatives(k, num_uniform=0)])``. The loss does not train without a
    sampler. Over all classes, as in ``evaluate``, it is ``SoftmaxCrossentropy``, so that losses compare.

    Args:
        k: the k of the metric that counts, such as NDCG@k, or somewhat more.
        temperature: T > 0, in logits; a larger one is nearer to ``SoftmaxCrossentropy``.
        reduction, name, dtype: see ``ClassificationLoss``.

    Raises:
        ValueError: for a k below 1, a temperature that is not positive, or an ``ExtremeClassifier`` without a
            sampler; and as ``ClassificationLoss``.

    Example:
        >>> loss = SoftmaxAtK(k=2, temperature=1.0)
        >>> once = tf.zeros([1, 3])  # each of three draws stands for one class
        >>> positives = tfxc.losses.Scored(tf.constant([[1.0]]), tf.zeros([1, 1]))
        >>> negatives = tfxc.losses.Scored(tf.constant([[3.0, 2.0, 0.0]]), once)
        >>> is_label, no_hits = tf.constant([[True]]), tf.fill([1, 3], -1)
        >>> value = loss.sampled(positives, negatives, is_label, no_hits)
        >>> plain = SoftmaxCrossentropy().sampled(positives, negatives, is_label, no_hits)
        >>> round(float(value[0] / plain[0]), 4)  # σ(1 − 2)
        0.2689

    Reference:
        Yang et al., "Breaking the Top-K Barrier: Advancing Top-K Ranking Metrics Optimization in Recommender
        Systems", 2025.
    """

    needs_sampler = True
    over_candidates = None

    def __init__(
        self,
        k: int = 20,
        temperature: float = 4.0,
        reduction: Literal["sum_over_batch_size", "sum", "none"] = "sum_over_batch_size",
        name: str | None = None,
        dtype=None,
    ) -> None:
        super().__init__(reduction=reduction, name=name, dtype=dtype)
        self.k, self.temperature = positive_int(k, "k"), number_in(temperature, "temperature", "(0, inf)")

    def get_config(self):
        return {**ClassificationLoss.get_config(self), "k": self.k, "temperature": self.temperature}

    def sampled(self, positives, negatives, is_label, hits, label_slots=None):
        folded = LOGSUMEXP_OF_CANDIDATES.of(negatives, hits)
        terms = self.terms(positives, folded, is_label, label_slots)
        above = positives.logits - kth_largest(self.k, positives, negatives.without(hits >= 0), is_label)
        weights = tf.stop_gradient(tf.sigmoid(above / self.temperature))
        return mean_over_labels(weights * terms, is_label)


def kth_largest(k, positives, negatives, is_label):
    """The logit [N, 1] down to which, by expected counts, there are k classes; ``MASKED_LOGIT`` if fewer.

    Positives are ``Scored`` [N, P], where ``is_label``; negatives are ``Scored`` [N, S] without the labels.
    """
    drawn = tf.where(negatives.logits > MASKED_LOGIT, tf.exp(-negatives.log_expected_count), 0.0)
    num_classes = tf.concat([tf.cast(is_label, tf.float32), drawn], 1)
    logits = tf.concat([tf.where(is_label, positives.logits, MASKED_LOGIT), negatives.logits], 1)
    ordered, order = tf.math.top_k(logits, tf.shape(logits)[1])
    num_classes = tf.cumsum(tf.gather(num_classes, order, batch_dims=1), axis=1)
    # To the nearest class, since even sums of ones are rounded.
    before = tf.reduce_sum(tf.cast(num_classes < k - 0.5, tf.int32), 1, keepdims=True)
    ordered = tf.pad(ordered, [[0, 0], [0, 1]], constant_values=MASKED_LOGIT)
    return tf.gather(ordered, before, batch_dims=1)
