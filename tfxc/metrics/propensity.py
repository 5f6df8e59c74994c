"""Propensity-scored metrics: hits on rare labels, which are often missing from the data, count more."""

import base64

import numpy as np
import tensorflow as tf

from tfxc._keras import register
from tfxc.metrics.ranking import discounts
from tfxc.metrics.ranking_metric import RankingMetric, hits, unique_positives


def propensities(label_counts, num_points, a=0.55, b=1.5):
    """The chance that a label, where it applies, is in the data.

    ``1 / p_l = 1 + C (n_l + b)^−a`` with ``C = (log N − 1)(b + 1)^a``.

    Args:
        label_counts: [L], how many of the training points have each label.
        num_points: N, the number of training points, at least 3.
        a: 0.55; 0.5 for Wikipedia, 0.6 for Amazon data.
        b: 1.5; 0.4 for Wikipedia, 2.6 for Amazon data.

    Returns:
        float32 [L] in (0, 1].

    Raises:
        ValueError: for negative counts, or fewer than 3 points.

    Example:
        >>> print(propensities([0, 1, 100], num_points=1000).round(3))
        [0.113 0.145 0.565]

    Reference:
        Jain, Prabhu, Varma, "Extreme Multi-label Loss Functions for Recommendation, Tagging, Ranking & Other
        Missing Label Applications", 2016.
    """
    label_counts = np.asarray(label_counts, np.float64)
    if num_points < 3 or (label_counts < 0).any():
        raise ValueError(
            f"Got {num_points} points, at least 3 needed, and label counts from {label_counts.min()}, "
            "at least 0 needed."
        )
    scale = (np.log(num_points) - 1) * (b + 1) ** a
    return (1 / (1 + scale * (label_counts + b) ** -a)).astype(np.float32)


class _PropensityScored(RankingMetric):
    """Ratio of two sums over the examples: what was reached, and the most that could be.

    Args:
        k: cutoff, at least 1.
        propensities: float [L] in (0, 1], or their encoding in a config.
        name: default the abbreviation and k.
        dtype: of the result.
    """

    def __init__(self, k=5, propensities=None, name=None, dtype=None):
        super().__init__(k, name=name, dtype=dtype)
        if isinstance(propensities, str):
            propensities = np.frombuffer(base64.b64decode(propensities), np.float32)
        values = np.asarray([] if propensities is None else propensities, np.float32)
        if values.ndim != 1 or not len(values) or not ((values > 0) & (values <= 1)).all():
            raise ValueError(
                f"{type(self).__name__} needs the propensity of every class, in (0, 1], but got "
                f"{propensities!r}. Use tfxc.metrics.propensities(label_counts, num_points)."
            )
        self.propensities = values

    def get_config(self):
        # As text of 5 bytes a class: a list would take three times that.
        return {**super().get_config(), "propensities": base64.b64encode(self.propensities).decode()}

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds a batch; arguments as ``RankingMetric.update_state``."""
        labels = unique_positives(tf.convert_to_tensor(y_true))
        # The mean, weighted with the most that each example could reach, is the ratio of the sums.
        most = self.most(labels)
        if sample_weight is not None:
            most *= tf.cast(tf.reshape(sample_weight, [-1]), most.dtype)
        return super().update_state(y_true, y_pred, most)

    def per_example(self, labels, ids):
        gains = hits(labels, ids) * tf.gather(1 / self.propensities, tf.maximum(ids, 0))
        reached = tf.reduce_sum(gains * self.rank_weights(tf.shape(ids)[1]), 1)
        return tf.math.divide_no_nan(reached, self.most(labels))

    def most(self, labels):
        """What the best ranking of each example reaches: [N]."""
        gains = tf.where(labels >= 0, tf.gather(1 / self.propensities, tf.maximum(labels, 0)), 0.0)
        num = tf.minimum(self.k, tf.shape(labels)[1])
        return tf.reduce_sum(tf.math.top_k(gains, num)[0] * self.rank_weights(num), 1)


@register
class PSPAtK(_PropensityScored):
    """Propensity-scored precision.

    ``PSP@k = Σ_n Σ_{hits j ≤ k} 1 / p_j  /  Σ_n max over rankings of the same``

    Args:
        k: cutoff, at least 1.
        propensities: float [L] in (0, 1], from ``tfxc.metrics.propensities``.
        name: default ``psp_at_<k>``.
        dtype: of the result.

    Raises:
        ValueError: for propensities outside (0, 1].

    Example:
        >>> metric = PSPAtK(1, propensities=[0.5, 0.1])
        >>> metric.update_state([[0, 1]], [[0]])
        >>> round(float(metric.result()), 4)
        0.2

    Reference:
        Jain, Prabhu, Varma, "Extreme Multi-label Loss Functions", 2016.
    """

    abbreviation = "psp"

    def rank_weights(self, num):
        return tf.ones([num])


@register
class PSNDCGAtK(_PropensityScored):
    """Propensity-scored nDCG: as ``PSPAtK``, with gains divided by ``log2(rank + 1)``.

    Args:
        k: cutoff, at least 1.
        propensities: float [L] in (0, 1], from ``tfxc.metrics.propensities``.
        name: default ``psndcg_at_<k>``.
        dtype: of the result.

    Raises:
        ValueError: for propensities outside (0, 1].

    Example:
        >>> metric = PSNDCGAtK(2, propensities=[0.5, 0.1, 1.0])
        >>> metric.update_state([[1]], [[2, 1]])
        >>> round(float(metric.result()), 4)
        0.6309

    Reference:
        Jain, Prabhu, Varma, "Extreme Multi-label Loss Functions", 2016.
    """

    abbreviation = "psndcg"

    def rank_weights(self, num):
        return discounts(num)
