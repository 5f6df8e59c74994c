"""Squared hinge loss over all classes or over sampled candidates."""

from typing import Literal

import tensorflow as tf

from tfxc._keras import register
from tfxc.losses.sum_over_classes import SumOverClasses


@register
class SquaredHinge(SumOverClasses):
    """Squared hinge, summed over the classes: for "which of L labels apply", where most classes are easy.

    Over all classes, ``loss = Σ_j max(0, 1 − y_j o_j)²`` with ``y_j = 1`` for the labels and −1 for all
    others. A class on the right side of its margin has gradient exactly 0, and ``UniformSparseHead`` skips
    its work: negatives are mined without a sampler. Over S sampled candidates with expected counts ``e_s``
    it is the unbiased estimate ``Σ_p max(0, 1 − o_{y_p})² + Σ_s max(0, 1 + o_s)² / e_s``; a draw that hits a
    positive contributes 0.

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
        >>> loss = SquaredHinge()
        >>> float(loss(tf.constant([[0, 2]]), tf.constant([[0.5, -3.0, 2.0, 0.0]])))
        1.25

    Reference:
        Babbar, Schölkopf, "DiSMEC: Distributed Sparse Machines for Extreme Multi-label Classification", 2017;
        Schultheis, Babbar, "Towards Memory-Efficient Training for Extremely Large Output Spaces -- Learning
        with 670k Labels on a Single Commodity GPU", 2023 (gradients that are exactly 0).
    """

    reduction_over_classes = "squared_hinge"

    def __init__(
        self,
        reduction: Literal["sum_over_batch_size", "sum", "none"] = "sum_over_batch_size",
        name: str = "squared_hinge",
        dtype=None,
    ) -> None:
        super().__init__(reduction=reduction, name=name, dtype=dtype)

    def term(self, logits):
        return tf.square(tf.nn.relu(1.0 + logits))

    def logit_gradient(self, reduced, logits):
        return 2.0 * tf.nn.relu(1.0 + logits)

    def combine(self, reduced, positive_logits, is_label):
        # The reduction took every class for a negative; of the difference of squares this is the exact form.
        own = tf.where(
            positive_logits < -1.0,
            tf.square(1.0 - positive_logits),
            tf.where(positive_logits > 1.0, -tf.square(1.0 + positive_logits), -4.0 * positive_logits),
        )
        return reduced + tf.reduce_sum(tf.where(is_label, own, 0.0), 1)
