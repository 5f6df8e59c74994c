"""What a loss sums over all classes, which heads stream in blocks, and over candidates in their place."""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfxc.scored import MASKED_LOGIT, Scored


class Reduction(NamedTuple):
    """A number for each query that is made of the logits of all classes, one block after the other.

    Args:
        init: function of the number of queries N to the state before any class: a tensor, or a nest of them.
        update: function of a state and the next logits [N, b] to the state after them.
        finish: function of the last state to the reduction float32 [N], or [N, C] of C numbers.
        gradient: function of the reduction and a block of logits [N, b] to the gradient [N, b], or [N, b, C],
            of the reduction by these logits.
        merge: function of a list of the reductions of several parts of the classes to that of all of them, or
            None, and then the loss does not train over all classes in a cluster.
        kernel: the name by which the compiled ops know the reduction, or None, and then heads compute it in
            blocks of logits.

    Example:
        >>> state = LOGSUMEXP.init(1)
        >>> for block in ([[0.0, 0.0]], [[0.0, 0.0]]):  # four classes in two blocks
        ...     state = LOGSUMEXP.update(state, tf.constant(block))
        >>> round(float(LOGSUMEXP.finish(state)[0]), 4)
        1.3863
    """

    init: Callable[..., Any]
    update: Callable[[Any, tf.Tensor], Any]
    finish: Callable[[Any], tf.Tensor]
    gradient: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    merge: Callable[[list], tf.Tensor] | None = None
    kernel: str | None = None

    def of(self, logits: tf.Tensor) -> tf.Tensor:
        """The reduction [N] of all logits [N, L] at once."""
        return self.finish(self.update(self.init(tf.shape(logits)[0]), logits))


class CandidateReduction(NamedTuple):
    """A number for each query that is made of its scored candidates.

    Args:
        fold: function of ``Scored`` [N, S] to float32 [N, 1]; the logit of an empty slot is ``MASKED_LOGIT``.
        merge: function of a list of the folds of several parts of the candidates to that of all of them, or
            None, and then a cluster brings the candidates of its machines together.
        without_hits: whether candidates that equal a label of their query are left out.
        kernel: the name by which a head's compiled op knows the fold, or None.

    Example:
        >>> largest = CandidateReduction(lambda scored: tf.reduce_max(scored.logits, 1, keepdims=True))
        >>> candidates = Scored(tf.constant([[0.0, 2.0]]), tf.zeros([1, 2]))
        >>> float(largest.of(candidates, hits=tf.constant([[-1, -1]]))[0, 0])
        2.0
    """

    fold: Callable[[Scored], tf.Tensor]
    merge: Callable[[list], tf.Tensor] | None = None
    without_hits: bool = False
    kernel: str | None = None

    def of(self, candidates: Scored, hits: tf.Tensor) -> tf.Tensor:
        """The fold [N, 1] of candidates, ``hits`` int32 [N, S] being -1 for those that equal no label."""
        folded = self.fold(candidates.without(hits >= 0) if self.without_hits else candidates)
        if not folded.shape.is_compatible_with([None, 1]):
            raise ValueError(f"A fold must give [N, 1], as by keepdims=True, but gave {folded.shape}.")
        return folded


def sum_of(
    term: Callable[[tf.Tensor], tf.Tensor],
    derivative: Callable[[tf.Tensor], tf.Tensor],
    kernel: str | None = None,
) -> Reduction:
    """The reduction ``Σ_j term(o_j)``, which takes each class on its own.

    The term and its derivative are elementwise functions of logits; the kernel is as of ``Reduction``.

    Example:
        >>> sum_of(tf.square, lambda logits: 2 * logits).of(tf.constant([[1.0, 3.0]])).numpy().tolist()
        [10.0]
    """
    return Reduction(
        init=lambda num_queries: tf.zeros([num_queries]),
        update=lambda total, logits: total + tf.reduce_sum(term(logits), 1),
        finish=lambda total: total,
        gradient=lambda reduced, logits: derivative(logits),
        merge=lambda parts: tf.add_n(list(parts)),
        kernel=kernel,
    )


def weighted_sum_of(term: Callable[[tf.Tensor], tf.Tensor]) -> CandidateReduction:
    """The reduction ``Σ_s term(o_s) / e_s`` over candidates s that equal no label, e_s their expected counts.

    It is an unbiased estimate of the sum of ``term`` over all classes that are no labels.

    Args:
        term: elementwise function of logits, 0 at ``MASKED_LOGIT``.

    Example:
        >>> half_of_all = Scored(tf.constant([[1.0, 3.0]]), tf.math.log([[0.5, 0.5]]))
        >>> float(weighted_sum_of(tf.nn.relu).of(half_of_all, hits=tf.constant([[-1, -1]]))[0, 0])
        8.0
    """

    def fold(candidates):
        drawn = tf.exp(-candidates.log_expected_count) * term(candidates.logits)
        return tf.reduce_sum(drawn, 1, keepdims=True)

    return CandidateReduction(fold, lambda parts: tf.add_n(list(parts)), without_hits=True)


def _next_log_sum(state, logits):
    largest, total = state
    new = tf.stop_gradient(tf.maximum(largest, tf.reduce_max(logits, 1)))
    new = tf.minimum(new, -MASKED_LOGIT)  # infinity less itself is NaN
    return new, total * tf.exp(largest - new) + tf.reduce_sum(tf.exp(logits - new[:, tf.newaxis]), 1)


def squared_hinge(logits: tf.Tensor) -> tf.Tensor:
    """What a negative loses, ``max(0, 1 + o)²``."""
    return tf.square(tf.nn.relu(1.0 + logits))


# log Σ_j exp(o_j). The state is the largest logit and the sum relative to it.
LOGSUMEXP = Reduction(
    init=lambda num_queries: (tf.fill([num_queries], MASKED_LOGIT), tf.zeros([num_queries])),
    update=_next_log_sum,
    finish=lambda state: state[0] + tf.math.log(state[1]),
    gradient=lambda reduced, logits: tf.exp(logits - reduced[:, tf.newaxis]),
    merge=lambda parts: tf.reduce_logsumexp(tf.stack(parts), 0),
    kernel="logsumexp",
)
# Three columns: log Σ_j exp(o_j), Σ_j o_j and the number of classes.
LOGSUMEXP_AND_SUM = Reduction(
    init=lambda num_queries: (LOGSUMEXP.init(num_queries), tf.zeros([num_queries]), tf.zeros([num_queries])),
    update=lambda state, logits: (
        LOGSUMEXP.update(state[0], logits),
        state[1] + tf.reduce_sum(logits, 1),
        state[2] + tf.cast(tf.shape(logits)[1], tf.float32),
    ),
    finish=lambda state: tf.stack([LOGSUMEXP.finish(state[0]), *state[1:]], 1),
    gradient=lambda reduced, logits: tf.stack(
        [LOGSUMEXP.gradient(reduced[:, 0], logits), tf.ones_like(logits), tf.zeros_like(logits)], 2
    ),
    merge=lambda parts: tf.concat(
        [tf.reduce_logsumexp([part[:, :1] for part in parts], 0), tf.add_n([part[:, 1:] for part in parts])],
        1,
    ),
)
SOFTPLUS = sum_of(tf.nn.softplus, tf.sigmoid, "softplus")
SQUARED_HINGE = sum_of(squared_hinge, lambda logits: 2.0 * tf.nn.relu(1.0 + logits), "squared_hinge")


def log_sum_exp(logits: tf.Tensor) -> tf.Tensor:
    """log Σ exp [N, 1] of logits [N, S]; far below every logit, with gradient 0, where there is none."""
    num_queries = tf.shape(logits)[0]
    state = LOGSUMEXP.update(LOGSUMEXP.init(num_queries), tf.fill([num_queries, 1], MASKED_LOGIT))
    return LOGSUMEXP.finish(LOGSUMEXP.update(state, logits))[:, tf.newaxis]


# log Σ_s exp(o_s) / e_s, which estimates the log-sum-exp over all classes.
LOGSUMEXP_OF_CANDIDATES = CandidateReduction(
    lambda candidates: log_sum_exp(candidates.corrected), LOGSUMEXP.merge, kernel=LOGSUMEXP.kernel
)
