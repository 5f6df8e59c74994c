"""Binary cross-entropy that undoes the overconfidence of training on a few negatives."""

from typing import Literal

import tensorflow as tf

from tfxc._keras import register
from tfxc.arguments import number_in
from tfxc.losses.binary import BinaryCrossentropy
from tfxc.losses.classification_loss import ClassificationLoss


@register
class GBCE(BinaryCrossentropy):
    """Generalised binary cross-entropy: few negatives, calibrated by a power of the positive's probability.

    Over candidates not corrected for how they were drawn, a plain binary cross-entropy learns probabilities
    near 1 for every class that is ever a label. This loss raises the label's probability to the power
    ``β = α (t (1 − 1/α) + 1/α)``, where α is the expected count of the class among the S candidates of an
    example: ``loss = (β Σ_p softplus(−o_{y_p}) + Σ_s softplus(o_s)) / (P + S)``. A draw that hits a positive
    contributes 0. For ``Uniform`` draws ``α = S / L``; the paper, whose draws leave the label out, has
    ``S / (L − 1)``. Over all classes (``evaluate``, or no sampler) this is ``BinaryCrossentropy``, a sum.

    Give the head a bias that starts where no class applies, ``bias_initializer=Constant(-log(L))``.

    Args:
        calibration: t in [0, 1]: 0 the plain binary cross-entropy, 1 calibrated probabilities.
        reduction, name, dtype: see ``ClassificationLoss``.

    Raises:
        ValueError: for a calibration outside [0, 1]; and as ``ClassificationLoss``.

    Example:
        >>> loss = GBCE(calibration=0.75)
        >>> uniform = tf.math.log(2 / 4)  # two draws among four classes: α = 0.5, β = 0.625
        >>> positives = tfxc.losses.Scored(tf.zeros([1, 1]), tf.fill([1, 1], uniform))
        >>> negatives = tfxc.losses.Scored(tf.zeros([1, 2]), tf.fill([1, 2], uniform))
        >>> value = loss.sampled(positives, negatives, tf.constant([[True]]), hits=tf.constant([[-1, -1]]))
        >>> round(float(value[0] / tf.math.log(2.0)), 4)  # (0.625 + 1 + 1) / 3
        0.875

    Reference:
        Petrov, Macdonald, "gSASRec: Reducing Overconfidence in Sequential Recommendation Trained with
        Negative Sampling", 2023.
    """

    over_candidates = None

    def __init__(
        self,
        calibration: float = 0.75,
        reduction: Literal["sum_over_batch_size", "sum", "none"] = "sum_over_batch_size",
        name: str | None = None,
        dtype=None,
    ) -> None:
        super().__init__(reduction=reduction, name=name, dtype=dtype)
        self.calibration = number_in(calibration, "calibration", "[0, 1]")

    def get_config(self):
        return {**ClassificationLoss.get_config(self), "calibration": self.calibration}

    def sampled(self, positives, negatives, is_label, hits, label_slots=None):
        negatives = negatives.without(hits >= 0)
        beta = self.calibration * tf.exp(positives.log_expected_count) + 1 - self.calibration
        own = tf.where(is_label, beta * tf.nn.softplus(-positives.logits), 0.0)
        total = tf.reduce_sum(own, 1) + tf.reduce_sum(tf.nn.softplus(negatives.logits), 1)
        num_labels = tf.reduce_sum(tf.cast(is_label, tf.int32), 1)
        return tf.math.divide_no_nan(total, tf.cast(num_labels + tf.shape(negatives.logits)[1], tf.float32))
