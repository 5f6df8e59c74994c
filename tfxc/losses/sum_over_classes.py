"""What losses have in common that are a sum over the classes, each a negative or a positive on its own."""

import tensorflow as tf

from tfxc.losses.classification_loss import ClassificationLoss


class SumOverClasses(ClassificationLoss):
    """Base of the losses ``Σ_p term(−o_{y_p}) + Σ_j term(o_j)``, j over all classes that are no labels.

    A subclass defines ``term``, its derivative ``logit_gradient``, and ``combine``. Over S sampled candidates
    with expected counts ``e_s`` the loss is the unbiased estimate
    ``Σ_p term(−o_{y_p}) + Σ_s term(o_s) / e_s``; a draw that hits a positive contributes 0.
    """

    merge_of_candidates = "sum"

    def term(self, logits: tf.Tensor) -> tf.Tensor:
        """What negatives of these logits lose; positives lose that of the logits' opposite."""
        raise NotImplementedError(f"{type(self).__name__} does not define term(logits).")

    def initial(self, num_queries):
        return (tf.zeros([num_queries]),)

    def update(self, state, logits):
        return (state[0] + tf.reduce_sum(self.term(logits), 1),)

    def finish(self, state):
        return state[0]

    def fold_candidates(self, negatives, hits):
        negatives = negatives.without(hits >= 0)
        drawn = tf.exp(-negatives.log_expected_count) * self.term(negatives.logits)
        return tf.reduce_sum(drawn, 1, keepdims=True)

    def with_candidates(self, positives, folded, is_label, label_slots=None):
        own = tf.where(is_label, self.term(-positives.logits), 0.0)
        return tf.reduce_sum(own, 1) + folded[:, 0]
