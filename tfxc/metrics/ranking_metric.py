"""The base of ranking metrics: turns ranked ids and labels into a weighted mean over examples."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfxc._keras import keras
from tfxc._keras.layers import mask_of
from tfxc._keras.training import Directed, compiled_labels
from tfxc._keras.weights import tf_variable
from tfxc.arguments import one_of, positive_int
from tfxc.ids import check_ids, drop_duplicates
from tfxc.infinity import infinity_is_meant
from tfxc.labels import flatten_examples, one_for_each, pad_labels_of, refuse_one_hot_rows, tensor_of_labels
from tfxc.metrics.groups import class_groups, config_of, groups_after, of_each_group
from tfxc.metrics.ties import in_random_order, mostly_tied, warn_of_ties


def unique_positives(labels):
    """Returns labels [N] or [N, P] as sorted int64 [N, P + 1], with repeats and padding replaced by -1."""
    labels = tf.maximum(tf.cast(labels, tf.int64), -1)
    labels = tf.sort(labels[:, tf.newaxis] if labels.shape.rank == 1 else labels, axis=1)
    # A first column of -1 gives the first label a neighbour, and examples without labels an entry.
    labels = tf.pad(labels, [[0, 0], [1, 0]], constant_values=-1)
    # By ``tf.equal``: in a graph that does not know the sizes, ``==`` loses the rank.
    repeats = tf.pad(tf.equal(labels[:, 1:], labels[:, :-1]), [[0, 0], [1, 0]])
    return tf.sort(tf.where(repeats, tf.constant(-1, tf.int64), labels), axis=1)


def num_positives(labels):
    """Returns the number [N] of `unique_positives`, at least 1 so that one can divide by it."""
    return tf.maximum(tf.reduce_sum(tf.cast(labels >= 0, tf.int32), axis=1), 1)


def seed_of(count):
    """A seed of two integers, another one for each batch, as the count of what a metric has seen changes."""
    return tf.stack([0, tf.bitcast(tf.cast(count, tf.float32), tf.int32)])


@infinity_is_meant()
def ranked_ids(scores_or_ids, k: int, seed=None):
    """Returns the k best class ids [N, k] int64 of ranked ids [N, R], R >= k, or of full scores [N, L].

    If L < k, all classes are ranked. A class with score -inf or NaN is not ranked: its slot holds -1. With a
    seed, two integers, equal scores rank in random order; without one, the lower id comes first.
    """
    if scores_or_ids.dtype.is_integer:
        return tf.cast(scores_or_ids[:, :k], tf.int64)
    narrow = scores_or_ids.dtype.size < tf.float32.size
    scores = tf.cast(scores_or_ids, tf.float32) if narrow else scores_or_ids
    scores = tf.where(tf.math.is_nan(scores), tf.constant(-float("inf"), scores.dtype), scores)
    num_classes = tf.shape(scores)[1]
    k, given = tf.minimum(k, num_classes), tf.math.top_k(scores, tf.minimum(k + 1, num_classes))
    best, ids = (part[:, :k] for part in given)
    if seed is not None:
        is_tied = (given[0][:, 1:] == given[0][:, :-1]) & (given[0][:, 1:] > float("-inf"))
        shuffled = lambda: in_random_order(scores, k, seed)  # noqa: E731
        best, ids = tf.cond(tf.reduce_any(is_tied), shuffled, lambda: (best, ids))
    return tf.cast(tf.where(tf.math.is_inf(best) & (best < 0), -1, ids), tf.int64)


def relevance(ids: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns [N, k] float32: 1 for a ranked id that is a positive, and 0 otherwise.

    An id ranked twice counts once. An empty slot, -1, counts 0.

    Args:
        ids: [N, k] int64, best first, as `RankingMetric.per_example` receives them.
        labels: [N, P] int64, ascending after the padding with -1, as `per_example` receives them.

    Example:
        >>> labels = tf.constant([[-1, 3, 5]], tf.int64)
        >>> relevance(tf.constant([[5, 4, 5, -1]], tf.int64), labels).numpy().tolist()
        [[1.0, 0.0, 0.0, 0.0]]
    """
    ids, last = drop_duplicates(ids), tf.shape(labels)[1] - 1
    nearest = tf.minimum(tf.searchsorted(labels, ids), last)
    hit = tf.equal(tf.gather(labels, nearest, batch_dims=1), ids) & (ids >= 0)
    return tf.cast(hit, tf.float32)


def flat_examples(y_true, y_pred, sample_weight=None):
    """Labels, predictions [N, ...] and weights of `update_state`; of sequences, where positions count."""
    y_true = compiled_labels(tensor_of_labels(y_true))
    if isinstance(y_pred, dict):
        if tf.executing_eagerly() and "scores" in y_pred and np.size(y_pred["ids"]):
            both = y_pred["scores"], y_pred["ids"]
            warn_of_ties(np.mean(mostly_tied(*(tf.reshape(own, [-1, own.shape[-1]]) for own in both))))
        y_pred = y_pred["ids"]
    y_pred = tf.convert_to_tensor(y_pred)
    if isinstance(y_true, tf.RaggedTensor | tf.SparseTensor):
        y_true = pad_labels_of(y_pred, y_true)
    if y_pred.shape.rank == 3:
        y_pred, y_true, sample_weight, _ = flatten_examples(y_pred, y_true, sample_weight, mask_of(y_pred))
    elif sample_weight is not None:
        # Keras may pass [N] as [N, 1].
        wanted = "sample_weight must hold a number for each example, [N] or [N, 1]"
        sample_weight = one_for_each(y_pred, tf.reshape(sample_weight, [-1]), wanted)
    return y_true, y_pred, sample_weight


def check_ranked(metric, y_pred):
    """Refuses predictions that are neither scores nor ranked ids [N, R], of at least the metric's k."""
    if y_pred.shape.rank != 2 or not (y_pred.dtype.is_integer or y_pred.dtype.is_floating):
        raise ValueError(
            f"{metric.name} needs ranked integer ids [N, R] or float scores [N, L], but y_pred is "
            f"{y_pred.dtype.name} of shape {y_pred.shape}."
        )
    if y_pred.dtype.is_integer:
        message = (
            f"{metric.name} needs at least {metric.k} ranked ids per example, but y_pred is of shape "
            f"{y_pred.shape}: let the model rank k={metric.k} or more, or give the metric a smaller k."
        )
        if y_pred.shape[1] is None:
            tf.debugging.assert_greater_equal(tf.shape(y_pred)[1], metric.k, message)
        elif y_pred.shape[1] < metric.k:
            raise ValueError(message)


class RankingMetric(Directed, keras.metrics.Mean):
    """Weighted mean of a value per example that depends on its positives and its k best classes.

    A subclass defines `abbreviation`, the start of its default name, and `per_example`. If less is better, it
    also sets `higher_is_better = False`, which callbacks read.

    Args:
        k: the number of ranked ids that count, at least 1. A model reads it to rank enough classes.
        average: over the "labelled" examples, those with a positive; or over "all", where an example without
            a positive counts 0, as in the Extreme Classification Repository. Positions of sequences without
            a label are masked and never count.
        name: default the abbreviation and k, as in `ndcg_at_10`.
        dtype: of the result.
        by: None, or the group of each class, [L] strings or integers (-1: in none), or `ClassGroups`. The
            result is then a dict that holds the metric itself, and as `recall_at_10/<group>` what it is if
            the labels of that group were the only ones; NaN where no example has one.

    Raises:
        ValueError: for a k below 1, another average, groups with average "all", or `by` of another form.
        tf.errors.InvalidArgumentError: with groups, in `update_state`, for a label outside [-1, L).

    Example:
        >>> class FirstHitAtK(tfxc.metrics.RankingMetric):
        ...     abbreviation = "first_hit"
        ...
        ...     def per_example(self, labels, ids):
        ...         return tfxc.metrics.relevance(ids, labels)[:, 0]
        >>> metric = FirstHitAtK(2)
        >>> metric.update_state([4, 5], [[4, 5], [4, 5]])
        >>> metric.name, float(metric.result())
        ('first_hit_at_2', 0.5)
    """

    abbreviation = ""

    def __init__(
        self, k: int = 10, average: str = "labelled", name: str | None = None, dtype=None, by=None
    ) -> None:
        self.k = positive_int(k, "k")
        super().__init__(name=name or f"{self.abbreviation}_at_{self.k}", dtype=dtype)
        self.average = one_of(average, "average", ("labelled", "all"))
        self.by = None if by is None else class_groups(by)
        # L if the metric is made for so many classes, else None.
        self.num_classes: int | None = None if self.by is None else len(self.by.ids)
        if self.by is None:
            return
        if average == "all":
            raise ValueError('Groups of classes need average="labelled": examples without a label have none.')
        # One tensor, as every trace would hold its own copies of a NumPy array.
        self._groups, shape = tf.constant(self.by.ids), (len(self.by.names),)
        self._group_total = self.add_weight(name="group_total", shape=shape, initializer="zeros")
        self._group_count = self.add_weight(name="group_count", shape=shape, initializer="zeros")

    def per_example(self, labels: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        """Returns values [N] float32 for distinct positives and ranked ids.

        Labels [N, P] int64 ascend after the padding with -1. Ids [N, k] int64 are best first, -1 for an empty
        slot, and narrower with fewer than k classes.
        """
        raise NotImplementedError(f"{type(self).__name__} must define per_example.")

    def example_weights(self, labels: tf.Tensor) -> tf.Tensor:
        """Returns the weight of each example in the mean, [N] float32; `labels` as in `per_example`."""
        if self.average == "all":
            return tf.ones(tf.shape(labels)[:1])
        return tf.cast(tf.reduce_any(labels >= 0, axis=1), tf.float32)

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Adds a batch.

        Args:
            y_true: class ids of the positives, integers [N] or [N, P], padded with -1, ragged or sparse. A
                repeated positive counts once, an example without positives as `average` says.
            y_pred: ranked class ids, integers [N, R] with R >= k, best first, -1 for an empty slot, or the
                dict that ``predict`` returns; or the scores of all classes, floats [N, L], of which equal
                ones rank in random order, the same in each run. For sequences either may be [B, T, ...], with
                y_true [B, T] or [B, T, P]: masked positions and those without a label do not count. Ragged or
                sparse labels may end before position T.
            sample_weight: None, [N] or, for sequences, [B] or [B, T].

        Raises:
            ValueError: for labels that are not integers, other shapes, or too few ranked ids.
            tf.errors.InvalidArgumentError: for one-hot or multi-hot rows; with scores, for a label outside
                [-1, L).
        """
        y_true, y_pred, sample_weight = flat_examples(y_true, y_pred, sample_weight)
        labels, ids = self._ranked(y_true, y_pred)
        values, weight = self._of_each(labels, ids)
        if sample_weight is not None:
            weight *= tf.cast(sample_weight, values.dtype)
        super().update_state(values, sample_weight=weight)
        if self.by is None:
            return
        rows, groups, labels = of_each_group(labels, self._groups)
        values, weight = self._of_each(labels, tf.gather(ids, rows))
        if sample_weight is not None:
            weight *= tf.cast(tf.gather(sample_weight, rows), values.dtype)
        for variable, added in ((self._group_total, values * weight), (self._group_count, weight)):
            added = tf.math.unsorted_segment_sum(added, groups, len(self.by.names))
            variable.assign_add(tf.cast(added, variable.dtype))

    @infinity_is_meant()
    def result(self):
        """Returns the mean, a scalar; with groups a dict, see ``by``."""
        mean = super().result()
        if self.by is None:
            return mean
        of_groups = tf_variable(self._group_total) / tf_variable(self._group_count)
        names = [f"{self.name}/{group}" for group in self.by.names]
        return {self.name: mean, **dict(zip(names, tf.unstack(of_groups), strict=True))}

    def values(self, y_true, y_pred) -> tf.Tensor:
        """Returns the value of each example, for example to compare users. The state does not change.

        Arguments are as for ``update_state``. The values are floats [N], NaN for an example that does not
        count; for sequences one for each position that counts.

        Example:
            >>> tfxc.metrics.RecallAtK(2).values([[4, 5], [7, -1]], [[4, 9], [1, 7]]).numpy().tolist()
            [0.5, 1.0]
        """
        values, weight = self._of_each(*self._ranked(*flat_examples(y_true, y_pred)[:2]))
        return tf.where(weight > 0, values, tf.constant(float("nan"), values.dtype))

    def _ranked(self, y_true, y_pred):
        """Returns labels [N, P] and ids [N, k], as of ``per_example``, for what ``flat_examples`` returns."""
        if not y_true.dtype.is_integer or y_true.shape.rank not in (1, 2):
            raise ValueError(
                f"{self.name} needs labels as integer class ids [N] or [N, P] padded with -1, but y_true is "
                f"{y_true.dtype.name} of shape {y_true.shape}."
            )
        check_ranked(self, y_pred)
        if not y_true.shape[:1].is_compatible_with(y_pred.shape[:1]):
            raise ValueError(f"{self.name} got {y_true.shape[0]} labels for {y_pred.shape[0]} predictions.")
        if y_pred.dtype.is_floating:  # ranked ids do not tell the number of classes
            num_classes = y_pred.shape[1] or tf.shape(y_pred, out_type=tf.int64)[1]
            y_true = check_ids(y_true, num_classes)
        else:  # distinct ids, more than two, are not all 0 or 1
            num_classes = y_true.shape[-1] or tf.shape(y_true, out_type=tf.int64)[-1]
        if y_true.shape.rank == 2:
            y_true = refuse_one_hot_rows(y_true, num_classes)
        return unique_positives(y_true), ranked_ids(y_pred, self.k, seed_of(tf_variable(self.count)))

    def _of_each(self, labels, ids):
        """Returns values and weights [N] for what ``_ranked`` returns."""
        values = self.per_example(labels, ids)
        if values is None or (values := tf.convert_to_tensor(values)).shape.rank not in (1, None):
            raise ValueError(
                f"{type(self).__name__}.per_example must return a value for each example, [N], but returned "
                f"{values if values is None else values.shape}."
            )
        return values, tf.cast(self.example_weights(labels), values.dtype)

    def get_config(self):
        by = {} if self.by is None else {"by": config_of(self.by)}
        return {**super().get_config(), "k": self.k, "average": self.average, **by}

    def config_for(self, old_ids: np.ndarray) -> dict[str, Any]:
        """Returns the config for other classes, see ``Head.config_for``; a new one is in no group."""
        by = {} if self.by is None else {"by": config_of(groups_after(self.by, old_ids))}
        return {**self.get_config(), **by}
