"""Binary cross-entropy over all classes or over sampled candidates."""

from typing import Literal

import tensorflow as tf

from tfxc._keras import register
from tfxc.losses.sum_over_classes import SumOverClasses


@register
class BinaryCrossentropy(SumOverClasses):
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

    reduction_over_classes = "softplus"

    def __init__(
        self,
        reduction: Literal["sum_over_batch_size", "sum", "none"] = "sum_over_batch_size",
        name: str = "binary_crossentropy",
        dtype=None,
    ) -> None:
        super().__init__(reduction=reduction, name=name, dtype=dtype)

    def term(self, logits):
        return tf.nn.softplus(logits)

    def logit_gradient(self, reduced, logits):
        return tf.sigmoid(logits)

    def combine(self, reduced, positive_logits, is_label):
        return reduced - tf.reduce_sum(tf.where(is_label, positive_logits, 0.0), 1)
