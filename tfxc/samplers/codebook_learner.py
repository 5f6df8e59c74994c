"""Codebooks that learn beside the model, towards the softmax that they approximate."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf
from scipy import sparse

from tfxc._keras import keras
from tfxc._keras.weights import add_counter, add_weight, tf_variable
from tfxc.class_vectors import blocks
from tfxc.scored import MASKED_LOGIT

_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-10  # Adam's
_RELATIVE_STEP = 0.005  # relative to the codewords' root mean square, so the scale does not matter
_SHARPNESS = 16.0  # of the soft assignment; 4 would pull all codewords towards their mean
_TINY, _SHARPEST = np.finfo(np.float32).tiny, 1e30


class Estimate(NamedTuple):
    """The softmax of each query, estimated on the classes [N, M] that a step scored."""

    ids: tf.Tensor  # int32
    probs: tf.Tensor  # float32, 0 for what does not count
    log_share: tf.Tensor  # log of the number of classes that each stands for: minus the log expected count


def softmax_estimate(labels, positives, ids, negatives):
    """The ``Estimate`` from a step, without a gradient: ``exp(o_i)`` of labels, ``exp(o_i) / e_i`` of draws.

    Labels int32 [N, P], padded with -1, are scored as positives; candidates int32 [N, S], or [S] shared by
    all queries, as negatives, without those that hit a label. So a label stands for itself alone.
    """
    own = positives.without(labels < 0)
    parts = own._replace(log_expected_count=tf.zeros_like(own.logits)), negatives
    counts = tf.concat([part.logits > MASKED_LOGIT for part in parts], 1)
    logits = tf.concat([part.corrected for part in parts], 1)
    expected = [tf.broadcast_to(part.log_expected_count, tf.shape(part.logits)) for part in parts]
    if ids.shape.rank == 1:
        ids = tf.tile(ids[tf.newaxis], [tf.shape(labels)[0], 1])
    probs = tf.where(counts, tf.nn.softmax(logits), 0.0)
    log_share = tf.where(counts, -tf.concat(expected, 1), MASKED_LOGIT)
    return Estimate(tf.concat([labels, ids], 1), tf.stop_gradient(probs), tf.stop_gradient(log_share))


class CodebookLearner(keras.layers.Layer):
    """Adam on the two codebooks of a MIDX index, with the cells as they are.

    It minimises ``KL(p ‖ Q) + ½ m Σ_i s_i |w_i − ŵ_i|²``: the divergence of the proposal from the softmax,
    and the error of the quantised class vectors, where ``s_i`` is the share of class i. With m the mean
    square of the queries' components, the second term is the effect of that error on the logits of a query
    of any direction, so both terms are in nats. The second runs over all L classes, but needs only sums over
    the classes of each codeword, which ``summarize`` keeps at a refresh. The first runs over the classes that
    a step scored, each quantised softly: by a mean of the codewords, ``α_k ∝ exp(−16 |w − c_k|² / e)``, with
    e the codebook's mean error at the last refresh. So a class also pulls at the codewords to which it may
    belong after the next refresh. The second codebook quantises the ``residual`` of the first, or the second
    half.

    Reference:
        Chen et al., "Adaptive Sampled Softmax with Inverted Multi-Index: Methods, Theory and Applications",
        2025; its assignment by inner products, ``softmax(w·c_k)``, does not lower the divergence.
    """

    def __init__(self, residual, **kwargs):
        super().__init__(**kwargs)
        self.residual = residual

    def build(self, input_shape):
        """For two codebooks of shapes ``input_shape = ((C, D1), (C, D2))``."""
        sizes = [size for size, _ in input_shape]
        self.share = add_weight(self, "share", sizes, trainable=False)
        self.sharpness = add_weight(self, "sharpness", (2,), trainable=False)
        for i, shape in enumerate(input_shape):
            for name in ("class_sum", "momentum", "velocity"):
                weight = add_weight(self, f"{name}_{i}", shape, trainable=False, aggregation="mean")
                setattr(self, f"{name}_{i}", weight)
        self.step = add_counter(self, "step", aggregation="only_first_replica")
        self.built = True

    def summarize(self, head, codebooks, codes, weights):
        """Takes in the sums of a head's class vectors by codeword, and their distances from the codewords.

        Codebooks are float32 [C, D1], [C, D2], codes int32 [2, L], and the positive class weights [L].
        """
        num_classes = codes.shape[1]
        weights = weights / weights.sum()
        sums = [np.zeros(codebook.shape) for codebook in codebooks]
        error, square = np.zeros(2), np.zeros(2)
        for begin, vectors in blocks(head):
            inside = slice(begin, begin + len(vectors))
            halves = vectors[:, : sums[0].shape[1]], vectors[:, -sums[1].shape[1] :]
            for total, code, half in zip(sums, codes[:, inside], halves, strict=True):
                entries = weights[inside], (code, np.arange(len(code)))
                members = sparse.csr_matrix(entries, shape=(len(total), len(code)))
                total += members @ half
            left, right = (codebook[code] for codebook, code in zip(codebooks, codes[:, inside], strict=True))
            right_error = halves[1] - left - right if self.residual else halves[1] - right
            for i, part in enumerate((halves[0] - left, right_error)):
                error[i] += np.square(part).sum()
                square[i] += np.square(halves[i]).sum()
        size = len(sums[0])
        share = np.bincount(codes[0] * size + codes[1], weights, size * size).reshape(size, size)
        # With a codeword for each class, the error and the distances that it divides are rounding alone.
        sharpness = _SHARPNESS * num_classes / np.maximum(np.maximum(error, 1e-6 * square), _TINY)
        sharpness = np.minimum(sharpness, _SHARPEST)  # vectors of zeros would make it infinite
        weights = self.share, self.sharpness, self.class_sum_0, self.class_sum_1
        for weight, value in zip(weights, (share, sharpness, *sums), strict=True):
            tf_variable(weight).assign(value.astype(np.float32))

    def learn(self, codebooks, query, vectors, estimate, log_weights):
        """One step of Adam on the two codebooks, variables; queries are float32 [N, D], or [1, D] for all.

        The estimate's classes [N, M] have vectors [N, M, D] and, in their cells, ``log_weights`` [N, M].
        """
        with tf.GradientTape() as tape:
            tape.watch(codebooks)
            logits = tf.linalg.matvec(self._quantised(codebooks, vectors), query) + log_weights
            log_total = tf.reduce_logsumexp(logits + estimate.log_share, 1, keepdims=True)
            cross_entropy = tf.reduce_sum(estimate.probs * (log_total - logits), 1)
            objective = _mean(cross_entropy) + 0.5 * _mean(tf.square(query)) * self._error(*codebooks)
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

    def _quantised(self, codebooks, vectors):
        """The class vectors [N, M, D], each quantised to a mean of the codewords near it."""
        first, second = codebooks
        sharpness = tf_variable(self.sharpness)
        left = _soft(vectors[..., : first.shape[1]], first, sharpness[0])
        if self.residual:
            return left + _soft(vectors - left, second, sharpness[1])
        return tf.concat([left, _soft(vectors[..., first.shape[1] :], second, sharpness[1])], -1)

    def _error(self, first, second):
        """``Σ_i s_i |w_i − ŵ_i|²`` up to a constant, in O(C²·D)."""
        share = tf_variable(self.share)
        value = tf.reduce_sum(tf.reduce_sum(share, 1) * tf.reduce_sum(tf.square(first), 1))
        value += tf.reduce_sum(tf.reduce_sum(share, 0) * tf.reduce_sum(tf.square(second), 1))
        value -= 2 * tf.reduce_sum(tf_variable(self.class_sum_0) * first)
        value -= 2 * tf.reduce_sum(tf_variable(self.class_sum_1) * second)
        if self.residual:
            value += 2 * tf.reduce_sum(tf.matmul(share, second) * first)
        return value


def _soft(vectors, codewords, sharpness):
    """Vectors [N, M, D] as means of codewords [C, D], weighted by distance."""
    products = tf.tensordot(vectors, codewords, [[2], [1]])
    # |w|² is the same for all codewords.
    distances = tf.reduce_sum(tf.square(codewords), 1) - 2 * products
    return tf.tensordot(tf.nn.softmax(-sharpness * distances), codewords, 1)


def _mean(values):
    """The mean, 0 if there are no values."""
    return tf.math.divide_no_nan(tf.reduce_sum(values), tf.cast(tf.size(values), values.dtype))
