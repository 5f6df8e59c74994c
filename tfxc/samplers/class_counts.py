"""Class counts of a sampler, which the user gives or the sampler counts while it trains.

Counts are kept in weights, since a config with ten million of them would be a 100 MB JSON text. A sampler
that is rebuilt from its config has ``counts="saved"``: NaN, whose use is an error, until its weights are
loaded.
"""

import numpy as np
import tensorflow as tf

from tfxc._keras import keras
from tfxc._keras.weights import add_weight, tf_variable
from tfxc.arguments import by_class, number_in
from tfxc.class_rows import ClassRows
from tfxc.require import require
from tfxc.samplers.sampler import Sampler

SAVED = "saved"


def check_counts(counts, smoothing, what):
    """Counts + smoothing as float64 [L]; ``SAVED`` and None as they are.

    Raises ValueError unless there is one finite count a class, positive with the smoothing; for a pandas
    Series in another order, and for probabilities, which a smoothing would outweigh.
    """
    smoothing = number_in(smoothing, "smoothing", "[0, inf)")
    if counts is None and smoothing == 0:
        raise ValueError(f"{what} counts from 0 on while it trains: smoothing must be positive, not 0.")
    if counts is None or (isinstance(counts, str) and counts == SAVED):
        return counts
    counts = by_class(counts, "counts")
    if counts.ndim != 1 or not len(counts):
        raise ValueError(f"{what} needs counts of shape [L], one a class, but got shape {counts.shape}.")
    bad = np.flatnonzero(~(np.isfinite(counts) & (counts >= 0) & (counts + smoothing > 0)))
    if len(bad):
        raise ValueError(
            f"{what} needs a count of at least 0 for every class, and a positive one with the smoothing of "
            f"{smoothing}, or that class could never be drawn. {len(bad)} of {len(counts)} counts are wrong; "
            f"the first is class {bad[0]} with {counts[bad[0]]}."
        )
    if smoothing and counts.sum() <= 1 + 1e-3 and np.any(counts % 1):
        raise ValueError(
            f"{what} needs raw counts, but got {len(counts)} numbers that sum to {counts.sum():.3g}, as "
            f"probabilities do: the smoothing of {smoothing} would outweigh them. Multiply the "
            "numbers by the number of examples, or give smoothing=0."
        )
    return counts + smoothing


def gather_counts(variable, ids, what):
    """The values of a variable [L], made of the counts, at class ids of any shape (-1 reads class 0)."""
    loaded = tf.logical_not(tf.math.is_nan(tf.nn.embedding_lookup(variable, 0)))
    message = f'{what}(counts="saved") has no counts yet: load the weights it was saved with, or pass counts.'
    with tf.control_dependencies(require(loaded, message)):
        return tf.nn.embedding_lookup(variable, tf.maximum(ids, 0))


def as_the_rarest(variable, added):
    """Class frequencies float64 [L] of a variable; the added classes get that of the rarest other class."""
    values = tf_variable(variable).numpy().astype(np.float64)
    values[added] = np.delete(values, added).min()
    return values


class RunningCounts(keras.layers.Layer):
    """Counts how often each class was a label in the steps so far, without a pass over the data.

    It counts occurrences, not steps: a class that comes twice in a batch counts twice.
    """

    def __init__(self, smoothing, **kwargs):
        super().__init__(**kwargs)
        self.smoothing = smoothing

    def build(self, input_shape):
        """For ``input_shape = (L,)``."""
        self.num_classes = input_shape[0]
        options = {"dtype": "int64", "trainable": False, "aggregation": "sum"}
        self.occurrences = add_weight(self, "occurrences", (self.num_classes,), **options)
        self.total = add_weight(self, "total", (), **options)
        self.built = True

    def class_rows(self):
        """The counts by class; a new class has 0."""
        return [ClassRows(self.occurrences)]

    def classes_changed(self):
        """Makes the total that of the remaining classes."""
        tf_variable(self.total).assign(tf.reduce_sum(tf_variable(self.occurrences)))

    def forget(self, ids):
        """Makes the counts of class ids [n], each of them once, 0."""
        gone = tf.gather(tf_variable(self.occurrences), ids)
        tf_variable(self.total).assign_sub(tf.reduce_sum(gone))
        tf_variable(self.occurrences).scatter_update(tf.IndexedSlices(tf.zeros_like(gone), ids))

    def count(self, labels):
        """Counts the labels of a step, integers of any shape, padded with -1."""
        labels = tf.boolean_mask(labels, labels >= 0)
        ones = tf.ones_like(labels, tf.int64)
        tf_variable(self.occurrences).scatter_add(tf.IndexedSlices(ones, labels))
        tf_variable(self.total).assign_add(tf.size(labels, tf.int64))

    def numpy(self):
        """How often each class was a label, int64 [L]."""
        return tf.convert_to_tensor(tf_variable(self.occurrences)).numpy()

    def log_probs(self, ids):
        """The logs of the classes' shares of all labels so far, by the smoothing in place of a count of 0."""
        counts = tf.cast(tf.nn.embedding_lookup(tf_variable(self.occurrences), ids), tf.float64)
        counts = tf.where(counts > 0, counts, self.smoothing)
        total = tf.cast(tf.maximum(tf_variable(self.total), 1), tf.float64)
        return tf.cast(tf.math.log(counts) - tf.math.log(total), tf.float32)


class CountedSampler(Sampler):
    """A sampler by class counts, those given or those of the labels in the steps so far."""

    def __init__(self, num_negatives, counts, smoothing, **kwargs):
        super().__init__(num_negatives, **kwargs)
        self.counts = check_counts(counts, smoothing, type(self).__name__)
        self.smoothing = float(smoothing)

    def get_config(self):
        counts = None if self.counts is None else SAVED
        return {**super().get_config(), "counts": counts, "smoothing": self.smoothing}

    def build_index(self):
        if self.counts is None:
            self.running_counts = RunningCounts(self.smoothing)
            self.running_counts.build((self.num_classes,))

    def _match_classes(self, num_classes):
        """Raises ValueError unless given counts are those of so many classes."""
        if isinstance(self.counts, np.ndarray) and len(self.counts) != num_classes:
            raise ValueError(
                f"{type(self).__name__} got counts of {len(self.counts)} classes, but the head has "
                f"{num_classes}."
            )

    def class_rows(self):
        return [] if self.counts is None else [ClassRows(self.log_probs)]

    def observe(self, step):
        if self.counts is None:
            self.running_counts.count(step.labels)
