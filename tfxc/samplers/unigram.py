"""Draws by class frequency."""

import numpy as np
import tensorflow as tf

from tfxc._keras import register
from tfxc._keras.weights import tf_variable
from tfxc.arguments import number_in
from tfxc.samplers.alias import alias_draw, alias_table
from tfxc.samplers.class_counts import CountedSampler, as_the_rarest, gather_counts

TABLE = "threshold", "alias"


@register
class Unigram(CountedSampler):
    """Draws classes by frequency to a power: ``Q(i) = n_i^power / Σ_j n_j^power``.

    It ranked better than ``Uniform`` on all data of docs/benchmarks, whose frequencies are skewed. A draw
    costs the same at any L (alias table).

    Without ``counts`` the sampler counts the labels while it trains, and Q follows them at every ``refresh``
    (``tfxc.callbacks.SamplerRefresh``); before the first refresh Q is uniform.

    Args:
        num_negatives, shared, seed: see ``Sampler``.
        counts: class counts [L] in id order, for example ``data.counts()``; None counts them while training.
        smoothing: added to every count, so that each class is within reach.
        power: exponent; 1 the frequencies themselves, 0.75 as in word2vec, 0 uniform.

    Raises:
        ValueError: for counts that are not one a class, or not positive with the smoothing; for a power that
            is not finite.

    Example:
        >>> sampler = Unigram(4, counts=[0, 1, 0], seed=1)
        >>> sampler.build((3, 8))
        >>> tf.exp(sampler.log_prob(tf.zeros([1, 8]), tf.constant([[0, 1, 2]]))).numpy().round(3).tolist()
        [[0.25, 0.5, 0.25]]

    Reference:
        Mikolov et al., "Distributed Representations of Words and Phrases and their Compositionality",
        2013 (the power 0.75).
    """

    def __init__(
        self,
        num_negatives: int,
        *,
        counts=None,
        smoothing: float = 1.0,
        power: float = 1.0,
        shared: bool = False,
        seed: int | None = None,
        **kwargs,
    ) -> None:
        super().__init__(num_negatives, counts, smoothing, shared=shared, seed=seed, **kwargs)
        self.power = number_in(power, "power", "(-inf, inf)")

    def get_config(self):
        return {**super().get_config(), "power": self.power}

    def build_index(self):
        super().build_index()
        log_probs = self.first_log_probs(self.num_classes)
        self._add_weights({**alias_table_of(log_probs), "log_probs": log_probs.astype(np.float32)})

    def first_log_probs(self, num_classes: int) -> np.ndarray:
        """The log probabilities float64 [L] before any training; NaN for counts that are to be loaded."""
        self._match_classes(num_classes)
        if self.counts is None:
            return np.full(num_classes, -np.log(num_classes))
        if isinstance(self.counts, str):
            return np.full(num_classes, np.nan)
        return normalised(self.power * np.log(self.counts))

    def _follow(self, log_weights):
        """Takes over log weights of the classes [L], of any scale."""
        log_probs = normalised(log_weights)
        self._assign_weights({**alias_table_of(log_probs), "log_probs": log_probs})

    def refresh(self, head) -> None:
        """Takes over the labels counted so far; with given counts it does nothing."""
        if self.counts is None:
            self._follow(self.log_weights(self.running_counts.numpy()))

    def log_weights(self, counts: np.ndarray) -> np.ndarray:
        """What classes of these counts weigh, as logs of any scale."""
        return self.power * np.log(counts + self.smoothing)

    def classes_changed(self, head, added: np.ndarray) -> None:
        """Takes over the running counts; with given counts, a new class is as frequent as the rarest."""
        if self.counts is None:
            self.running_counts.classes_changed()
            self.refresh(head)
        else:
            self._follow(as_the_rarest(self.log_probs, added))

    def draw(self, given, seed):
        table = tf_variable(self.threshold), tf_variable(self.alias)
        ids = alias_draw(*table, [tf.shape(given)[0], self.num_negatives], seed)
        return ids, self.log_expected_count(given, ids)

    def log_expected_count(self, given, ids):
        return self.log_num_draws + gather_counts(tf_variable(self.log_probs), ids, "Unigram")


def normalised(log_weights):
    """Log probabilities of log weights [L] of any scale."""
    log_weights = log_weights - log_weights.max()
    return log_weights - np.log(np.exp(log_weights).sum())


def alias_table_of(log_probs):
    """The alias table of log probabilities [L], by the names of ``TABLE``; NaN stays NaN."""
    if np.isnan(log_probs).any():
        return dict(zip(TABLE, (log_probs, np.zeros(len(log_probs), np.int32)), strict=True))
    return dict(zip(TABLE, alias_table(np.exp(log_probs)), strict=True))
