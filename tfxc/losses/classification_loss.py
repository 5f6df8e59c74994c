"""What every loss over a huge number of classes has in common.

A loss splits into a reduction over all classes (a log-sum-exp, a sum of softplus), which can be streamed
in blocks of classes, and a part that needs only the logits of the positives. The four streaming methods
are pure functions; the head drives them block by block, so no ``[N, L]`` tensor is ever needed.
"""

from typing import Literal

import tensorflow as tf

from tfxc._keras import keras
from tfxc._keras.training import COMPILED_LOSS_IS_A_SHARE, compiled_labels
from tfxc.labels import labelled_queries
from tfxc.scored import Scored

# What a class says of some of its methods. It does not hold for those that a class below it gives: that one
# says it anew, or says nothing.
_SAID_OF = {
    "reduction_over_classes": ("initial", "update", "finish", "logit_gradient", "term"),
    "merge_of_candidates": ("sampled", "fold_candidates"),
    "log_sum_of_candidates": ("sampled", "fold_candidates"),
}


class ClassificationLoss(keras.losses.Loss):
    """Base of the losses on class ids and logits, over all classes or over sampled candidates.

    A subclass defines the streamed reduction (``initial``, ``update``, ``finish`` and, for the backward
    pass, ``logit_gradient``) and ``combine``; and, for sampled candidates, ``fold_candidates`` and
    ``with_candidates``, or ``sampled`` where it wants all candidates at once.

    Args:
        reduction: "sum_over_batch_size" (over the examples), "sum" or "none".
        name: name of the loss.
        dtype: of the result; by default float32, in which everything is computed.

    Raises:
        ValueError: if labels are not integers, or of a shape that does not fit the logits.
        tf.errors.InvalidArgumentError: for an id outside [0, L).

    Example:
        >>> loss = tfxc.losses.SoftmaxCrossentropy()
        >>> state = loss.initial(1)
        >>> for block in ([[0.0, 0.0]], [[0.0, 0.0]]):  # four classes in two blocks
        ...     state = loss.update(state, tf.constant(block))
        >>> round(float(loss.finish(state)[0]), 4)
        1.3863
    """

    # What is summed over the classes, by the name a head's fused kernel may know it under; None: unknown.
    reduction_over_classes: str | None = None
    # How what is taken of some candidates, and what of others, become that of all: "logsumexp" or "sum"; None
    # for a loss that wants all at once. Where classes lie on several machines, candidates are then sent.
    merge_of_candidates: str | None = None
    # Whose log-sum-exp of corrected logits is all that is taken of candidates: of "all" of them, or of the
    # "others" than labels; None: it is something else.
    log_sum_of_candidates: str | None = None
    # Whether training over all classes would be by another loss.
    needs_sampler = False
    # Whether several labels share out one unit of probability; else each of them applies or does not.
    labels_share_probability = False
    # Whether a label's term leaves out the example's other labels.
    decoupled = False
    # The probability below which a head may leave out a class's gradient over all classes; None: never.
    filter_below: float | None = None

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        for name, methods in _SAID_OF.items():
            if any(_depth(cls, method) < _depth(cls, name) for method in methods):
                setattr(cls, name, None)

    def __init__(
        self,
        reduction: Literal["sum_over_batch_size", "sum", "none"] = "sum_over_batch_size",
        name: str | None = None,
        dtype=None,
    ) -> None:
        super().__init__(reduction=reduction, name=name)
        if reduction == "mean_with_sample_weight":
            raise ValueError(
                'reduction="mean_with_sample_weight" is not supported: take "sum_over_batch_size", and '
                "weights whose mean is 1."
            )
        self.result_dtype = None if dtype is None else tf.as_dtype(dtype).name

    def get_config(self):
        return {**super().get_config(), "dtype": self.result_dtype}

    def call(self, y_true, y_pred):
        """Per-example loss [N] from labels and all logits, as ``__call__`` takes them."""
        return self._per_example(y_true, y_pred)[0]

    def __call__(self, y_true, y_pred, sample_weight=None):
        """The loss of class ids and all logits.

        Args:
            y_true: ids [N] or [N, P], padded with -1; for logits [B, T, L] ids [B, T] or [B, T, P].
            y_pred: logits [N, L], or [B, T, L] of sequences, of which masked positions and those without
                a label do not count.
            sample_weight: None, [N] or, for sequences, [B] or [B, T].
        """
        # Not through Keras, which would cast the ids to floats that cannot hold ids above 2^24.
        value = self.reduce(*self._per_example(y_true, y_pred, sample_weight))
        return self.share(value) if COMPILED_LOSS_IS_A_SHARE else value

    def _per_example(self, y_true, y_pred, sample_weight=None):
        """Losses [N] and weights [N] or None."""
        if isinstance(y_pred, dict):
            raise ValueError(
                "A loss takes the logits of all classes, but got the best ones that an ExtremeClassifier "
                "gives when it is called: in a loop of your own the loss is tfxc.head_loss(model.head, loss, "
                "model.encoder(x), y, model.sampler)."
            )
        y_pred = tf.convert_to_tensor(y_pred)
        num_classes = y_pred.shape[-1] or tf.shape(y_pred, out_type=tf.int64)[-1]
        logits, labels, sample_weight, _ = labelled_queries(
            y_pred, compiled_labels(y_true), num_classes, sample_weight
        )
        logits = tf.cast(logits, tf.float32)
        return self.combine(*self.reduce_logits(logits, labels), labels >= 0), sample_weight

    def reduce_logits(self, logits: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The reduction [N] of all logits [N, L] at once, and those of the positives [N, P]."""
        reduced = self.finish(self.update(self.initial(tf.shape(logits)[0]), logits))
        positives = tf.gather(logits, tf.maximum(labels, 0), batch_dims=1)
        return reduced, tf.where(labels >= 0, positives, 0.0)

    def reduce(self, losses: tf.Tensor, sample_weight=None) -> tf.Tensor:
        """The scalar (or, with reduction "none", vector) loss from per-example losses [N].

        As in Keras, "sum_over_batch_size" divides by the number of examples, not by the sum of weights.
        """
        if losses.shape.rank not in (1, None):  # would be multiplied with each weight
            raise ValueError(
                f"{type(self).__name__} must give a loss for each example, [N], but gave {losses.shape}: see "
                "combine, sampled and with_candidates."
            )
        if sample_weight is not None:
            losses *= tf.cast(tf.reshape(sample_weight, [-1]), losses.dtype)
        value = self._reduced(losses)
        # Only now: a sum, a number of examples or a weight may be too large for the dtype of the result.
        return value if self.result_dtype is None else tf.cast(value, self.result_dtype)

    def _reduced(self, losses):
        if self.reduction in ("none", None):
            return losses
        total = tf.reduce_sum(losses)
        if self.reduction == "sum":
            return total
        return tf.math.divide_no_nan(total, tf.cast(tf.size(losses), total.dtype))

    def share(self, value: tf.Tensor) -> tf.Tensor:
        """What a replica gives of its reduced loss, where gradients are summed: of a mean, its part."""
        if self.reduction in ("sum", "none", None):
            return value
        return value / tf.distribute.get_strategy().num_replicas_in_sync

    def across_replicas(self, value: tf.Tensor) -> tf.Tensor:
        """What a replica gives of its reduced loss, where a mean of them is shown: of a sum, the whole."""
        if self.reduction != "sum":
            return value
        return value * tf.distribute.get_strategy().num_replicas_in_sync

    def initial(self, num_queries):
        """The state of the reduction before any class."""
        raise NotImplementedError(f"{type(self).__name__} does not define initial(num_queries).")

    def update(self, state, logits: tf.Tensor):
        """The state after one more block of logits [N, b]."""
        raise NotImplementedError(f"{type(self).__name__} does not define update(state, logits).")

    def finish(self, state) -> tf.Tensor:
        """The reduction over all classes [N]."""
        raise NotImplementedError(f"{type(self).__name__} does not define finish(state).")

    def logit_gradient(self, reduced: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        """The gradient [N, b] of the finished reduction [N] to a block of logits."""
        raise NotImplementedError(f"{type(self).__name__} does not define logit_gradient(reduced, logits).")

    def combine(self, reduced: tf.Tensor, positive_logits: tf.Tensor, is_label: tf.Tensor) -> tf.Tensor:
        """Per-example loss [N] from the reduction [N] and the positives' logits [N, P] where is_label."""
        raise NotImplementedError(
            f"{type(self).__name__} does not define combine(reduced, positive_logits, is_label)."
        )

    def sampled(
        self,
        positives: Scored,
        negatives: Scored,
        is_label: tf.Tensor,
        hits: tf.Tensor,
        label_slots: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Per-example loss [N] from scored positives and candidates.

        Args:
            positives: ``Scored`` [N, P].
            negatives: ``Scored`` [N, S]; empty slots have logit ``MASKED_LOGIT``.
            is_label: bool [N, P], False on padding.
            hits: int32 [N, S], the column of the positive that a candidate equals, -1 for none.
            label_slots: None, or float32 [N, P], the slots in which a positive would stand, were it not one.
        """
        folded = self.fold_candidates(negatives, hits)
        return self.with_candidates(positives, folded, is_label, label_slots)

    def fold_candidates(self, negatives: Scored, hits: tf.Tensor) -> tf.Tensor:
        """What ``with_candidates`` takes of scored candidates, float32 [N, 1]; arguments as there."""
        raise NotImplementedError(
            f"{type(self).__name__} defines neither sampled(...) nor fold_candidates(negatives, hits)."
        )

    def with_candidates(
        self, positives: Scored, folded: tf.Tensor, is_label: tf.Tensor, label_slots: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Per-example loss [N] from scored positives and the fold [N, 1] of all candidates."""
        raise NotImplementedError(
            f"{type(self).__name__} does not define with_candidates(positives, folded, is_label)."
        )


def _depth(cls, name):
    """How far up among a class and those it inherits from a name stands; beyond them all if nowhere."""
    places = [i for i, base in enumerate(cls.__mro__) if name in vars(base)]
    return min(places, default=len(cls.__mro__))


def mean_over_labels(terms, is_label):
    """Mean of terms [N, P] over the positives of each example; 0 where there is none."""
    mask = tf.cast(is_label, terms.dtype)
    return tf.math.divide_no_nan(tf.reduce_sum(terms * mask, 1), tf.reduce_sum(mask, 1))
