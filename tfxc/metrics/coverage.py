"""The share of the classes that are ever among the best."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfxc._keras import keras, register
from tfxc._keras.training import Directed
from tfxc._keras.weights import tf_variable
from tfxc.arguments import positive_int
from tfxc.ids import check_ids
from tfxc.metrics.ranking_metric import check_ranked, flat_examples, ranked_ids, seed_of


@register
class CoverageAtK(Directed, keras.metrics.Metric):
    """Share of the L classes that are among the k best of any example.

    Labels only tell which positions of sequences count. Otherwise an example without labels counts, too.
    Examples of sample weight 0 do not count. Other weights make no difference.

    Args:
        k, name, dtype: see ``RankingMetric``.
        num_classes: L, a positive integer; required. The metric holds a number for each class.

    Raises:
        ValueError: for a k or num_classes below 1, other shapes, or fewer than k ranked ids.
        tf.errors.InvalidArgumentError: in ``update_state``, for a ranked id outside [-1, L).

    Example:
        >>> metric = CoverageAtK(2, num_classes=8)
        >>> metric.update_state([5, 9], [[0, 1, 4], [1, 2, 4]])
        >>> float(metric.result())
        0.375

    Reference: M. Ge, C. Delgado-Battenfeld, D. Jannach, "Beyond Accuracy: Evaluating Recommender Systems by
        Coverage and Serendipity", 2010.
    """

    def __init__(
        self, k: int = 10, num_classes: int | None = None, name: str | None = None, dtype=None
    ) -> None:
        self.k = positive_int(k, "k")
        self.num_classes = positive_int(num_classes, "num_classes")
        super().__init__(name=name or f"coverage_at_{self.k}", dtype=dtype)
        self.times = self.add_weight(name="times", shape=(self.num_classes,), initializer="zeros")

    def get_config(self):
        return {**super().get_config(), "k": self.k, "num_classes": self.num_classes}

    def config_for(self, old_ids: np.ndarray) -> dict[str, Any]:
        """Returns the config for other classes, see ``Head.config_for``."""
        return {**self.get_config(), "num_classes": len(old_ids)}

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds a batch; arguments as ``RankingMetric.update_state``."""
        _, y_pred, sample_weight = flat_examples(y_true, y_pred, sample_weight)
        check_ranked(self, y_pred)
        ids = ranked_ids(y_pred, self.k, seed_of(tf.reduce_sum(tf_variable(self.times))))
        ids = check_ids(ids, self.num_classes, "ranked class")
        counts = tf.cast(ids >= 0, self.times.dtype)
        if sample_weight is not None:
            counts *= tf.cast(tf.reshape(sample_weight, [-1, 1]) > 0, counts.dtype)
        # Under a distribution strategy a replica's variable accepts no scattered updates.
        places = tf.reshape(tf.maximum(ids, 0), [-1, 1])
        self.times.assign_add(tf.scatter_nd(places, tf.reshape(counts, [-1]), [self.num_classes]))

    def result(self):
        """Returns the share, a scalar in [0, 1]."""
        return tf.reduce_mean(tf.cast(tf_variable(self.times) > 0, self.dtype))
