"""Softmax cross-entropy over all classes or over sampled candidates."""

from typing import Literal

import tensorflow as tf

from tfxc._keras import register
from tfxc._keras.layers import config_of
from tfxc.arguments import number_in, one_of
from tfxc.losses.classification_loss import ClassificationLoss, mean_over_labels
from tfxc.losses.reductions import (
    LOGSUMEXP,
    LOGSUMEXP_AND_SUM,
    LOGSUMEXP_OF_CANDIDATES,
    SOFTPLUS,
    CandidateReduction,
    log_sum_exp,
)
from tfxc.scored import MASKED_LOGIT, Scored

# How each estimator sums candidates: for "ranking" and "nce" those that hit a label count like all others.
_OVER_CANDIDATES = {
    "ranking": LOGSUMEXP_OF_CANDIDATES,
    "partition": LOGSUMEXP_OF_CANDIDATES._replace(without_hits=True),
    "nce": CandidateReduction(
        lambda candidates: tf.reduce_sum(tf.nn.softplus(candidates.corrected), 1, keepdims=True),
        SOFTPLUS.merge,
    ),
}
_SMALLEST_SHARE = 6e-8  # the resolution of float32 at 1
_LEAST_KNOWN = 2**-18  # a remainder of 1 that float32 knows to a few percent


@register
class SoftmaxCrossentropy(ClassificationLoss):
    """Softmax cross-entropy on class ids: the loss for "which one of L classes".

    Over all classes, with labels ``y_p`` (P of them, usually one) and logits ``o``:
    ``loss = mean_p (log Σ_j exp(o_j) − o_{y_p})``. An example without a label has loss 0.

    Over S sampled candidates, ``e_i`` being the expected count of class i among them:

    * ``"ranking"`` (conditional noise-contrastive estimation; ``tf.nn.sampled_softmax_loss``): every
      logit is corrected, the positive's too, ``o'_i = o_i − log e_i``, and
      ``loss = mean_p (log(exp(o'_{y_p}) + Σ_s exp(o'_s)) − o'_{y_p})``. Robust with few samples. Draws that
      hit a positive, y_p itself or another, count like all: without them the estimate would fit other
      probabilities. A positive that the sampler never draws (count 0) is not corrected.
    * ``"partition"``: only the draws are corrected, and those that hit any positive are left out, so that
      ``Σ_p exp(o_{y_p}) + Σ_s exp(o'_s)`` estimates the full partition function and the loss tends to the
      full one as 1/S. It needs many samples (docs/benchmarks/language.md). With ``InBatch`` it is in effect
      the log-Q correction as corrected by Khrylchenko et al.
    * ``"nce"`` (noise-contrastive estimation; ``tf.nn.nce_loss``): each scored class is data or noise, on
      its own: ``loss = mean_p (softplus(−o'_{y_p}) + Σ_s softplus(o'_s))``, draws that hit a positive too. A
      baseline: it fits ``exp(o)`` to the probabilities, so it needs a model that can normalise itself.

    With ``decoupled=True`` a positive does not compete with the example's other positives, which its term
    leaves out: ``log(Σ_j exp(o_j) − Σ_{q≠p} exp(o_q)) − o_p``, over all classes and over candidates alike.
    Over all classes float32 knows the rest to 6e-8 of the sum. Where positives have all but 4e-6 of it, the
    other classes are not lowered for positives that lag behind, and terms above 17 nats are upper bounds.

    With ``filter_below``, a step over all classes of a ``DenseHead`` leaves out the gradients, and the time
    for them, of the tiles of 96 classes in which every class has, for the example, a probability below the
    threshold. The loss stays exact. A label is raised by as much or, if it lies in such a tile, by less than
    ``filter_below`` more; each class that is left out would have been lowered by less than that. Train
    without it first: once a model has learnt, few tiles remain. Sampled steps, evaluation and the loss called
    on logits do not use it.

    With ``label_smoothing=ε`` the target is ``(1 − ε)`` on the labels and ``ε / L`` on every class, as in
    Keras: the loss becomes ``mean_p (log Σ_j exp(o_j) − (1 − ε) o_{y_p} − ε mean_j o_j)``. Over candidates,
    with ``ō`` the mean of the positives' logits, the same draws estimate what this adds without bias:
    ``ε (ō − mean_j o_j) = −ε/L Σ_j (o_j − ō)`` becomes ``−ε/L Σ_s (o_s − ō) / e_s``.

    Args:
        estimator: "ranking", "partition" or "nce".
        decoupled: whether a positive's term leaves out the example's other positives; not with "nce".
        filter_below: None for exact gradients, or a probability in (0, 1), such as 2**-12: see the guide; not
            with ``decoupled``.
        label_smoothing: ε in [0, 1); above 0 not with "nce", ``decoupled`` or ``filter_below``.
        reduction, name, dtype: see ``ClassificationLoss``.

    Raises:
        ValueError: for arguments outside their range, or that do not go together; and as
            ``ClassificationLoss``.

    Example:
        >>> loss = SoftmaxCrossentropy()
        >>> round(float(loss(tf.constant([2]), tf.constant([[0.0, 0.0, 0.0, 0.0]]))), 4)
        1.3863

    Reference:
        Jean et al., "On Using Very Large Target Vocabulary for Neural Machine Translation", 2015; Ma,
        Collins, "Noise Contrastive Estimation and Negative Sampling for Conditional Models", 2018 (ranking);
        Gutmann, Hyvärinen, "Noise-contrastive estimation", 2010 (nce); Bengio, Senécal, "Adaptive Importance
        Sampling to Accelerate Training of a Neural Probabilistic Language Model", 2008 (partition);
        Khrylchenko et al., "Correcting the LogQ Correction", 2025 (partition in batch); Wijmans et al., "Cut
        Your Losses in Large-Vocabulary Language Models", 2024 (filter).
    """

    labels_share_probability = True

    def __init__(
        self,
        estimator: Literal["ranking", "partition", "nce"] = "ranking",
        decoupled: bool = False,
        filter_below: float | None = None,
        label_smoothing: float = 0.0,
        reduction: Literal["sum_over_batch_size", "sum", "none"] = "sum_over_batch_size",
        name: str | None = None,
        dtype=None,
    ) -> None:
        super().__init__(reduction=reduction, name=name, dtype=dtype)
        self.estimator = one_of(estimator, "estimator", tuple(_OVER_CANDIDATES))
        if filter_below is not None:
            filter_below = number_in(filter_below, "filter_below", "(0, 1)")
        self.decoupled, self.filter_below = bool(decoupled), filter_below
        self.label_smoothing = number_in(label_smoothing, "label_smoothing", "[0, 1)")
        # With decoupled terms, unlikely classes, which a filter leaves out, count where labels are certain.
        options = {'estimator="nce"': estimator == "nce", "decoupled": decoupled}
        options |= {"filter_below": filter_below is not None, "label_smoothing": self.label_smoothing}
        given = [name for name, is_given in options.items() if is_given]
        if len(given) > 1 and given != ['estimator="nce"', "filter_below"]:
            raise ValueError(f"{' and '.join(given)} do not go together: leave out one of them.")

    def get_config(self):
        own = config_of(self, "estimator", "decoupled", "filter_below", "label_smoothing")
        return {**super().get_config(), **own}

    @property
    def over_classes(self):
        return LOGSUMEXP_AND_SUM if self.label_smoothing else LOGSUMEXP

    def combine(self, reduced, positives, is_label):
        if self.label_smoothing:
            reduced, total, num_classes = tf.unstack(reduced, axis=1)
            terms = reduced[:, tf.newaxis] - (1 - self.label_smoothing) * positives
            terms -= (self.label_smoothing * total / num_classes)[:, tf.newaxis]
            return mean_over_labels(terms, is_label)
        terms = reduced[:, tf.newaxis] - positives
        if self.decoupled:
            share = tf.exp(tf.where(is_label, -terms, MASKED_LOGIT))  # the term of padding may be infinite
            rest = 1.0 - (tf.reduce_sum(share, 1, keepdims=True) - share)
            negatives = rest - share
            log_negatives = reduced[:, tf.newaxis] + tf.math.log(tf.maximum(negatives, _SMALLEST_SHARE))
            # By the gradient of a difference that is not known, one positive would push another down.
            known = negatives > _LEAST_KNOWN
            log_negatives = tf.where(known, log_negatives, tf.stop_gradient(log_negatives))
            behind = tf.nn.softplus(log_negatives - positives)
            terms = tf.where(rest < 0.5, behind, terms + tf.math.log(tf.maximum(rest, 0.5)))
        return mean_over_labels(terms, is_label)

    @property
    def over_candidates(self):
        # A decoupled term of "ranking" counts the candidates that are its positive, and smoothing needs their
        # mean: both want them all.
        wants_all = self.decoupled and self.estimator == "ranking" or self.label_smoothing
        return None if wants_all else _OVER_CANDIDATES[self.estimator]

    def sampled(self, positives, negatives, is_label, hits, label_slots=None):
        if self.over_candidates is not None:
            return super().sampled(positives, negatives, is_label, hits, label_slots)
        if self.label_smoothing:
            folded = _OVER_CANDIDATES[self.estimator].of(negatives, hits)
            losses = self.with_candidates(positives, folded, is_label, label_slots)
            return losses + self.label_smoothing * _above_mean(positives, negatives, is_label, label_slots)
        # log((1 + h) exp(o') + exp(a)) − o' without overflow, where h candidates are the positive itself.
        num_hits = _num_hits(hits, tf.shape(is_label)[1])
        if label_slots is not None:
            num_hits += tf.maximum(label_slots - 1.0, 0.0)
        log_own = tf.math.log1p(num_hits)
        log_sum = log_sum_exp(negatives.without(hits >= 0).corrected)
        terms = log_own + tf.nn.softplus(log_sum - _corrected(positives) - log_own)
        return mean_over_labels(terms, is_label)

    def with_candidates(self, positives, folded, is_label, label_slots=None):
        return mean_over_labels(self.terms(positives, folded, is_label, label_slots), is_label)

    def terms(
        self, positives: Scored, folded: tf.Tensor, is_label: tf.Tensor, label_slots: tf.Tensor | None = None
    ) -> tf.Tensor:
        """The term [N, P] of each positive, whose mean is the loss; arguments as of ``with_candidates``."""
        corrected, own = _corrected(positives), positives.logits
        if self.estimator == "nce":
            if label_slots is not None:
                folded += tf.reduce_sum(label_slots * tf.nn.softplus(corrected), axis=1, keepdims=True)
            return tf.nn.softplus(-corrected) + folded
        if self.estimator == "ranking":
            if label_slots is None:
                return tf.nn.softplus(folded - corrected)
            # All positives of an example have one sum: a sum for each would take [N, P, P]. A positive with
            # slots is in that sum already.
            filled = corrected + tf.math.log(tf.maximum(label_slots, 1.0))
            filled = tf.where(label_slots > 0, filled, MASKED_LOGIT)
            log_sum = log_sum_exp(tf.concat([filled, folded], 1))
            return tf.where(label_slots > 0, log_sum - corrected, tf.nn.softplus(log_sum - corrected))
        if self.decoupled:
            return tf.nn.softplus(folded - own)
        log_own = log_sum_exp(tf.where(is_label, own, MASKED_LOGIT))
        return log_sum_exp(tf.concat([log_own, folded], 1)) - own


def _above_mean(positives, negatives, is_label, label_slots):
    """An estimate [N], by all draws, of how far the positives' mean logit is above that of all classes."""
    if negatives.num_classes is None:
        raise ValueError(
            "label_smoothing needs num_classes: give Scored(logits, log_expected_count, num_classes)."
        )
    own = mean_over_labels(positives.logits, is_label)[:, tf.newaxis]
    is_filled = (negatives.logits > MASKED_LOGIT) & tf.reduce_any(is_label, 1, keepdims=True)
    below = tf.where(is_filled, own - negatives.logits, 0.0) * tf.exp(-negatives.log_expected_count)
    total = tf.reduce_sum(below, 1)
    if label_slots is not None:  # of labels that the sampler has passed over
        slots = tf.where(is_label & (label_slots > 0), label_slots, 0.0)
        weights = tf.math.divide_no_nan(slots, tf.exp(positives.log_expected_count))
        total += tf.reduce_sum(weights * (own - positives.logits), 1)
    return total / negatives.num_classes


def _corrected(positives):
    """Corrected logits of positives. One corrected by log 0 would count as settled and never train."""
    counts = positives.log_expected_count
    return positives.logits - tf.where(tf.math.is_inf(counts), 0.0, counts)


def _num_hits(hits, num_labels):
    """How many candidates equal each positive, float32 [N, P]; a one-hot matrix would take [N, S, P]."""
    num_queries = tf.shape(hits)[0]
    own = num_labels * tf.range(num_queries)[:, tf.newaxis] + hits
    own = tf.where(hits >= 0, own, -1)  # a sum by segments leaves out segment -1
    counts = tf.math.unsorted_segment_sum(tf.ones_like(own, tf.float32), own, num_queries * num_labels)
    return tf.reshape(counts, [num_queries, num_labels])
