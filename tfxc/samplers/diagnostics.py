"""How near a proposal is to the softmax: exact figures over all classes, without draws."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfxc.class_vectors import effective_query_of
from tfxc.ids import require_queries
from tfxc.labels import labelled_queries
from tfxc.require import require
from tfxc.samplers.sampler import Sampler
from tfxc.samplers.step import Step

_BLOCK = 1 << 14  # classes scored at once


class ProposalQuality(NamedTuple):
    """The quality of a sampler's proposal Q, for each query.

    Attributes:
        kl: float32 [N], ``KL(softmax || Q)`` in nats, at least 0; 0 where Q is the softmax.
        effective_sample_size: float32 [N], in (0, S]: the number of draws from the softmax itself that would
            estimate as well as the S draws from Q, ``S / Σ_i p_i²/q_i``.
        accidental_hits: float32 [N], in [0, 1]: the share of candidates expected to be positives.

    Example:
        >>> quality = ProposalQuality(tf.zeros([1]), tf.fill([1], 20.0), tf.zeros([1]))
        >>> float(quality.effective_sample_size[0])
        20.0
    """

    kl: tf.Tensor
    effective_sample_size: tf.Tensor
    accidental_hits: tf.Tensor


def proposal_quality(sampler: Sampler, head, query, labels, example_ids=None) -> ProposalQuality:
    """Measures a sampler's proposal against the softmax over all classes, streamed in blocks of classes.

    With ``p`` the softmax of the logits ``o``, ``e_i`` the expected counts and ``Q = e / Σ_j e_j``:
    ``KL = Σ_i p_i (o_i − log e_i) − log Σ_j exp(o_j) + log Σ_j e_j``. The function draws nothing.

    Args:
        sampler: a built ``Sampler`` that knows its expected counts.
        head: the built head whose logits count.
        query: queries float [N, D], as the head takes them.
        labels: positives, integers [N] or [N, P], padded with -1, ragged or sparse.
        example_ids: integers [N], for a sampler that reads them.

    Raises:
        ValueError: if the sampler does not know its expected counts (``DNS``), or if queries or labels have
            another form.
        tf.errors.InvalidArgumentError: for a query without any candidate, as with ``InBatch`` if no other
            query has a label.

    Example:
        >>> head = tfxc.layers.DenseHead(1000)
        >>> head.build((None, 8))
        >>> sampler = tfxc.samplers.Uniform(20)
        >>> sampler.build((1000, 8))
        >>> query, labels = tf.zeros([2, 8]), tf.constant([[3], [7]])
        >>> quality = proposal_quality(sampler, head, query, labels)
        >>> [round(float(values[0]), 3) for values in quality]  # all logits are 0: Q is the softmax
        [0.0, 20.0, 0.001]

    Reference:
        Kong, "A Note on Importance Sampling using Standardized Weights", 1992 (effective sample size).
    """
    question, labels = _ask(sampler, head, query, labels, example_ids)

    def fold(carry, logits, start):
        log_total, mean_ratio, log_square, log_expected_count = carry
        ids = start + tf.range(tf.shape(logits)[1])
        log_expected_counts = question.log_expected_count(ids)
        log_expected_counts = tf.broadcast_to(log_expected_counts, tf.shape(logits))
        new_total = _log_add(log_total, logits)
        share = tf.exp(logits - new_total[:, tf.newaxis])
        # A class of weight 0 adds nothing, even if it can never be drawn.
        ratio = tf.math.multiply_no_nan(logits - log_expected_counts, share)
        mean_ratio = mean_ratio * tf.exp(log_total - new_total) + tf.reduce_sum(ratio, 1)
        log_square = _log_add(log_square, 2 * logits - log_expected_counts)
        return new_total, mean_ratio, log_square, _log_add(log_expected_count, log_expected_counts)

    nothing = tf.fill([tf.shape(query)[0]], -np.inf)
    initial = nothing, tf.zeros_like(nothing), nothing, nothing
    log_total, mean_ratio, log_square, log_expected_count = head.scan(query, fold, initial)
    with tf.control_dependencies(_has_candidates(sampler, log_expected_count)):
        hits = _expected_hits(question, labels, log_expected_count)
    return ProposalQuality(
        kl=tf.maximum(mean_ratio - log_total + log_expected_count, 0.0),
        effective_sample_size=tf.exp(2 * log_total - log_square),
        accidental_hits=hits,
    )


def _ask(sampler, head, query, labels, example_ids):
    """The sampler's ``Question``, and the labels int32 [N, P]."""
    given = tf.convert_to_tensor(query)
    require_queries(given)
    labels = labelled_queries(given, labels, head.num_classes)[1]
    step = Step(effective_query_of(head, query), labels, example_ids, lambda ids: head.score(query, ids))
    return sampler.ask(step._replace(approximate=head.approximate)), labels


def _has_candidates(sampler, log_expected_count):
    """``require``: the log counts [N], of all classes or of the likeliest one, are not those of none."""
    without = tf.where(tf.equal(log_expected_count, -np.inf))[:1, 0]
    message = (
        f"{type(sampler).__name__} has no candidates for a query, so there is nothing to measure: give more "
        "examples with labels. The query without candidates is in row"
    )
    return require(tf.equal(tf.size(without), 0), message, without)


def _expected_hits(question, labels, log_expected_count):
    """The share [N] of candidates that are positives, from the log of all expected counts together [N]."""
    counts = tf.where(labels >= 0, tf.exp(question.log_expected_count(labels)), 0.0)
    slots = question.label_slots(labels)
    passed = tf.zeros_like(counts) if slots is None else slots  # labels never fill these slots
    of_labels = tf.reduce_sum(tf.maximum(counts - passed, 0.0), 1)
    return tf.math.divide_no_nan(of_labels, tf.exp(log_expected_count) - tf.reduce_sum(passed, 1))


def cumulative_probability(sampler: Sampler | None, head, query, labels, example_ids=None) -> np.ndarray:
    """The probability that a proposal gives to the r classes that score highest, for every rank r.

    Args:
        sampler: a built ``Sampler``, or None for the softmax itself.
        head: the built head whose logits give the ranks.
        query: queries float [N, D]. They take memory for two arrays [N, L] of logits.
        labels, example_ids: as of ``proposal_quality``.

    Returns:
        float64 [L], the mean over the queries. The last entry is 1.

    Raises:
        ValueError, tf.errors.InvalidArgumentError: as ``proposal_quality``.

    Example:
        >>> head = tfxc.layers.DenseHead(4)
        >>> head.build((None, 8))
        >>> sampler = tfxc.samplers.Uniform(20)
        >>> sampler.build((4, 8))
        >>> cumulative_probability(sampler, head, tf.ones([2, 8]), tf.constant([[3], [1]])).tolist()
        [0.25, 0.5, 0.75, 1.0]

    Reference:
        Chen et al., "Adaptive Sampled Softmax with Inverted Multi-Index: Methods, Theory and
        Applications", 2025.
    """
    question = None
    if sampler is not None:
        question, _ = _ask(sampler, head, query, labels, example_ids)
    size = len(query), head.num_classes
    logits, log_expected_counts = (np.empty(size, np.float32) for _ in range(2))
    logits_of = head.blocks(query)
    for start in range(0, head.num_classes, _BLOCK):
        block = slice(start, min(start + _BLOCK, head.num_classes))
        logits[:, block] = logits_of(block.start, block.stop)
        ids = tf.range(block.start, block.stop)
        own = logits[:, block] if question is None else question.log_expected_count(ids)
        log_expected_counts[:, block] = own
    largest = log_expected_counts.max(1)
    _has_candidates(sampler, largest)
    mean = np.zeros(head.num_classes)
    for own, log_weights, shift in zip(logits, log_expected_counts, largest, strict=True):
        weights = np.exp(log_weights.astype(np.float64) - shift)
        best_first = np.argsort(-own, kind="stable")
        mean += np.cumsum(weights[best_first]) / weights.sum() / len(query)
    return mean


def _log_add(log_sums, values):
    """``log(exp(log_sums) + Σ exp(values))`` [N], for values [N, b]."""
    return tf.reduce_logsumexp(tf.concat([log_sums[:, tf.newaxis], values], 1), 1)
