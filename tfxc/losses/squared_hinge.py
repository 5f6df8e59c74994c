"""Squared hinge loss over all classes or over sampled candidates."""

import tensorflow as tf

from tfxc._keras import register
from tfxc.losses.classification_loss import ClassificationLoss
from tfxc.losses.reductions import SQUARED_HINGE, squared_hinge, weighted_sum_of
from tfxc.scored import MASKED_LOGIT


@register
class SquaredHinge(ClassificationLoss):
    """Squared hinge, summed over the classes: for "which of L labels apply", where most classes are easy.

    Over all classes, ``loss = Σ_j max(0, 1 − y_j o_j)²`` with ``y_j = 1`` for the labels and −1 for all
    others. A class on the right side of its margin has gradient exactly 0, and ``UniformSparseHead`` skips
    its work: negatives are mined without a sampler. Over S sampled candidates with expected counts ``e_s``
    it is the unbiased estimate ``Σ_p max(0, 1 − o_{y_p})² + Σ_s max(0, 1 + o_s)² / e_s``; a draw that hits a
    positive contributes 0.

    Args:
        reduction, name, dtype: see ``ClassificationLoss``.

    Raises:
        ValueError, tf.errors.InvalidArgumentError: as ``ClassificationLoss``.

    Example:
        >>> loss = SquaredHinge()
        >>> float(loss(tf.constant([[0, 2]]), tf.constant([[0.5, -3.0, 2.0, 0.0]])))
        1.25

    Reference:
        Babbar, Schölkopf, "DiSMEC: Distributed Sparse Machines for Extreme Multi-label Classification", 2017;
        Schultheis, Babbar, "Towards Memory-Efficient Training for Extremely Large Output Spaces", 2023.
    """

    over_classes = SQUARED_HINGE
    over_candidates = weighted_sum_of(squared_hinge)

    def combine(self, reduced, positives, is_label):
        # The reduction counts each label as a negative. What follows is the difference of the two squares,
        # without the rounding of large ones.
        above = tf.where(positives > 1.0, -tf.square(1.0 + positives), -4.0 * positives)
        own = tf.where(positives < -1.0, tf.square(1.0 - positives), above)
        return reduced + tf.reduce_sum(tf.where(is_label, own, 0.0), 1)

    def with_candidates(self, positives, folded, is_label, label_slots=None):
        return SQUARED_HINGE.of(tf.where(is_label, -positives.logits, MASKED_LOGIT)) + folded[:, 0]
