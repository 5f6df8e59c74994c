"""The labels of the batch as each other's negatives."""

import numpy as np
import tensorflow as tf

from tfxc._keras import add_weight, constant, register, tf_variable
from tfxc.samplers.class_counts import SAVED, check_counts, gather_counts, match_classes
from tfxc.samplers.sampler import Sampler


@register
class InBatch(Sampler):
    """The positives of the batch, shared by all its queries: ``Q(i) = counts_i / Σ_j counts_j``.

    Labels arrive by frequency, so the correction needs the class counts of the training data. For two
    towers, where a class vector is computed and not looked up, these candidates cost nothing extra.

    Args:
        num_negatives: S, draws with replacement from the labels of the batch; None takes them all, each once.
        counts: positive class counts [L] of the training labels.
        seed: int, see ``Sampler``.

    Raises:
        ValueError: for counts that are not positive, or not one a class.

    Example:
        >>> sampler = InBatch(None, counts=[1.0, 2.0, 1.0])
        >>> sampler.build((3, 8))
        >>> ids, log_count = sampler.sample(tf.zeros([2, 8]), tf.constant([[1], [2]]))
        >>> ids.numpy().tolist(), tf.exp(log_count).numpy().round(3).tolist()
        ([1, 2], [1.0, 0.5])

    Reference:
        Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations", 2019.
    """

    draws_labels = True

    def __init__(self, num_negatives=None, *, counts, seed=None, **kwargs):
        super().__init__(1 if num_negatives is None else num_negatives, shared=True, seed=seed, **kwargs)
        self.num_negatives = num_negatives
        self.counts = check_counts(counts, "InBatch")

    def get_config(self):
        config = super().get_config()
        del config["shared"]
        return {**config, "counts": SAVED}

    def build_index(self):
        match_classes(self.counts, self.num_classes, "InBatch")
        saved = isinstance(self.counts, str)
        log_probs = constant(np.nan if saved else np.log(self.counts / self.counts.sum()))
        self.log_probs = add_weight(self, "log_probs", (self.num_classes,), log_probs, trainable=False)

    def draw(self, query, labels, seed):
        pool = tf.reshape(labels, [-1])
        pool = tf.boolean_mask(pool, pool >= 0)
        if self.num_negatives is not None:
            shape = [self.num_negatives * tf.cast(tf.size(pool) > 0, tf.int32)]  # no label, no candidate
            last = tf.maximum(tf.size(pool, tf.int64), 1)
            pool = tf.gather(pool, tf.random.stateless_uniform(shape, seed, 0, last, tf.int64))
        return pool, self.log_prob(query, pool)

    def log_num_draws(self, labels):
        if self.num_negatives is not None:
            return super().log_num_draws(labels)
        return tf.math.log(tf.maximum(tf.reduce_sum(tf.cast(labels >= 0, tf.float32)), 1.0))

    def log_prob(self, query, ids):
        return gather_counts(tf_variable(self.log_probs), ids, "InBatch")
