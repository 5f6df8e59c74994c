"""Binary cross-entropy over all classes or over sampled candidates."""

import tensorflow as tf

from tfxc._keras import register
from tfxc.losses.classification_loss import ClassificationLoss
from tfxc.losses.reductions import SOFTPLUS, CandidateReduction, weighted_sum_of
from tfxc.scored import MASKED_LOGIT


@register
class BinaryCrossentropy(ClassificationLoss):
    """Binary cross-entropy, summed over the classes: the loss for "which of L labels apply".

    Over all classes, ``loss = Σ_j softplus(o_j) − Σ_p o_{y_p}``. Over S sampled candidates with
    expected counts ``e_s`` it is the unbiased estimate
    ``Σ_p softplus(−o_{y_p}) + Σ_s softplus(o_s) / e_s``, whatever the sampler; a draw that hits a
    positive contributes 0. Unlike Keras's it is a sum, not a mean, over classes: at a million classes a
    mean would leave gradients of size 1e-6.

    Args:
        reduction: "sum_over_batch_size" (default), "sum" or "none", over examples.
        name: name of the loss.
        dtype: of the result; by default float32.

    Call arguments:
        y_true: integer ids [N], or [N, P] padded with -1.
        y_pred: logits [N, L].

    Raises:
        ValueError: if labels are not integers.
        tf.errors.InvalidArgumentError: for an id outside [0, L).

    Example:
        >>> loss = BinaryCrossentropy()
        >>> round(float(loss(tf.constant([[0, 2]]), tf.constant([[0.0, 0.0, 0.0]]))), 4)
        2.0794

    Reference:
        Mehta et al., "ASTRA: Accurate and Scalable ANNS-based Training of Extreme Classifiers", 2024
        (the weighted estimate).
    """

    over_classes = SOFTPLUS
    over_candidates: CandidateReduction | None = weighted_sum_of(tf.nn.softplus)

    def combine(self, reduced, positives, is_label):
        return reduced - tf.reduce_sum(tf.where(is_label, positives, 0.0), 1)

    def with_candidates(self, positives, folded, is_label, label_slots=None):
        return SOFTPLUS.of(tf.where(is_label, -positives.logits, MASKED_LOGIT)) + folded[:, 0]
