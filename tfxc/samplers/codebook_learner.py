"""Codebooks that learn beside the model: towards the softmax that their quantised one stands for."""

import numpy as np
import tensorflow as tf
from scipy import sparse

from tfxc._keras import add_weight, keras, tf_variable
from tfxc.class_vectors import blocks
from tfxc.scored import MASKED_LOGIT

_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-10  # Adam's
_RELATIVE_STEP = 0.005  # of the codewords' root mean square: codebooks of any scale learn alike


def softmax_estimate(labels, positives, ids, negatives):
    """The softmax of each query, estimated on the classes that a step scored.

    Every scored class stands for as many as its expected count is small: ``p_i ∝ exp(o_i) / e_i``.

    Args:
        labels: int32 [N, P], padded with -1.
        positives: ``Scored`` [N, P].
        ids: candidates int32 [N, S], or [S] shared by all queries.
        negatives: ``Scored`` [N, S].

    Returns:
        Class ids int32 [N, P + S] and their probabilities float32 [N, P + S], 0 for what does not count. No
        gradient.

    Example:
        >>> from tfxc.scored import Scored
        >>> positives = Scored(tf.math.log([[2.0]]), tf.math.log([[0.5]]))
        >>> negatives = Scored(tf.math.log([[1.0, 5.0]]), tf.math.log([[0.25, 2.5]]))
        >>> ids, p = softmax_estimate(tf.constant([[7]]), positives, tf.constant([[3, 4]]), negatives)
        >>> print(ids.numpy(), p.numpy().round(2))  # 4 : 4 : 2
        [[7 3 4]] [[0.4 0.4 0.2]]
    """
    parts = positives.without(labels < 0), negatives
    counts = tf.concat([part.logits > MASKED_LOGIT for part in parts], 1)
    logits = tf.concat([part.corrected for part in parts], 1)
    probs = tf.where(counts, tf.nn.softmax(logits), 0.0)
    if ids.shape.rank == 1:
        ids = tf.tile(ids[tf.newaxis], [tf.shape(labels)[0], 1])
    return tf.concat([labels, ids], 1), tf.stop_gradient(probs)


class CodebookLearner(keras.layers.Layer):
    """Adam on the two codebooks of a MIDX index, with the cells as they are.

    What it lowers is ``KL(p ‖ Q) + ½ m Σ_i s_i |w_i − ŵ_i|²``: the divergence of the proposal from the
    softmax, and the error of the quantised class vectors, ``s_i`` the share of class i. With m the mean
    square of the queries' components, the second term is what that error does to the logits of a query of
    any direction, so both are in nats. The first needs the queries of a step; the second, over all L
    classes, only sums over each codeword's classes, kept from the last refresh (``summarize``).

    It has its own optimizer and owns all its state, so the model's gradients, their clipping and the
    optimizer's slots are the same with and without it.

    Args:
        residual: whether the second codebook quantises the residual of the first, or the second half.
    """

    def __init__(self, residual, **kwargs):
        super().__init__(**kwargs)
        self.residual = residual

    def build(self, input_shape):
        """For two codebooks of shapes ``input_shape = ((C, D1), (C, D2))``."""
        sizes = [size for size, _ in input_shape]
        self.share = add_weight(self, "share", sizes, trainable=False)
        for i, shape in enumerate(input_shape):
            for name in ("class_sum", "momentum", "velocity"):
                weight = add_weight(self, f"{name}_{i}", shape, trainable=False, aggregation="mean")
                setattr(self, f"{name}_{i}", weight)
        self.step = add_weight(
            self, "step", (), dtype="int64", trainable=False, aggregation="only_first_replica"
        )
        self.built = True

    def summarize(self, head, codes, weights=None):
        """Takes in the class vectors: their sums by codeword.

        Args:
            head: has ``num_classes`` and ``class_vectors(start, stop)``.
            codes: codewords int32 [2, L] of the classes.
            weights: None or positive class weights [L].
        """
        num_classes = codes.shape[1]
        weights = np.full(num_classes, 1 / num_classes) if weights is None else weights / weights.sum()
        sums = [np.zeros(tuple(variable.shape)) for variable in (self.class_sum_0, self.class_sum_1)]
        for begin, vectors in blocks(head):
            inside = slice(begin, begin + len(vectors))
            halves = vectors[:, : sums[0].shape[1]], vectors[:, -sums[1].shape[1] :]
            for total, code, half in zip(sums, codes[:, inside], halves, strict=True):
                entries = weights[inside], (code, np.arange(len(code)))
                members = sparse.csr_matrix(entries, shape=(len(total), len(code)))
                total += members @ half
        size = len(sums[0])
        share = np.bincount(codes[0] * size + codes[1], weights, size * size).reshape(size, size)
        for variable, value in zip(
            (self.share, self.class_sum_0, self.class_sum_1), (share, *sums), strict=True
        ):
            tf_variable(variable).assign(value.astype(np.float32))

    def learn(self, codebooks, query, cross_entropy):
        """One step of Adam.

        Args:
            codebooks: the two variables.
            query: queries float32 [N, D].
            cross_entropy: function of nothing to the mean cross-entropy of p and Q, made of the codebooks.
        """
        with tf.GradientTape() as tape:
            tape.watch(codebooks)
            reconstruction = self._reconstruction(*codebooks)
            mean_square = tf.math.divide_no_nan(
                tf.reduce_sum(tf.square(query)), tf.cast(tf.size(query), query.dtype)
            )
            objective = cross_entropy() + 0.5 * mean_square * reconstruction
        gradients = tape.gradient(objective, codebooks)
        step = tf.cast(tf_variable(self.step).assign_add(1), tf.float32)
        correction = tf.sqrt(1 - _BETA_2**step) / (1 - _BETA_1**step)
        for i, (codebook, gradient) in enumerate(zip(codebooks, gradients, strict=True)):
            momentum, velocity = (tf_variable(getattr(self, f"{n}_{i}")) for n in ("momentum", "velocity"))
            first = _BETA_1 * momentum + (1 - _BETA_1) * gradient
            second = _BETA_2 * velocity + (1 - _BETA_2) * tf.square(gradient)
            momentum.assign(first)
            velocity.assign(second)
            scale = tf.sqrt(tf.reduce_mean(tf.square(codebook)))
            codebook.assign_sub(_RELATIVE_STEP * scale * correction * first / (tf.sqrt(second) + _EPSILON))

    def _reconstruction(self, first, second):
        """``Σ_i s_i |w_i − ŵ_i|²`` up to a constant, in O(C²·D)."""
        share = tf_variable(self.share)
        value = tf.reduce_sum(tf.reduce_sum(share, 1) * tf.reduce_sum(tf.square(first), 1))
        value += tf.reduce_sum(tf.reduce_sum(share, 0) * tf.reduce_sum(tf.square(second), 1))
        value -= 2 * tf.reduce_sum(tf_variable(self.class_sum_0) * first)
        value -= 2 * tf.reduce_sum(tf_variable(self.class_sum_1) * second)
        if self.residual:
            value += 2 * tf.reduce_sum(tf.matmul(share, second) * first)
        return value
