"""What every loss has in common: a ``Reduction`` over all classes, and a part of the positives' logits."""

import re
from typing import Literal

import tensorflow as tf

from tfxc._keras import keras
from tfxc._keras.training import COMPILED_LOSS_IS_A_SHARE, compiled_labels
from tfxc.labels import labelled_queries
from tfxc.losses.reductions import CandidateReduction, Reduction
from tfxc.scored import Scored


class ClassificationLoss(keras.losses.Loss):
    """Base of the losses on class ids and logits, over all classes or over sampled candidates.

    A subclass says what it sums over all classes, ``over_classes``, and defines ``combine``. To train with a
    sampler it says how it sums candidates, ``over_candidates``, and defines ``with_candidates``; or it leaves
    ``over_candidates`` None and defines ``sampled``, which gets the scores of all candidates at once.

    Args:
        reduction: "sum_over_batch_size" (over the examples), "sum" or "none".
        name: name of the loss; by default that of its class, in lower case with underscores.
        dtype: of the result; by default float32, in which everything is computed.

    Call arguments:
        y_true: integer ids [N] in [0, L), or [N, P] padded with -1.
        y_pred: logits [N, L].

    Raises:
        TypeError: for a subclass that defines ``sampled`` where its base class sums candidates.
        ValueError: if labels are not integers, or of a shape that does not fit the logits.
        tf.errors.InvalidArgumentError: for an id outside [0, L).

    Example:
        >>> class Hinge(ClassificationLoss):  # for one label: Σ_j max(0, 1 + o_j) − max(0, 1 + o_y) − o_y
        ...     over_classes = tfxc.losses.sum_of(
        ...         lambda logits: tf.nn.relu(1 + logits), lambda logits: tf.cast(logits > -1, tf.float32))
        ...
        ...     def combine(self, reduced, positives, is_label):
        ...         return reduced - tf.nn.relu(1 + positives[:, 0]) - positives[:, 0]
        >>> float(Hinge()(tf.constant([1]), tf.constant([[-2.0, 1.0, 0.5]])))
        0.5
    """

    # How the scores of candidates are summed; None for a loss that defines ``sampled``.
    over_candidates: CandidateReduction | None = None
    # Whether the loss trains with a sampler only.
    needs_sampler = False
    # Whether several labels share one unit of probability; else each of them applies or does not.
    labels_share_probability = False
    # Whether the term of a label leaves out the example's other labels.
    decoupled = False
    # The probability below which a head may leave out a class's gradient over all classes; None: never.
    filter_below: float | None = None

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        for name, kind in (("over_classes", "Reduction"), ("over_candidates", "CandidateReduction")):
            if callable(vars(cls).get(name)):
                raise TypeError(f"{cls.__name__}.{name} is a function: make a tfxc.losses.{kind} of it.")
        if "sampled" in vars(cls) and "over_candidates" not in vars(cls) and cls.over_candidates is not None:
            raise TypeError(
                f"{cls.__name__} defines sampled(...), but a training step would not call it: the class that "
                "it inherits from sums candidates by over_candidates. Set over_candidates = None beside it."
            )

    def __init__(
        self,
        reduction: Literal["sum_over_batch_size", "sum", "none"] = "sum_over_batch_size",
        name: str | None = None,
        dtype=None,
    ) -> None:
        name = name or re.sub("(?<=[a-z])(?=[A-Z])", "_", type(self).__name__).lower()
        super().__init__(reduction=reduction, name=name)
        if reduction == "mean_with_sample_weight":
            raise ValueError(
                'reduction="mean_with_sample_weight" is not supported: scale the weights to a mean of 1.'
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
            y_pred: logits [N, L], or [B, T, L] of sequences; positions that are masked or have no label do
                not count.
            sample_weight: None, [N] or, for sequences, [B] or [B, T].
        """
        # Keras would cast the ids to floats, which cannot hold ids above 2^24.
        value = self.reduce(*self._per_example(y_true, y_pred, sample_weight))
        return self.share(value) if COMPILED_LOSS_IS_A_SHARE else value

    def _per_example(self, y_true, y_pred, sample_weight=None):
        """Losses [N] and weights [N] or None."""
        if isinstance(y_pred, dict):
            raise ValueError(
                "A loss takes the logits of all classes, but got the best ones of an ExtremeClassifier: "
                "compute tfxc.head_loss(model.head, loss, model.encoder(x), y, model.sampler)."
            )
        y_pred = tf.convert_to_tensor(y_pred)
        num_classes = y_pred.shape[-1] or tf.shape(y_pred, out_type=tf.int64)[-1]
        labels = compiled_labels(y_true)
        logits, labels, sample_weight, _ = labelled_queries(y_pred, labels, num_classes, sample_weight)
        logits = tf.cast(logits, tf.float32)
        return self.combine(*self.reduce_logits(logits, labels), labels >= 0), sample_weight

    def reduce_logits(self, logits: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The reduction [N] of all logits [N, L] at once, and the logits [N, P] of labels [N, P]."""
        positives = tf.gather(logits, tf.maximum(labels, 0), batch_dims=1)
        return self.over_classes.of(logits), tf.where(labels >= 0, positives, 0.0)

    def reduce(self, losses: tf.Tensor, sample_weight=None) -> tf.Tensor:
        """The scalar (or, with reduction "none", vector) loss from per-example losses [N].

        As in Keras, "sum_over_batch_size" divides by the number of examples, not by the sum of weights.
        """
        if losses is None or losses.shape.rank not in (1, None):  # each would be multiplied with each weight
            raise ValueError(
                f"{type(self).__name__} must give a loss for each example, [N], but gave "
                f"{losses if losses is None else losses.shape}: see combine, sampled and with_candidates."
            )
        if sample_weight is not None:
            losses *= tf.cast(tf.reshape(sample_weight, [-1]), losses.dtype)
        value = losses if self.reduction in ("none", None) else tf.reduce_sum(losses)
        if self.reduction not in ("none", None, "sum"):
            value = tf.math.divide_no_nan(value, tf.cast(tf.size(losses), value.dtype))
        # The sum, the number of examples or a weight may be too large for the dtype of the result.
        return value if self.result_dtype is None else tf.cast(value, self.result_dtype)

    def share(self, value: tf.Tensor) -> tf.Tensor:
        """The part of the whole loss that a replica's reduced loss stands for, where gradients are summed."""
        if self.reduction in ("sum", "none", None):
            return value
        return value / tf.distribute.get_strategy().num_replicas_in_sync

    def across_replicas(self, value: tf.Tensor) -> tf.Tensor:
        """A replica's reduced loss, scaled such that the mean over replicas is the whole loss."""
        if self.reduction != "sum":
            return value
        return value * tf.distribute.get_strategy().num_replicas_in_sync

    @property
    def over_classes(self) -> Reduction:
        """What the loss sums over all classes."""
        raise NotImplementedError(
            f"{type(self).__name__} does not define over_classes, the tfxc.losses.Reduction over all classes."
        )

    def combine(self, reduced: tf.Tensor, positives: tf.Tensor, is_label: tf.Tensor) -> tf.Tensor:
        """Per-example loss [N] from the reduction and the positives' logits [N, P] where is_label."""
        raise NotImplementedError(
            f"{type(self).__name__} does not define combine(reduced, positives, is_label)."
        )

    def sampled(
        self,
        positives: Scored,
        negatives: Scored,
        is_label: tf.Tensor,
        hits: tf.Tensor,
        label_slots: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Per-example loss [N] from positives [N, P] and candidates [N, S], ``Scored`` both.

        Empty slots of candidates have logit ``MASKED_LOGIT``. ``is_label`` bool [N, P] is False on padding;
        ``hits`` int32 [N, S] has the column of the positive that a candidate equals, -1 for none;
        ``label_slots`` is None, or float32 [N, P]: how many slots a positive would fill, had the sampler not
        passed over it as a label.
        """
        if self.over_candidates is None:
            raise NotImplementedError(f"{type(self).__name__} defines neither sampled nor over_candidates.")
        folded = self.over_candidates.of(negatives, hits)
        return self.with_candidates(positives, folded, is_label, label_slots)

    def with_candidates(
        self, positives: Scored, folded: tf.Tensor, is_label: tf.Tensor, label_slots: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Per-example loss [N] from scored positives and the fold [N, 1] of all candidates."""
        raise NotImplementedError(
            f"{type(self).__name__} does not define with_candidates(positives, folded, is_label, ...)."
        )


def mean_over_labels(terms, is_label):
    """Mean of terms [N, P] over the positives of each example; 0 where there is none."""
    total = tf.reduce_sum(tf.where(is_label, terms, 0.0), 1)
    return tf.math.divide_no_nan(total, tf.reduce_sum(tf.cast(is_label, terms.dtype), 1))
