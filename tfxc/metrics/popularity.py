"""How popular the classes are that a model recommends, and groups of classes by popularity."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfxc._keras import register
from tfxc.ids import check_ids
from tfxc.metrics.groups import ClassGroups, decoded, encoded, numbers_of_classes
from tfxc.metrics.ranking_metric import RankingMetric

_DTYPE = "<f4"
_IN = "counts", "[0, inf)", "np.bincount(labels_of_training, minlength=num_classes)"


def popularity_deciles(counts) -> ClassGroups:
    """Ten groups of as many classes each, by popularity: ``decile_01`` holds the most frequent tenth.

    Classes with the same count are in one group, so that some groups may be larger, and others empty.

    Args:
        counts: [L], how often each class was a label in training.

    Raises:
        ValueError: for counts that are not [L], not finite or below 0.

    Example:
        >>> popularity_deciles([70, 10, 40, 10, 10]).ids.tolist()
        [0, 4, 2, 4, 4]
    """
    counts = numbers_of_classes(counts, *_IN)
    num_more_frequent = np.searchsorted(np.sort(-counts), -counts)
    names = tuple(f"decile_{number:02}" for number in range(1, 11))
    return ClassGroups((num_more_frequent * 10 // len(counts)).astype(np.int32), names)


def self_information(counts) -> np.ndarray:
    """``-log2 p`` of each class in bits, float64 [L]: p is its count, at least 1, divided by all counts."""
    counts = np.asarray(counts, np.float64)
    return np.log2(np.maximum(counts.sum(), 1)) - np.log2(np.maximum(counts, 1))


class _MeanOfRanked(RankingMetric):
    """The mean of a number of each class, ``of_class(counts)`` [L], over the k best classes of an example."""

    of_class: Callable

    def __init__(self, k: int = 10, counts=None, name: str | None = None, dtype=None) -> None:
        super().__init__(k, name=name, dtype=dtype)
        counts = decoded(counts, _DTYPE, "count") if isinstance(counts, str) else counts
        self.counts = numbers_of_classes(counts, *_IN).astype(_DTYPE)
        self.num_classes = len(self.counts)
        # One tensor, as every trace would hold its own copies of a NumPy array.
        self._values = tf.constant(self.of_class(self.counts), tf.float32)

    def get_config(self):
        config = super().get_config()
        del config["average"]  # labels make no difference
        return {**config, "counts": encoded(self.counts)}

    def config_for(self, old_ids: np.ndarray) -> dict[str, Any]:
        """Returns the config for other classes, see ``Head.config_for``; a new one was never a label."""
        counts = np.where(old_ids >= 0, self.counts[old_ids], 0).astype(_DTYPE)
        return {**super().config_for(old_ids), "counts": encoded(counts)}

    def example_weights(self, labels):
        return tf.ones(tf.shape(labels)[:1])

    def per_example(self, labels, ids):
        ids = check_ids(ids, self.num_classes, "ranked class")
        is_ranked = tf.cast(ids >= 0, tf.float32)
        total = tf.reduce_sum(tf.gather(self._values, tf.maximum(ids, 0)) * is_ranked, 1)
        return tf.math.divide_no_nan(total, tf.reduce_sum(is_ranked, 1))


@register
class NoveltyAtK(_MeanOfRanked):
    """How surprising the k best classes are, in bits: the mean of their ``-log2 p``.

    ``p`` is a class's count, at least 1, divided by the sum of all. The mean is over the ranked classes of an
    example, then over all examples; labels only tell which positions of sequences count.

    Args:
        k, name, dtype: see ``RankingMetric``.
        counts: [L], how often each class was a label in training; required.

    Raises:
        ValueError: for a k below 1, or counts that are missing, not [L], not finite or below 0.
        tf.errors.InvalidArgumentError: in ``update_state``, for a ranked id outside [-1, L).

    Example:
        >>> metric = NoveltyAtK(1, counts=[6, 1, 1])
        >>> metric.update_state([0, 0], [[1], [2]])
        >>> float(metric.result())
        3.0

    Reference:
        Zhou et al., "Solving the apparent diversity-accuracy dilemma of recommender systems", 2010; Vargas,
        Castells, "Rank and Relevance in Novelty and Diversity Metrics for Recommender Systems", 2011.
    """

    abbreviation = "novelty"
    of_class = staticmethod(self_information)


@register
class AveragePopularityAtK(_MeanOfRanked):
    """Average recommendation popularity: how often the k best classes were labels in training, on average.

    The mean is as of ``NoveltyAtK``. Compare it with the mean count of the labels themselves: a model with
    popularity bias is above it. Callbacks take less for better.

    Args:
        k, counts, name, dtype: see ``NoveltyAtK``.

    Raises:
        ValueError, tf.errors.InvalidArgumentError: as ``NoveltyAtK``.

    Example:
        >>> metric = AveragePopularityAtK(2, counts=[6, 1, 2])
        >>> metric.update_state([0, 0], [[0, 1], [2, 0]])
        >>> float(metric.result())
        3.75

    Reference:
        Abdollahpouri, Burke, Mobasher, "Managing Popularity Bias in Recommender Systems with Personalized
        Re-ranking", 2019.
    """

    abbreviation = "average_popularity"
    higher_is_better = False
    of_class = staticmethod(np.asarray)
