"""Draws by class frequency."""

import math

import numpy as np
import tensorflow as tf

from tfxc._keras import add_weight, constant, register, tf_variable
from tfxc.class_rows import ClassRows
from tfxc.samplers.alias import alias_draw, alias_table
from tfxc.samplers.class_counts import (
    SAVED,
    RunningCounts,
    as_the_rarest,
    check_counts,
    gather_counts,
    match_classes,
)
from tfxc.samplers.sampler import Sampler

_TABLE = ("threshold", "alias", "log_probs")


@register
class Unigram(Sampler):
    """Draws classes by frequency to a power: ``Q(i) = n_i^power / Σ_j n_j^power``.

    Popular classes are the confusable ones, so this beats ``Uniform`` wherever frequencies are skewed.
    A draw costs the same at any L (alias table).

    Without ``counts`` the labels are counted while training, and Q follows them at every ``refresh``
    (``tfxc.callbacks.SamplerRefresh``); before the first it is uniform.

    Args:
        num_negatives: S, draws a query (or a batch).
        counts: class counts [L], for example ``data.counts()``; None counts them while training.
        smoothing: added to every count, so that each class is within reach.
        power: exponent; 1 the frequencies themselves, 0.75 as in word2vec, 0 uniform.
        shared: one set of draws for the whole batch.
        seed: int, see ``Sampler``.

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
        self, num_negatives, *, counts=None, smoothing=1.0, power=1.0, shared=False, seed=None, **kwargs
    ):
        super().__init__(num_negatives, shared=shared, seed=seed, **kwargs)
        self.counts = check_counts(counts, smoothing, "Unigram")
        self.smoothing = float(smoothing)
        self.power = float(power)
        if not math.isfinite(self.power):
            raise ValueError(f"power must be a finite number, but got {power}.")

    def get_config(self):
        counts = None if self.counts is None else SAVED
        return {**super().get_config(), "counts": counts, "smoothing": self.smoothing, "power": self.power}

    def build_index(self):
        match_classes(self.counts, self.num_classes, "Unigram")
        table = np.nan, 0, np.nan  # until the saved one is loaded
        if self.counts is None:
            self.running_counts = RunningCounts(self.smoothing)
            self.running_counts.build((self.num_classes,))
            table = 1.0, 0, -np.log(self.num_classes)  # every slot keeps its own class: uniform
        elif not isinstance(self.counts, str):
            table = self._table(self.counts)
        for name, value, dtype in zip(_TABLE, table, ("float64", "int32", "float32"), strict=True):
            weight = add_weight(self, name, (self.num_classes,), constant(value), dtype, trainable=False)
            setattr(self, name, weight)

    def _table(self, counts):
        return _of_log_weights(self.power * np.log(counts))

    def _assign(self, table):
        for name, value in zip(_TABLE, table, strict=True):
            tf_variable(getattr(self, name)).assign(value)

    @property
    def needs_refresh(self):
        return self.counts is None

    def refresh(self, head):
        """Takes over what was counted since; with given counts there is nothing to do."""
        if self.counts is None:
            counts = tf_variable(self.running_counts.occurrences).numpy() + self.smoothing
            self._assign(self._table(counts))

    def class_rows(self):
        return [] if self.counts is None else [ClassRows(self.log_probs)]

    def classes_changed(self, head, new_ids):
        """Takes over the running counts; with given ones, a new class is as frequent as the rarest."""
        if self.counts is None:
            self.running_counts.classes_changed()
            self.refresh(head)
        else:
            log_probs = as_the_rarest(self.log_probs, new_ids)
            self._assign(_of_log_weights(log_probs))

    def prepare(self, step):
        """How many queries there are, and the labels."""
        return tf.shape(step.query)[0], step.labels

    def draw(self, given, seed):
        num_queries, labels = given
        if self.counts is None:
            self.running_counts.count(labels)
        table = tf_variable(self.threshold), tf_variable(self.alias)
        ids = alias_draw(*table, [num_queries, self.num_negatives], seed)
        return ids, self.log_count(given, ids)

    def log_count(self, given, ids):
        return self.log_num_draws + gather_counts(tf_variable(self.log_probs), ids, "Unigram")


def _of_log_weights(log_weights):
    """Thresholds, aliases and log probabilities [L] of log weights [L] of any scale."""
    log_weights = log_weights - log_weights.max()
    weights = np.exp(log_weights)
    return *alias_table(weights), log_weights - np.log(weights.sum())
