"""Draws by class frequency."""

import numpy as np

from tfxc._keras import add_weight, constant, register, tf_variable
from tfxc.samplers.alias import alias_draw, alias_table
from tfxc.samplers.class_counts import SAVED, check_counts, gather_counts, match_classes
from tfxc.samplers.sampler import Sampler


@register
class Unigram(Sampler):
    """Draws classes by frequency to a power: ``Q(i) = counts_i^power / Σ_j counts_j^power``.

    Popular classes are the confusable ones, so this beats ``Uniform`` wherever frequencies are skewed.
    A draw costs the same at any L (alias table).

    Args:
        num_negatives: S, draws a query (or a batch).
        counts: positive class counts [L], for example ``data.counts() + 1``.
        power: exponent; 1 the frequencies themselves, 0.75 as in word2vec, 0 uniform.
        shared: one set of draws for the whole batch.
        seed: int, see ``Sampler``.

    Raises:
        ValueError: for counts that are not positive, or not one a class.

    Example:
        >>> sampler = Unigram(4, counts=[1.0, 2.0, 1.0], power=1.0, seed=1)
        >>> sampler.build((3, 8))
        >>> tf.exp(sampler.log_prob(None, tf.constant([[0, 1, 2]]))).numpy().round(3).tolist()
        [[0.25, 0.5, 0.25]]

    Reference:
        Mikolov et al., "Distributed Representations of Words and Phrases and their Compositionality",
        2013 (the power 0.75).
    """

    def __init__(self, num_negatives, counts, power=1.0, shared=False, seed=None, **kwargs):
        super().__init__(num_negatives, shared=shared, seed=seed, **kwargs)
        self.counts = check_counts(counts, "Unigram")
        self.power = float(power)

    def get_config(self):
        return {**super().get_config(), "counts": SAVED, "power": self.power}

    def build_index(self):
        match_classes(self.counts, self.num_classes, "Unigram")
        threshold, alias, log_probs = np.nan, 0, np.nan  # until the saved table is loaded
        if not isinstance(self.counts, str):
            log_weights = self.power * np.log(self.counts)
            log_weights -= log_weights.max()
            weights = np.exp(log_weights)
            threshold, alias = alias_table(weights)
            log_probs = log_weights - np.log(weights.sum())
        shape = (self.num_classes,)
        self.threshold = add_weight(self, "threshold", shape, constant(threshold), "float64", trainable=False)
        self.alias = add_weight(self, "alias", shape, constant(alias), "int32", trainable=False)
        self.log_probs = add_weight(self, "log_probs", shape, constant(log_probs), trainable=False)

    def draw(self, query, labels, seed):
        table = tf_variable(self.threshold), tf_variable(self.alias)
        ids = alias_draw(*table, self.shape_of_draws(query), seed)
        return ids, self.log_prob(query, ids)

    def log_prob(self, query, ids):
        return gather_counts(tf_variable(self.log_probs), ids, "Unigram")
