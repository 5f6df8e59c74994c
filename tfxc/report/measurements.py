"""What a report tells, from one pass over the data."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfxc._keras import unpack_x_y_sample_weight
from tfxc._keras.training import Mean, is_compiled
from tfxc.layers.mach_head import MACHHead
from tfxc.losses import BinaryCrossentropy, SoftmaxCrossentropy
from tfxc.metrics import MRRAtK, NDCGAtK, RecallAtK, relevance
from tfxc.metrics.popularity import self_information
from tfxc.metrics.ranking_metric import unique_positives
from tfxc.model.inputs import as_tensor
from tfxc.samplers.diagnostics import proposal_quality
from tfxc.samplers.sampler import knows_counts

_BATCH = 256  # of arrays, and queries that the sampler is measured on
# Bins of calibration: the odds of their middle are these powers of 2, as most probabilities are small.
ODDS = np.arange(-20, 11)


class Calibration(NamedTuple):
    """Examples in bins by the probability of their best class.

    For a softmax over several labels a hit counts as the label's share, one over the number of labels.
    """

    num: np.ndarray  # int64 [bins], the examples
    predicted: np.ndarray  # float64 [bins], the sum of the probabilities
    observed: np.ndarray  # float64 [bins], the sum of hits

    @property
    def error(self) -> float:
        """The expected calibration error: the mean distance of both means, weighted by examples."""
        return float(np.abs(self.predicted - self.observed).sum() / max(self.num.sum(), 1))


class Measurements(NamedTuple):
    k: int  # how many classes were recommended for each example
    num_examples: int  # those with a label
    metrics: dict[str, float]  # the loss and ranking metrics, by name
    first: np.ndarray  # int64 [L], how often a class ranked first
    recommended: np.ndarray  # int64 [L], how often it was among the k best
    labels: np.ndarray  # int64 [L], how often it was a label
    found: np.ndarray  # int64 [L], how often it was a label among the k best
    calibration: Calibration | None  # None where scores are no probabilities
    proposal: dict[str, float] | None  # means of the sampler's ProposalQuality by name, where it is known

    def figures(self, counts: np.ndarray | None) -> dict[str, float]:
        """The metrics, and those of the recommended classes by training counts [L]; None: by the labels."""
        counts = self.labels if counts is None else counts
        mean = lambda of_class: float(np.average(of_class, weights=self.recommended))  # noqa: E731
        return {
            **self.metrics,
            f"coverage_at_{self.k}": float(np.mean(self.recommended > 0)),
            f"novelty_at_{self.k}": mean(self_information(counts)),
            f"average_popularity_at_{self.k}": mean(counts),
            "average_popularity_of_labels": float(np.average(counts, weights=self.labels)),
            **({} if self.calibration is None else {"calibration_error": self.calibration.error}),
        }


def measure(model, data, k: int) -> Measurements:
    if not (model.built and is_compiled(model)):
        raise ValueError("The model must be built and compiled: train it, or load it with its compilation.")
    if isinstance(data, tuple):
        data = tf.data.Dataset.from_tensor_slices(data).batch(_BATCH)
    if not isinstance(data, Iterable):
        raise ValueError(f"data must be batches (inputs, labels), or one tuple (x, y), but got {data!r}.")
    if isinstance(data, tf.data.Dataset) and int(data.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise ValueError("data have no end: leave .repeat() out, or .take(n) batches.")
    metrics, loss, proposal = [RecallAtK(k), NDCGAtK(k), MRRAtK(k)], Mean(name="loss"), None
    first, recommended, of_labels, found = (np.zeros(model.head.num_classes, np.int64) for _ in range(4))
    bins, num_examples = np.zeros([3, len(ODDS)]), 0
    of_batch = tf.function(_of_batch, reduce_retracing=True, autograph=False)
    for batch in data:
        x, y, _ = unpack_x_y_sample_weight(tf.nest.map_structure(as_tensor, batch))
        if proposal is None:
            model._freshen(x)
            proposal = _proposal(model, x, y)
        losses, labels, ids, hits, probability = of_batch(model, x, y, k)
        for metric in metrics:
            metric.update_state(labels, ids)
        loss.update_state(losses)
        labels, ids, hits = labels.numpy(), ids.numpy(), hits.numpy() > 0
        seen = (first, ids[:, 0]), (recommended, ids), (of_labels, labels), (found, ids[hits])
        for counts, classes in seen:
            np.add.at(counts, classes[classes >= 0], 1)
        num_labels = (labels >= 0).sum(1)
        num_examples += int(np.count_nonzero(num_labels))
        if probability is not None:
            counted = (num_labels > 0) & (ids[:, 0] >= 0)
            share = 1 / num_labels[counted] if model.classification_loss.labels_share_probability else 1
            _add(bins, probability.numpy()[counted], hits[counted, 0] * share)
    if not num_examples:
        raise ValueError("data hold no example with a label: check what selects them.")
    if not recommended.any():
        raise ValueError("The model ranks no class: its queries are NaN, or all classes are excluded.")
    return Measurements(
        k,
        num_examples,
        {"loss": float(loss.result()), **{metric.name: float(metric.result()) for metric in metrics}},
        first,
        recommended,
        of_labels,
        found,
        Calibration(bins[0].astype(np.int64), bins[1], bins[2]) if bins[0].any() else None,
        proposal or None,
    )


def _of_batch(model, x, y, k):
    """Losses [N], labels [N, P], best ids [N, k], which are labels, and the probability [N] of the first."""
    query, labels, _, reserved = model._examples(x, y, None, training=False)
    loss, exclude = model.classification_loss, reserved.get("exclude")
    losses, (scores, ids) = model.head.losses_and_best(query, labels, loss, k, exclude)
    hits = relevance(tf.cast(ids, tf.int64), unique_positives(labels))
    return losses, labels, ids, hits, _probability(model.head, loss, query, scores[:, 0], ids[:, :1])


def _probability(head, loss, query, scores, ids) -> Any:
    """The probability [N] that a model gives its best classes [N, 1], or None where its loss has none."""
    if isinstance(head, MACHHead):  # its scores are decoded from the probabilities of buckets
        return scores
    if loss.labels_share_probability:
        return tf.exp(-head.losses(query, ids, SoftmaxCrossentropy()))
    return tf.sigmoid(scores) if isinstance(loss, BinaryCrossentropy) else None


def _add(bins, probability, observed):
    probability = np.clip(probability.astype(np.float64), 1e-12, 1 - 1e-12)
    odds = np.rint(np.log2(probability / (1 - probability)))
    where = np.clip(odds, ODDS[0], ODDS[-1]).astype(int) - ODDS[0]
    for row, added in zip(bins, (np.ones(len(where)), probability, observed), strict=True):
        np.add.at(row, where, added)


def _proposal(model, x, y):
    """Means over some labelled examples of a batch; an empty dict where there is nothing to measure."""
    if model.sampler is None or not knows_counts(model.sampler):
        return {}
    query, labels, example_ids = model.examples(x, y)
    rows = tf.where(tf.reduce_any(labels >= 0, 1))[:_BATCH, 0]
    if not len(rows):
        return None  # the next batch may have some
    example_ids = None if example_ids is None else tf.gather(example_ids, rows)
    query, labels = tf.gather(query, rows), tf.gather(labels, rows)
    quality = proposal_quality(model.sampler, model.head, query, labels, example_ids)
    return {name: float(tf.reduce_mean(values)) for name, values in quality._asdict().items()}
