"""Scored classes: what samplers, heads and losses hand each other."""

from typing import NamedTuple

import tensorflow as tf

# The logit of a class that is taken out: finite, so that a row with no class left has gradient 0, not NaN.
MASKED_LOGIT = -1e30


class Scored(NamedTuple):
    """Scored classes: their logits, and the log of how often each is expected among the candidates.

    Args:
        logits: float32 [N, P] of positives, or [N, S] of candidates.
        log_expected_count: float32 of a shape that broadcasts to that of the logits.
        num_classes: how many classes the candidates were drawn from, L; None where no loss reads it.

    Example:
        >>> candidates = Scored(logits=tf.constant([[2.0, 1.0]]), log_expected_count=tf.constant([0.5, 0.0]))
        >>> candidates.corrected.numpy().tolist()
        [[1.5, 1.0]]
        >>> candidates.without(tf.constant([[True, False]])).logits.numpy().round(1).tolist()
        [[-1.0000000150474662e+30, 1.0]]
    """

    logits: tf.Tensor
    log_expected_count: tf.Tensor
    num_classes: int | None = None

    @property
    def corrected(self) -> tf.Tensor:
        """Logits less log expected counts, which estimates of the softmax sum."""
        return self.logits - self.log_expected_count

    def without(self, out: tf.Tensor) -> "Scored":
        """The same classes without those where ``out``, bool of the shape of the logits, is True."""
        return self._replace(logits=tf.where(out, MASKED_LOGIT, self.logits))


class BestClasses(NamedTuple):
    """The best classes of each query, best first.

    Attributes:
        scores: float32 [N, k]; -inf where there is no class left.
        ids: int32 [N, k]; -1 there.

    Example:
        >>> head = tfxc.layers.DenseHead(1000)
        >>> head.build((None, 16))
        >>> head.top_k(tf.ones([2, 16]), k=3).ids.shape
        TensorShape([2, 3])
    """

    scores: tf.Tensor
    ids: tf.Tensor
