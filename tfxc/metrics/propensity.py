"""Propensity-scored metrics, in which hits on rare labels, often missing from the data, count more."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfxc._keras import register
from tfxc.arguments import number_in
from tfxc.ids import check_ids
from tfxc.metrics.groups import decoded, encoded, numbers_of_classes
from tfxc.metrics.ranking import discounts
from tfxc.metrics.ranking_metric import RankingMetric, num_positives, relevance

_DTYPE = "<f4"


def propensities(label_counts, num_points: int, a: float = 0.55, b: float = 1.5) -> np.ndarray:
    """Returns the probability that a label that applies is in the data.

    ``1 / p_l = 1 + C (n_l + b)^−a`` with ``C = (log N − 1)(b + 1)^a``.

    Args:
        label_counts: [L], the number of training points that have each label.
        num_points: N, the number of training points, at least 3 and the largest count.
        a: 0.55; 0.5 for Wikipedia, 0.6 for Amazon data; at least 0.
        b: 1.5; 0.4 for Wikipedia, 2.6 for Amazon data; above 0.

    Returns:
        float32 [L] in (0, 1].

    Raises:
        ValueError: for counts that are not [L] or below 0, a pandas Series in another order than the class
            ids, fewer than 3 points, or other a or b.

    Example:
        >>> print(propensities([0, 1, 100], num_points=1000).round(3))
        [0.113 0.145 0.565]

    Reference:
        Jain, Prabhu, Varma, "Extreme Multi-label Loss Functions for Recommendation, Tagging, Ranking & Other
        Missing Label Applications", 2016.
    """
    remedy = "points.label_counts() of the training points"
    label_counts = numbers_of_classes(label_counts, "label_counts", "[0, inf)", remedy)
    number_in(num_points, "num_points", "[3, inf)")
    number_in(a, "a", "[0, inf)")
    number_in(b, "b", "(0, inf)")
    if label_counts.max() > num_points:
        raise ValueError(
            f"A label cannot be on {label_counts.max():.0f} of {num_points} points: give len(points)."
        )
    scale = (np.log(num_points) - 1) * (b + 1) ** a
    return (1 / (1 + scale * (label_counts + b) ** -a)).astype(np.float32)


class _PropensityScored(RankingMetric):
    """Ratio of two sums over the examples: the gain that is reached, and the largest possible one."""

    def __init__(self, k: int = 10, propensities=None, name: str | None = None, dtype=None, by=None) -> None:
        super().__init__(k, name=name, dtype=dtype, by=by)
        if isinstance(propensities, str):  # of a config
            propensities = decoded(propensities, _DTYPE, "propensity")
        remedy = "tfxc.metrics.propensities(label_counts, num_points)"
        self.propensities = numbers_of_classes(propensities, "propensities", "(0, 1]", remedy, _DTYPE)
        if self.num_classes not in (None, len(self.propensities)):
            raise ValueError(
                f"by holds {self.num_classes} classes, but there are {len(self.propensities)} propensities."
            )
        self.num_classes = len(self.propensities)
        # One tensor, as every trace would hold its own copies of a NumPy array.
        self._gains = tf.constant(1 / self.propensities)

    def rank_weights(self, labels: tf.Tensor, num: tf.Tensor) -> tf.Tensor:
        """Returns the value of a hit at each of the ranks 1 .. num: [num], or [N, num] by example."""
        raise NotImplementedError(f"{type(self).__name__} must define rank_weights(labels, num).")

    def get_config(self):
        config = super().get_config()
        del config["average"]  # an example without labels adds nothing to either sum
        return {**config, "propensities": encoded(self.propensities)}

    def config_for(self, old_ids: np.ndarray) -> dict[str, Any]:
        """Returns the config for other classes, see ``Head.config_for``; a new one counts as the rarest."""
        known = self.propensities[np.maximum(old_ids, 0)]
        values = np.where(old_ids >= 0, known, self.propensities.min())
        return {**super().config_for(old_ids), "propensities": encoded(values)}

    def per_example(self, labels, ids):
        most = self.example_weights(labels)  # checks the labels first
        ids = check_ids(ids, self.num_classes, "ranked class")
        gains = relevance(tf.cast(ids, tf.int64), labels) * tf.gather(self._gains, tf.maximum(ids, 0))
        reached = tf.reduce_sum(gains * self.rank_weights(labels, tf.shape(ids)[1]), 1)
        return tf.math.divide_no_nan(reached, most)

    def example_weights(self, labels: tf.Tensor) -> tf.Tensor:
        """Returns the gain [N] of the best rankings. The mean with these weights is the ratio of the sums."""
        labels = check_ids(labels, self.num_classes)
        gains = tf.where(labels >= 0, tf.gather(self._gains, tf.maximum(labels, 0)), 0.0)
        num = tf.minimum(self.k, tf.shape(labels)[1])
        return tf.reduce_sum(tf.math.top_k(gains, num)[0] * self.rank_weights(labels, num), 1)


@register
class PSPAtK(_PropensityScored):
    """Propensity-scored precision. Takes labels, ranked ids and sequences like other metrics.

    ``PSP@k = Σ_n Σ_{hits j ≤ k} 1 / p_j  /  Σ_n max over rankings of the same``

    Args:
        k, name, dtype, by: see ``RankingMetric``.
        propensities: float [L] in (0, 1], from ``tfxc.metrics.propensities``; required.

    Raises:
        ValueError: for missing propensities, or some outside (0, 1].
        tf.errors.InvalidArgumentError: in ``update_state``, for a label or ranked id without a propensity.

    Example:
        >>> metric = PSPAtK(1, propensities=[0.5, 0.1])
        >>> metric.update_state([[0, 1]], [[0]])
        >>> round(float(metric.result()), 4)
        0.2

    Reference:
        Jain, Prabhu, Varma, "Extreme Multi-label Loss Functions", 2016.
    """

    abbreviation = "psp"

    def rank_weights(self, labels, num):
        return tf.ones([num])


@register
class PSNDCGAtK(_PropensityScored):
    """Propensity-scored nDCG. Takes labels, ranked ids and sequences like other metrics.

    ``PSnDCG@k = Σ_n (1 / I_n) Σ_{hits j ≤ k} 1 / (p_j log2(j + 1))  /  Σ_n max over rankings of the same``
    with ``I_n = Σ_{j ≤ min(k, P_n)} 1 / log2(j + 1)`` for P_n positives, as in nDCG.

    Args:
        k, propensities, name, dtype, by: see ``PSPAtK``.

    Raises:
        ValueError, tf.errors.InvalidArgumentError: as ``PSPAtK``.

    Example:
        >>> metric = PSNDCGAtK(2, propensities=[0.5, 0.1, 1.0])
        >>> metric.update_state([[1]], [[2, 1]])
        >>> round(float(metric.result()), 4)
        0.6309

    Reference:
        Jain, Prabhu, Varma, "Extreme Multi-label Loss Functions", 2016.
    """

    abbreviation = "psndcg"

    def rank_weights(self, labels, num):
        ideal = tf.gather(tf.cumsum(discounts(self.k)), tf.minimum(num_positives(labels), self.k) - 1)
        return discounts(num) / ideal[:, tf.newaxis]
