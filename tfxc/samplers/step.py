"""What a training step asks a sampler, and what the sampler answers."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfxc.infinity import infinity_is_meant


class Step(NamedTuple):
    """What a training step asks a sampler.

    Args:
        query: effective queries float32 [N, D], of the head's ``effective_query``.
        labels: positives int32 [N, P], padded with -1.
        example_ids: None, or integers [N].
        score: None, or a function of class ids [N, S] or [S] to the logits [N, S] that the head gives them,
            without a gradient. A head that caches class vectors answers from its cache.
        class_vectors: None, or a function of class ids [n] to the head's effective class vectors [n, D],
            without a gradient.
        encoder_query: None, or the queries [N, D'] as the encoder gave them.
        approximate: whether inner products of queries and class vectors only come near to the logits.
        all_queries: None, or the queries [N, D] whose mean is the query [1, D] of a sampler of shared draws.

    Example:
        >>> step = Step(query=tf.zeros([2, 8]), labels=tf.constant([[3], [5]]))
        >>> step.example_ids is None
        True
    """

    query: tf.Tensor
    labels: tf.Tensor
    example_ids: tf.Tensor | None = None
    score: Callable | None = None
    class_vectors: Callable | None = None
    encoder_query: tf.Tensor | None = None
    approximate: bool = False
    all_queries: tf.Tensor | None = None

    def seen_by(self, sampler) -> "Step":
        """The step as the methods of a sampler see it: the query carries no gradient.

        A sampler of shared draws sees one query, the mean of all (0 if there is none), with all labels in its
        row; and beside it all of them.
        """
        query = tf.stop_gradient(self.query)
        if sampler.shared:
            labels = tf.reshape(self.labels, [1, -1])
            every = query if self.all_queries is None else self.all_queries  # of a part of a Mixture
            return Step(mean_query(query), labels, approximate=self.approximate, all_queries=every)
        return self._replace(query=query)


class PoolCounts(NamedTuple):
    """Log expected counts [N, S] of a pool of candidates that queries bring along, in N + 2 S numbers.

    ``log num_draws[n] + log_prob[s]``; +inf where query n has brought slot s itself, which is empty for it.
    ``tf.convert_to_tensor`` gives them all, and so do ops of TensorFlow.

    Args:
        num_draws: float32 [N, 1], how many draws of the others each query sees.
        log_prob: float32 [S], log Q of each candidate.
        owner: int32 [S], the query that has brought it.

    Example:
        >>> counts = PoolCounts(tf.constant([[1.0], [2.0]]), tf.math.log([0.5, 0.25]), tf.constant([0, 1]))
        >>> tf.exp(counts).numpy().round(3).tolist()
        [[inf, 0.25], [1.0, inf]]
        >>> tf.exp(counts.of(tf.constant([1]))).numpy().round(3).tolist()
        [[1.0, inf]]
    """

    num_draws: tf.Tensor
    log_prob: tf.Tensor
    owner: tf.Tensor

    @property
    def shape(self) -> tf.TensorShape:
        """[N, S]."""
        return self.num_draws.shape[:1].concatenate(self.log_prob.shape)

    def of(self, rows: tf.Tensor) -> tf.Tensor:
        """Those of some queries, float32 [n, S] of int32 [n]."""
        rows = rows[:, tf.newaxis]
        with infinity_is_meant():
            counts = tf.math.log(tf.gather_nd(self.num_draws, rows)) + self.log_prob
            return tf.where(tf.equal(self.owner, rows), float("inf"), counts)

    def __array__(self, dtype=None, copy=None):
        """NumPy calls this; it would make an array of the three parts."""
        return np.asarray(tf.convert_to_tensor(self), dtype)

    def __tf_tensor__(self, dtype=None, name=None):
        """TensorFlow calls this wherever it takes a tensor."""
        return tf.convert_to_tensor(self.of(tf.range(tf.size(self.num_draws))), dtype, name=name)


class Draw(NamedTuple):
    """What a sampler answers: the candidates, and how often candidates and labels were expected.

    The count of a class is how often it is expected among the step's draws: ``log S + log Q(i|z)`` for S
    draws with replacement from Q, 0 for a class that is always there. Draws run over all classes, and
    one that hits a label is a genuine draw like any other. A slot is empty where its id is -1, or, where
    the ids are shared, for the queries at which its log count is +inf.

    Args:
        ids: int32 [N, S], or [S] shared by all queries.
        log_expected_count: float32 of the shape of the ids, or [N, S], or ``PoolCounts``.
        label_log_expected_count: float32 [N, P]; anything on padding. -inf for a label that is never drawn.
        label_slots: None, or float32 [N, P] of a sampler with candidates that are always there: the number of
            their slots that a label would fill if the sampler did not pass over labels.

    Example:
        >>> sampler = tfxc.samplers.Uniform(3, seed=1)
        >>> sampler.build((100, 8))
        >>> draw = sampler.sample(Step(query=tf.zeros([2, 8]), labels=tf.constant([[3], [5]])))
        >>> draw.ids.shape, round(float(tf.exp(draw.label_log_expected_count[1, 0])), 4)
        (TensorShape([2, 3]), 0.03)
    """

    ids: tf.Tensor
    log_expected_count: tf.Tensor | PoolCounts
    label_log_expected_count: tf.Tensor
    label_slots: tf.Tensor | None = None


class Question:
    """A step put to a sampler, which prepares for it once and answers in the shapes of the step.

    Args:
        sampler, step: a built ``Sampler`` and the ``Step``.

    Raises:
        ValueError: if the sampler is not built, needs what the step does not have, or knows no counts.

    Example:
        >>> sampler = tfxc.samplers.Uniform(2, shared=True, seed=1)
        >>> sampler.build((10, 4))
        >>> question = Question(sampler, Step(tf.zeros([3, 4]), tf.zeros([3, 1], tf.int32)))
        >>> question.draw()[0].shape, question.log_expected_count(tf.zeros([3, 1], tf.int32)).shape
        (TensorShape([2]), TensorShape([3, 1]))
    """

    def __init__(self, sampler, step: Step) -> None:
        require_built(sampler)
        self._sampler = sampler
        self._num_queries = tf.shape(step.query)[0]
        self._given = sampler.prepare(step.seen_by(sampler))

    def draw(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Candidates int32 [N, S] or [S], and their log expected counts."""
        answer = self._sampler.draw(self._given, self._sampler.next_seed())
        if not isinstance(answer, list | tuple) or len(answer) not in (2, 3):
            raise ValueError(
                f"{type(self._sampler).__name__}.draw must return candidate ids [N, S] and their log "
                f"expected counts [N, S], but returned {type(answer).__name__}."
            )
        ids, log_expected_count, *known = answer
        if known:
            (self._given,) = known
        ids = tf.convert_to_tensor(ids)
        ranks = (2, None) if self._sampler.shared else (1, 2, None)
        if ids.dtype != tf.int32 or ids.shape.rank not in ranks:
            raise ValueError(
                f"{type(self._sampler).__name__}.draw must return int32 class ids [N, S], by tf.cast(ids, "
                f"tf.int32), but returned {ids.dtype.name} of shape {ids.shape}."
            )
        if not isinstance(log_expected_count, PoolCounts):
            log_expected_count = self._check("draw", log_expected_count, ids)
        return (ids[0], log_expected_count[0]) if self._sampler.shared else (ids, log_expected_count)

    def log_expected_count(self, ids) -> tf.Tensor:
        """Log expected counts float32 of class ids [N, P], or [P] for all queries; anything for id -1."""
        ids = tf.maximum(ids, 0)
        if self._sampler.shared:
            return tf.reshape(self._log_expected_count(tf.reshape(ids, [1, -1])), tf.shape(ids))
        if ids.shape.rank == 1:
            ids = tf.broadcast_to(ids, [self._num_queries, tf.size(ids)])
        return self._log_expected_count(ids)

    def _log_expected_count(self, ids):
        return self._check("log_expected_count", self._sampler.log_expected_count(self._given, ids), ids)

    def _check(self, method, log_expected_count, ids):
        """Returns the counts as float32; refuses a shape that a loss would broadcast against the scores."""
        log_expected_count = tf.cast(log_expected_count, tf.float32)
        rank = ids.shape.rank  # candidates [S] of all queries may have counts [N, S]
        if rank and not log_expected_count.shape[-rank:].is_compatible_with(ids.shape):
            raise ValueError(
                f"{type(self._sampler).__name__}.{method} must give a log expected count for each of the ids "
                f"{ids.shape}, but gave {log_expected_count.shape}."
            )
        return log_expected_count

    def label_slots(self, labels) -> tf.Tensor | None:
        """None, or float32 [N, P], as in a ``Draw``."""
        return self._sampler.label_slots(self._given, labels)


def require_built(sampler):
    """Raises ValueError for a sampler that is not built."""
    if not sampler.built:
        raise ValueError(
            f"{type(sampler).__name__} is not built yet: call sampler.build((num_classes, query_dim)), the "
            "width of the effective queries; an ExtremeClassifier and head_loss do so."
        )


def mean_query(query):
    """The mean [1, D] of queries [N, D], 0 if there is none."""
    num_queries = tf.cast(tf.maximum(tf.shape(query)[0], 1), query.dtype)
    return tf.reduce_sum(query, 0, keepdims=True) / num_queries
