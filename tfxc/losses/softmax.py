"""Softmax cross-entropy over all classes or over sampled candidates."""

import tensorflow as tf

from tfxc._keras import register
from tfxc.losses.classification_loss import ClassificationLoss, mean_over_labels
from tfxc.scored import MASKED_LOGIT

_ESTIMATORS = ("ranking", "partition", "nce")


@register
class SoftmaxCrossentropy(ClassificationLoss):
    """Softmax cross-entropy on class ids: the loss for "which one of L classes".

    Over all classes, with labels ``y_p`` (P of them, usually one) and logits ``o``:
    ``loss = mean_p (log Σ_j exp(o_j) − o_{y_p})``. An example without a label has loss 0.

    Over S sampled candidates, ``e_i`` being the expected count of class i among them:

    * ``"ranking"`` (conditional noise-contrastive estimation; ``tf.nn.sampled_softmax_loss``): every
      logit is corrected, the positive's too, ``o'_i = o_i − log e_i``, and
      ``loss = mean_p (log(exp(o'_{y_p}) + Σ_s exp(o'_s)) − o'_{y_p})``. Robust with few samples. Draws that
      hit y_p itself count: without them the estimate would push likely positives too far, the more the
      better the sampler; those that hit another positive are left out. A positive that the sampler never
      draws (count 0) is taken as certain, uncorrected.
    * ``"partition"``: only the draws are corrected, and those that hit any positive left out, so that
      ``Σ_p exp(o_{y_p}) + Σ_s exp(o'_s)`` estimates the full partition function and the loss tends to the
      full one as 1/S. Choose it for calibrated scores, with many samples; with a few dozen it trains badly.
    * ``"nce"`` (noise-contrastive estimation; ``tf.nn.nce_loss``): each scored class on its own, data or
      noise? ``loss = mean_p (softplus(−o'_{y_p}) + Σ_s softplus(o'_s))``. A baseline: it fits ``exp(o)`` to
      the probabilities themselves, so it needs a model that can normalise itself. Draws that hit y_p count
      as noise; those that hit another positive are left out.

    Args:
        estimator: "ranking", "partition" or "nce".
        reduction: "sum_over_batch_size" (default), "sum" or "none".
        name: name of the loss.

    Call arguments:
        y_true: integer ids [N], or [N, P] padded with -1.
        y_pred: logits [N, L].

    Raises:
        ValueError: for an unknown estimator, or labels that are not integers.
        tf.errors.InvalidArgumentError: for an id outside [0, L).

    Example:
        >>> loss = SoftmaxCrossentropy()
        >>> round(float(loss(tf.constant([2]), tf.constant([[0.0, 0.0, 0.0, 0.0]]))), 4)
        1.3863

    Reference:
        Jean, Cho, Memisevic, Bengio, "On Using Very Large Target Vocabulary for Neural Machine
        Translation", 2015; Ma, Collins, "Noise Contrastive Estimation and Negative Sampling for
        Conditional Models", 2018 (ranking); Gutmann, Hyvärinen, "Noise-contrastive estimation: A new
        estimation principle for unnormalized statistical models", 2010 (nce); Bengio, Senécal, "Adaptive
        Importance Sampling to Accelerate Training of a Neural Probabilistic Language Model", 2008
        (partition).
    """

    reduction_over_classes = "logsumexp"
    labels_share_probability = True

    def __init__(self, estimator="ranking", reduction="sum_over_batch_size", name="softmax_crossentropy"):
        super().__init__(reduction=reduction, name=name)
        if estimator not in _ESTIMATORS:
            raise ValueError(f"estimator must be one of {_ESTIMATORS}, but got {estimator!r}.")
        self.estimator = estimator

    def get_config(self):
        return {"estimator": self.estimator, "reduction": self.reduction, "name": self.name}

    def initial(self, num_queries):
        return tf.fill([num_queries], MASKED_LOGIT), tf.zeros([num_queries])

    def update(self, state, logits):
        largest, total = state
        new = tf.stop_gradient(tf.maximum(largest, tf.reduce_max(logits, 1)))
        return new, total * tf.exp(largest - new) + tf.reduce_sum(tf.exp(logits - new[:, tf.newaxis]), 1)

    def finish(self, state):
        largest, total = state
        return largest + tf.math.log(total)

    def logit_gradient(self, reduced, logits):
        return tf.exp(logits - reduced[:, tf.newaxis])

    def combine(self, reduced, positive_logits, is_label):
        return mean_over_labels(reduced[:, tf.newaxis] - positive_logits, is_label)

    def sampled(self, positives, negatives, is_label, num_hits=None):
        """Per-example loss [N] from scored positives and candidates.

        Args:
            positives: ``Scored`` logits and log expected counts [N, P].
            negatives: ``Scored`` logits [N, S] and log expected counts [N, S] or [S]; candidates that
                hit a positive, and empty slots, have logit ``MASKED_LOGIT``.
            is_label: bool [N, P], False on padding.
            num_hits: None, or [N, P] how many candidates hit each positive, of a sampler whose draws do not
                come from the labels.
        """
        drawn = negatives.logits - negatives.log_count
        # Corrected by log 0, a positive would count as settled and never train.
        own_count = tf.where(tf.math.is_inf(positives.log_count), 0.0, positives.log_count)
        corrected = positives.logits - own_count
        num_hits = tf.zeros_like(corrected) if num_hits is None else tf.cast(num_hits, corrected.dtype)
        if self.estimator == "nce":
            own = tf.nn.softplus(-corrected) + num_hits * tf.nn.softplus(corrected)
            terms = own + tf.reduce_sum(tf.nn.softplus(drawn), axis=1, keepdims=True)
        elif self.estimator == "ranking":
            # log((1 + h) exp(o') + exp(a)) − o' without overflow, h candidates being the positive itself.
            log_own = tf.math.log1p(num_hits)
            log_sum = tf.reduce_logsumexp(drawn, axis=1, keepdims=True)
            terms = log_own + tf.nn.softplus(log_sum - corrected - log_own)
        else:
            own = tf.where(is_label, positives.logits, MASKED_LOGIT)
            log_partition = tf.reduce_logsumexp(tf.concat([own, drawn], 1), axis=1, keepdims=True)
            terms = log_partition - positives.logits
        return mean_over_labels(tf.where(is_label, terms, 0.0), is_label)
