import numpy as np
import pytest
import tensorflow as tf

from tfxc.ops.candidate_scores import normalized
from tfxc.ops.dense_scan import (
    TILE_CLASSES,
    dense_scan,
    dense_scan_filtered_gradient,
    dense_scan_gradient,
    dense_scan_with_maxima,
)

# Whatever the dtype of the logits [N, L]: a number a row, and not by the code that is tested.
REDUCTIONS = {
    "squared_hinge": lambda logits: tf.reduce_sum(tf.square(tf.nn.relu(1.0 + logits)), 1),
    "softplus": lambda logits: tf.reduce_sum(tf.nn.softplus(logits), 1),
    "logsumexp": lambda logits: tf.reduce_logsumexp(logits, 1),
}
EVERY_REDUCTION = pytest.mark.parametrize("reduction", REDUCTIONS)


def dense_scan_reference(query, rows, bias, *, normalize=False, reduction=None, k=0, exclude=None):
    """What ``dense_scan`` gives, by its definition, for the rows [L, D] of the classes; any float dtype."""
    if normalize:
        rows = normalized(rows)
    logits = tf.matmul(query, rows, transpose_b=True)
    if bias.shape[0] != 0:
        logits += bias
    reduced = tf.zeros_like(logits[:, 0]) if reduction is None else REDUCTIONS[reduction](logits)
    low = tf.constant(float("-inf"), logits.dtype)
    ranked = tf.where(tf.math.is_nan(logits), low, logits)
    if exclude is not None:
        ids = tf.range(tf.shape(rows)[0])
        ranked = tf.where(tf.reduce_any(exclude[:, :, tf.newaxis] == ids, 1), low, ranked)
    scores, ids = tf.math.top_k(ranked, k)
    return reduced, scores, tf.where(scores > low, ids, -1)


class Problem:
    def __init__(self, queries, classes, dim, *, use_bias=False, normalize=False, row_offset=0, scale=1.0):
        random = np.random.default_rng(queries * classes + dim)
        self.rows = random.normal(size=(row_offset + classes + 1, dim)).astype(np.float32)
        self.query = (scale * random.normal(size=(queries, dim))).astype(np.float32)
        self.bias = random.normal(size=classes if use_bias else 0).astype(np.float32)
        self.upstream = random.normal(size=queries).astype(np.float32)
        self.exclude = random.integers(-1, classes, (queries, 3)).astype(np.int32)
        self.options = {"num_classes": classes, "row_offset": row_offset, "normalize": normalize}
        self.table = tf.Variable(self.rows)
        self.given = self.query, self.table.handle, self.bias

    def scan(self, **options):
        return dense_scan(*self.given, **self.options, **options)

    def gradient(self, reduced, reduction):
        return dense_scan_gradient(*self.given, reduced, self.upstream, reduction=reduction, **self.options)

    def expected(self, **options):
        first, normalize = self.options["row_offset"], self.options["normalize"]
        query, rows, bias = (tf.constant(part, tf.float64) for part in (self.query, self.rows, self.bias))
        with tf.GradientTape() as tape:
            tape.watch([query, rows, bias])
            classes = rows[first : first + self.options["num_classes"]]
            results = dense_scan_reference(query, classes, bias, normalize=normalize, **options)
            total = tf.reduce_sum(results[0] * self.upstream)
        zero = tf.UnconnectedGradients.ZERO
        return results, tape.gradient(total, [query, rows, bias], unconnected_gradients=zero)

    def logits(self):
        ids = np.arange(self.options["num_classes"])
        return self.scores_of(np.broadcast_to(ids, (len(self.query), len(ids))))

    def more(self, count):
        ids = tf.range(count) % self.options["num_classes"]
        of_bias = tf.range(float(count)) if len(self.bias) else tf.zeros([0])
        return ids, tf.fill([count, self.query.shape[1]], 7.0), of_bias

    def filtered(self, threshold, num_more=0):
        reduced, maxima = dense_scan_with_maxima(*self.given, **self.options)
        given = *self.given, reduced, self.upstream, maxima, self.more(num_more)
        return dense_scan_filtered_gradient(*given, threshold=threshold, **self.options)

    def expected_filtered(self, threshold):
        logits, first = self.logits(), self.options["row_offset"]
        probs = np.exp(logits - np.logaddexp.reduce(logits, 1, keepdims=True))
        tiles = np.arange(0, logits.shape[1], TILE_CLASSES)
        left = np.maximum.reduceat(probs, tiles, axis=1) >= threshold
        left = np.repeat(left, TILE_CLASSES, axis=1)[:, : logits.shape[1]]
        slopes = probs * left * self.upstream[:, np.newaxis]
        vectors = self.rows[first : first + logits.shape[1]].astype(np.float64)
        norms = np.linalg.norm(vectors, axis=1, keepdims=True) if self.options["normalize"] else 1.0
        vectors, of_rows = vectors / norms, slopes.T @ self.query
        if self.options["normalize"]:
            of_rows = (of_rows - np.sum(of_rows * vectors, 1, keepdims=True) * vectors) / norms
        ids = np.flatnonzero(left.any(0))
        of_bias = slopes.sum(0)[ids] if len(self.bias) else np.zeros(0)
        return slopes @ vectors, ids, of_rows[ids], of_bias

    def scores_of(self, ids):
        """In float64: the logits of class ids [N, k], -inf for -1."""
        rows = self.rows[self.options["row_offset"] + ids].astype(np.float64)
        if self.options["normalize"]:
            rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
        bias = self.bias[ids] if len(self.bias) else 0.0
        return np.where(ids < 0, -np.inf, np.einsum("nkd,nd->nk", rows, self.query) + bias)


def close(got, want, rtol=2e-5):
    want = np.asarray(want)
    largest = np.abs(want[np.isfinite(want)]).max(initial=1e-3)
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * largest)


def check(problem, reduction, k=0):
    reduced, scores, ids = problem.scan(reduction=reduction, k=k, exclude=problem.exclude)
    want, gradients = problem.expected(reduction=reduction, k=k, exclude=problem.exclude)
    close(reduced, want[0])
    close(scores, want[1])
    # The very classes, or others that float32 cannot tell from them.
    close(problem.scores_of(ids.numpy()), want[1])
    assert all(len({*row[row >= 0]}) == (row >= 0).sum() for row in ids.numpy())
    if reduction is not None:
        for one, other in zip(problem.gradient(reduced, reduction), gradients, strict=True):
            close(one, other, rtol=1e-4)
