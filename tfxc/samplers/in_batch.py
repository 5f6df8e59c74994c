"""The labels of the batch as each other's negatives."""

import numpy as np
import tensorflow as tf

from tfxc._keras import register
from tfxc._keras.weights import add_weight, constant, tf_variable
from tfxc.arguments import positive_int
from tfxc.samplers.class_counts import CountedSampler, as_the_rarest, gather_counts
from tfxc.samplers.sampler import no_log_prob, refuse_options
from tfxc.samplers.step import PoolCounts, Step
from tfxc.scored import MASKED_LOGIT


@register
class InBatch(CountedSampler):
    """The positives of the batch, shared by all its queries: ``Q(i) = n_i / Σ_j n_j``.

    Labels arrive by frequency, so the correction needs class counts n: those of the training data, or, by
    default, those counted in the steps so far. In two-tower models no class but the labels is computed. All
    labels of a batch ranked above ``Unigram`` in docs/benchmarks/combinations, a few draws far below it.

    A row's own labels are in the pool because they are its labels, so these slots are empty for that row. The
    other slots are draws, even if they hold the same class. With M labels in the batch, P_n of them in row n,
    class i is expected ``(M − P_n) Q(i)`` times.

    Args:
        num_negatives: S, draws with replacement from the labels of the batch, where all are too many for the
            memory; None takes them all, each once.
        counts: class counts [L] of the training labels; None counts them while training.
        smoothing: stands in for a count of 0. All other counts stay as they are, since draws are labels.
        seed: see ``Sampler``.

    Raises:
        ValueError: for counts that are not one a class, or not positive with the smoothing.

    Example:
        >>> sampler = InBatch(counts=[1, 2, 1], smoothing=0)
        >>> sampler.build((3, 8))
        >>> draw = sampler.sample(tfxc.samplers.Step(tf.zeros([2, 8]), tf.constant([[1], [2]])))
        >>> draw.ids.numpy().tolist()
        [1, 2]
        >>> tf.exp(draw.log_expected_count).numpy().round(3).tolist()  # inf: empty there
        [[inf, 0.25], [0.5, inf]]

    Reference:
        Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations", 2019 (with
        counts from the batches themselves).
    """

    def __init__(
        self,
        num_negatives: int | None = None,
        *,
        counts=None,
        smoothing: float = 1.0,
        seed: int | None = None,
        **kwargs,
    ) -> None:
        refuse_options(kwargs, ["shared"], "InBatch", "all queries have the same candidates anyway")
        super().__init__(1, counts, smoothing, seed=seed, **kwargs)
        self.num_negatives = None if num_negatives is None else positive_int(num_negatives, "num_negatives")

    def get_config(self):
        config = super().get_config()
        del config["shared"]
        return config

    def build_index(self):
        self._match_classes(self.num_classes)
        super().build_index()
        if self.counts is not None:
            log_probs = least = np.nan
            if not isinstance(self.counts, str):
                counts = self.counts - self.smoothing
                log_total = np.log(counts.sum() or self.counts.sum())
                log_probs = np.log(np.maximum(counts, 1e-300)) - log_total
                log_probs = np.where(counts > 0, log_probs, MASKED_LOGIT)
                least = np.log(self.smoothing or 1) - log_total
            shape = (self.num_classes,)
            self.log_probs = add_weight(self, "log_probs", shape, constant(log_probs), trainable=False)
            self.least = add_weight(self, "least", (), constant(least), trainable=False)

    def classes_changed(self, head, added: np.ndarray) -> None:
        """Forgets removed classes; with given counts, a new class is as frequent as the rarest."""
        if self.counts is None:
            self.running_counts.classes_changed()
        else:
            log_probs = as_the_rarest(self.log_probs, added)
            least = tf_variable(self.least)
            log_total = np.log(np.exp(log_probs).sum() or len(log_probs) * np.exp(least.numpy()))
            tf_variable(self.log_probs).assign(log_probs - log_total)
            least.assign_sub(log_total)

    def prepare(self, step: Step) -> tf.Tensor:
        return step.labels

    def draw(self, given, seed):
        rows = tf.range(tf.shape(given)[0])[:, tf.newaxis]
        owner = tf.boolean_mask(tf.broadcast_to(rows, tf.shape(given)), given >= 0)
        pool = tf.boolean_mask(given, given >= 0)
        if self.num_negatives is not None:
            shape = [self.num_negatives * tf.cast(tf.size(pool) > 0, tf.int32)]  # none without labels
            last = tf.maximum(tf.size(pool, tf.int64), 1)
            place = tf.random.stateless_uniform(shape, seed, 0, last, tf.int64)
            pool, owner = tf.gather(pool, place), tf.gather(owner, place)
        return pool, PoolCounts(self._num_draws(given), self._log_probs(pool), owner)

    def log_expected_count(self, given, ids):
        return tf.math.log(self._num_draws(given)) + self._log_probs(ids)

    def _num_draws(self, given):
        """How many draws [N, 1] of the other rows' labels each row sees."""
        num_own = tf.reduce_sum(tf.cast(given >= 0, tf.float32), 1, keepdims=True)
        num_labels = tf.reduce_sum(num_own)
        num_draws = num_labels - num_own
        if self.num_negatives is not None:
            num_draws *= tf.math.divide_no_nan(float(self.num_negatives), num_labels)
        return num_draws

    def _log_probs(self, ids):
        if self.counts is None:
            return self.running_counts.log_probs(ids)
        log_probs = gather_counts(tf_variable(self.log_probs), ids, "InBatch")
        return tf.where(log_probs > MASKED_LOGIT, log_probs, tf_variable(self.least))

    log_prob = no_log_prob("its candidates depend on the labels of the batch")
