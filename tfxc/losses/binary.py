"""Binary cross-entropy over all classes or over sampled candidates."""

from typing import Literal

import tensorflow as tf

from tfxc._keras import register
from tfxc.arguments import number_in
from tfxc.losses.classification_loss import ClassificationLoss
from tfxc.losses.reductions import SOFTPLUS, sum_of, weighted_sum_of
from tfxc.scored import MASKED_LOGIT


@register
class BinaryCrossentropy(ClassificationLoss):
    """Binary cross-entropy, summed over the classes: the loss for "which of L labels apply".

    Over all classes, ``loss = Σ_j softplus(o_j) − Σ_p o_{y_p}``. Over S sampled candidates with
    expected counts ``e_s`` it is the unbiased estimate
    ``Σ_p softplus(−o_{y_p}) + Σ_s softplus(o_s) / e_s``, whatever the sampler; a draw that hits a
    positive contributes 0. Unlike Keras's it is a sum, not a mean, over classes: at a million classes a
    mean would leave gradients of size 1e-6.

    With ``label_smoothing=ε`` the targets are 1 − ε/2 on labels and ε/2 on all other classes, as in Keras:
    ``loss = Σ_j (softplus(o_j) − ε/2 o_j) − (1 − ε) Σ_p o_{y_p}``, whose first sum candidates estimate. An ε
    of 0.1 asks of every class a probability of 5 %, which suits tens of classes: at a million take about P/L.

    Args:
        label_smoothing: ε in [0, 1).
        reduction, name, dtype: see ``ClassificationLoss``.

    Raises:
        ValueError: for a label_smoothing outside [0, 1); and as ``ClassificationLoss``.

    Example:
        >>> loss = BinaryCrossentropy()
        >>> round(float(loss(tf.constant([[0, 2]]), tf.constant([[0.0, 0.0, 0.0]]))), 4)
        2.0794

    Reference:
        Mehta et al., "ASTRA: Accurate and Scalable ANNS-based Training of Extreme Classifiers", 2024
        (the weighted estimate).
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        reduction: Literal["sum_over_batch_size", "sum", "none"] = "sum_over_batch_size",
        name: str | None = None,
        dtype=None,
    ) -> None:
        super().__init__(reduction=reduction, name=name, dtype=dtype)
        self.label_smoothing = number_in(label_smoothing, "label_smoothing", "[0, 1)")

    def get_config(self):
        return {**super().get_config(), "label_smoothing": self.label_smoothing}

    def _of_negative(self, logits):
        smoothed = tf.where(logits > MASKED_LOGIT, self.label_smoothing / 2 * logits, 0.0)
        return tf.nn.softplus(logits) - smoothed

    @property
    def over_classes(self):
        if not self.label_smoothing:
            return SOFTPLUS
        return sum_of(self._of_negative, lambda logits: tf.sigmoid(logits) - self.label_smoothing / 2)

    @property
    def over_candidates(self):
        return weighted_sum_of(self._of_negative if self.label_smoothing else tf.nn.softplus)

    def combine(self, reduced, positives, is_label):
        own = tf.reduce_sum(tf.where(is_label, positives, 0.0), 1)
        return reduced - (1 - self.label_smoothing) * own

    def with_candidates(self, positives, folded, is_label, label_slots=None):
        losses = SOFTPLUS.of(tf.where(is_label, -positives.logits, MASKED_LOGIT)) + folded[:, 0]
        if self.label_smoothing:
            own = tf.reduce_sum(tf.where(is_label, positives.logits, 0.0), 1)
            losses += self.label_smoothing / 2 * own
        return losses
