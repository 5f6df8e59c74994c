"""Ranking metrics at a cutoff k.

In the equations `h_j` is 1 if the class at rank j (from 1) is a positive, and 0 otherwise. P is the number of
the example's distinct positives. Each metric is the weighted mean over the examples that have a positive, or
with `average="all"` over all examples, where those without a positive count 0.
"""

import tensorflow as tf

from tfxc._keras import register
from tfxc.metrics.ranking_metric import RankingMetric, num_positives, relevance


@register
class PrecisionAtK(RankingMetric):
    """Share of the k best classes that are positives: `P@k = (1/k) Σ_j h_j`.

    The denominator is k even if fewer than k classes are ranked or positive.

    Args:
        k, average, name, dtype, by: see `RankingMetric`.

    Raises:
        ValueError: as `RankingMetric`.

    Example:
        >>> metric = tfxc.metrics.PrecisionAtK(2)
        >>> metric.update_state([[5, 9]], [[9, 3]])
        >>> float(metric.result())
        0.5
    """

    abbreviation = "precision"

    def per_example(self, labels, ids):
        return tf.reduce_sum(relevance(ids, labels), axis=1) / self.k


@register
class RecallAtK(RankingMetric):
    """Share of the positives among the k best classes: `Recall@k = (1/P) Σ_j h_j`.

    Args:
        k, average, name, dtype, by: see `RankingMetric`.

    Raises:
        ValueError: as `RankingMetric`.

    Example:
        >>> metric = tfxc.metrics.RecallAtK(2)
        >>> metric.update_state([[5, 9, 2, 1]], [[9, 3]])
        >>> float(metric.result())
        0.25
    """

    abbreviation = "recall"

    def per_example(self, labels, ids):
        return tf.reduce_sum(relevance(ids, labels), axis=1) / tf.cast(num_positives(labels), tf.float32)


@register
class HitRateAtK(RankingMetric):
    """Whether any of the k best classes is a positive: `HitRate@k = max_j h_j`.

    With one positive per example it equals recall.

    Args:
        k, average, name, dtype, by: see `RankingMetric`.

    Raises:
        ValueError: as `RankingMetric`.

    Example:
        >>> metric = tfxc.metrics.HitRateAtK(2)
        >>> metric.update_state([[5, 9], [4, -1]], [[9, 3], [1, 2]])
        >>> float(metric.result())
        0.5
    """

    abbreviation = "hit_rate"

    def per_example(self, labels, ids):
        return tf.reduce_max(relevance(ids, labels), axis=1)


@register
class MRRAtK(RankingMetric):
    """Reciprocal rank of the best positive: `MRR@k = max_j h_j / j`, 0 if none is among the k best.

    Args:
        k, average, name, dtype, by: see `RankingMetric`.

    Raises:
        ValueError: as `RankingMetric`.

    Example:
        >>> metric = tfxc.metrics.MRRAtK(3)
        >>> metric.update_state([[5, 9]], [[3, 9, 5]])
        >>> float(metric.result())
        0.5

    Reference: E. M. Voorhees, "The TREC-8 Question Answering Track Report", 1999.
    """

    abbreviation = "mrr"

    def per_example(self, labels, ids):
        hit = relevance(ids, labels)
        return tf.reduce_max(hit / _ranks(hit), axis=1)


@register
class MAPAtK(RankingMetric):
    """Average precision over the positives: `MAP@k = (1/min(P, k)) Σ_j h_j · (1/j) Σ_{i≤j} h_i`.

    Args:
        k, average, name, dtype, by: see `RankingMetric`.

    Raises:
        ValueError: as `RankingMetric`.

    Example:
        >>> metric = tfxc.metrics.MAPAtK(4)
        >>> metric.update_state([[5, 9]], [[9, 3, 1, 5]])
        >>> float(metric.result())
        0.75

    Reference: C. D. Manning, P. Raghavan, H. Schütze, "Introduction to Information Retrieval", 2008.
    """

    abbreviation = "map"

    def per_example(self, labels, ids):
        hit = relevance(ids, labels)
        precision = tf.cumsum(hit, axis=1) / _ranks(hit)
        best = tf.minimum(num_positives(labels), self.k)
        return tf.reduce_sum(hit * precision, axis=1) / tf.cast(best, tf.float32)


@register
class NDCGAtK(RankingMetric):
    """Discounted gain relative to the best possible ranking.

    `nDCG@k = Σ_j h_j / log2(j + 1)  /  Σ_{j ≤ min(P, k)} 1 / log2(j + 1)`

    Args:
        k, average, name, dtype, by: see `RankingMetric`.

    Raises:
        ValueError: as `RankingMetric`.

    Example:
        >>> metric = tfxc.metrics.NDCGAtK(3)
        >>> metric.update_state([9], [[4, 8, 9]])
        >>> float(metric.result())
        0.5

    Reference: K. Järvelin, J. Kekäläinen, "Cumulated gain-based evaluation of IR techniques", 2002.
    """

    abbreviation = "ndcg"

    def per_example(self, labels, ids):
        hit = relevance(ids, labels)
        gain = tf.reduce_sum(hit * discounts(tf.shape(hit)[1]), axis=1)
        best = tf.cumsum(discounts(self.k))
        return gain / tf.gather(best, tf.minimum(num_positives(labels), self.k) - 1)


def _ranks(hit):
    return tf.range(1, tf.shape(hit)[1] + 1, dtype=hit.dtype)


def discounts(length):
    """Returns `1 / log2(j + 1)` for the ranks j = 1 .. length."""
    return tf.math.log(2.0) / tf.math.log(tf.range(2, length + 2, dtype=tf.float32))
