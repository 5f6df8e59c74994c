"""MIDX: draws from the softmax over quantised class vectors, by an inverted multi-index."""

import numpy as np
import tensorflow as tf

from tfxc._keras import add_weight, constant, register, tf_variable
from tfxc.class_vectors import blocks
from tfxc.ops.midx_draw import CellIndex, midx_draw, midx_log_partition
from tfxc.samplers.class_counts import SAVED, check_counts, gather_counts, match_classes
from tfxc.samplers.codebook_learner import CodebookLearner, softmax_estimate
from tfxc.samplers.exact_softmax import exact_draw, exact_log_probs
from tfxc.samplers.quantization import encode, fit_codebooks
from tfxc.samplers.sampler import Sampler

# Learnt codewords stay while their error is at most this much more than that of k-means.
_KEPT_ERROR_RATIO = 1.25
_MEAN_QUERY_STEPS = 100  # steps over which the mean query is taken
_SMALLEST_WEIGHT = 0.01  # of a class in the k-means, of the mean weight


@register
class MIDX(Sampler):
    """Draws classes that score high now: the softmax over quantised class vectors.

    Two codebooks of C codewords put class i into cell (a_i, b_i); with ``u = z·c1`` and ``v = z·c2``,
    ``Q(i|z) = exp(u_{a_i} + v_{b_i}) / Σ_ab |cell_ab| exp(u_a + v_b)``: first a cell by its share, then
    a class in it uniformly. A draw costs O(C·D + C²), whatever L. The closer Q is to the softmax, the less
    noise sampling adds, so a handful of these negatives trains nearly as well as all classes.

    Before its first ``refresh`` the codebooks are zero and Q is exactly uniform. Refresh once an epoch
    (``tfxc.callbacks.SamplerRefresh``), where epochs are long every 50 to 200 steps: the younger the index,
    the nearer Q. It is k-means on the class vectors, each time anew: one that starts from the last codebooks
    keeps the clusters of the first, barely trained vectors. What k-means must keep small is the error in the
    logits of the classes that get probability, so it weights each class by the softmax of the mean query of
    the last steps, the frequency that the model itself gives it (all alike before there was a query).

    ``learnable=True`` goes on where k-means ends. It knows neither queries nor which classes matter; training
    does, so the codebooks take a step of their own beside each of the model's, towards the smallest
    ``KL(softmax ‖ Q)``, estimated on the classes the step scored, plus the quantisation error. A refresh then
    sorts the classes into the learnt cells, and fits anew only codebooks that the classes have left behind.
    ``exact=True`` lets the residuals decide within a cell; the stages then make up the softmax over the class
    vectors of the last refresh, whatever the codebooks. O(L·D) a query: the measure of the others.

    Args:
        num_negatives: S, draws a query (or a batch).
        num_codewords: C; 32 for about 10 thousand classes, 64 for 100 thousand and more.
        quantizer: "rq" (the second codebook quantises the residual of the first) or "pq" (each
            codebook quantises half of the dimensions).
        cells: "uniform", or "frequency": within a cell by ``counts + 1``.
        exact: whether to draw from the softmax itself; for tests and small L. There are no codebooks then.
        learnable: whether the codebooks learn while the model trains, from the first refresh on.
        counts: None or class counts [L]; they weight the k-means (by counts + 1) in the place of the mean
            query's softmax, from the first refresh on. Required by ``cells="frequency"``.
        shared: one set of draws for the whole batch, from the Q of its mean query.
        seed: int, see ``Sampler``.

    Raises:
        ValueError: for arguments outside their range.

    Example:
        >>> sampler = MIDX(4, num_codewords=2, seed=1)
        >>> sampler.build((10, 8))
        >>> ids, log_count = sampler.sample(tf.zeros([3, 8]), tf.zeros([3, 1], tf.int32))
        >>> ids.shape, round(float(tf.exp(log_count[0, 0])), 4)
        (TensorShape([3, 4]), 0.4)

    Reference:
        Chen et al., "Adaptive Sampled Softmax with Inverted Multi-Index: Methods, Theory and
        Applications", 2025.
    """

    def __init__(
        self,
        num_negatives,
        num_codewords=64,
        quantizer="rq",
        cells="uniform",
        exact=False,
        learnable=False,
        counts=None,
        shared=False,
        seed=None,
        **kwargs,
    ):
        super().__init__(num_negatives, shared=shared, seed=seed, **kwargs)
        if not 1 <= num_codewords <= 1024:
            raise ValueError(f"num_codewords must be in [1, 1024] (cost grows with C²), got {num_codewords}.")
        if quantizer not in ("rq", "pq"):
            raise ValueError(f'quantizer must be "rq" or "pq", but got {quantizer!r}.')
        if cells not in ("uniform", "frequency"):
            raise ValueError(f'cells must be "uniform" or "frequency", but got {cells!r}.')
        if cells == "frequency" and counts is None:
            raise ValueError('cells="frequency" draws by class counts: pass counts=[L].')
        if exact and (learnable or cells == "frequency" or counts is not None):
            raise ValueError("exact=True has no codebooks: learnable, cells and counts do not go with it.")
        self.num_codewords = num_codewords
        self.quantizer = quantizer
        self.cells = cells
        self.exact = exact
        self.learns = learnable
        self.counts = counts
        if counts is not None and not isinstance(counts, str):
            self.counts = check_counts(np.asarray(counts, np.float64) + 1, "MIDX")

    def get_config(self):
        return {
            **super().get_config(),
            "num_codewords": self.num_codewords,
            "quantizer": self.quantizer,
            "cells": self.cells,
            "exact": self.exact,
            "learnable": self.learns,
            "counts": None if self.counts is None else SAVED,
        }

    def build_index(self):
        if self.exact:
            self._set("class_vectors", np.zeros((self.num_classes, self.query_dim), np.float32))
            return
        size, dim = self.num_codewords, self.query_dim
        if self.quantizer == "pq" and dim < 2:
            raise ValueError(f'quantizer="pq" halves the query, but its width is {dim}; use "rq".')
        widths = (dim, dim) if self.quantizer == "rq" else (dim // 2, dim - dim // 2)
        self.mean_query = add_weight(self, "mean_query", (dim,), trainable=False, aggregation="mean")
        for i, width in enumerate(widths):
            codebook = add_weight(self, f"codebook_{i}", (size, width), trainable=False, aggregation="mean")
            setattr(self, f"codebook_{i}", codebook)
        if self.learns:
            self.learner = CodebookLearner(residual=self.quantizer == "rq")
            self.learner.build([(size, width) for width in widths])
        weight = None
        if self.counts is not None:
            match_classes(self.counts, self.num_classes, "MIDX")
            saved = isinstance(self.counts, str)  # NaN until the saved weights are loaded
            weight = np.full(self.num_classes, np.nan) if saved else self.counts
            self._set("class_weight", weight.astype(np.float32))
        # Codebooks of zeros make this exactly the uniform distribution.
        for name, value in self._cells(np.arange(self.num_classes) % (size * size), weight).items():
            self._set(name, value)

    @property
    def codebooks(self):
        """The two codebooks; weights in a list attribute would be missing from a ``tf.train.Checkpoint``."""
        return self.codebook_0, self.codebook_1

    def _set(self, name, value):
        if hasattr(self, name):
            tf_variable(getattr(self, name)).assign(value)
        else:
            weight = add_weight(self, name, value.shape, constant(value), value.dtype.name, trainable=False)
            setattr(self, name, weight)

    def refresh(self, head):
        """Fits the codebooks to the head's class vectors and sorts the classes into cells anew."""
        if self.exact:
            self._set("class_vectors", np.concatenate([vectors for _, vectors in blocks(head)]))
            return
        if self.counts is None:
            weight = self._predicted_frequency(head)
        else:
            everything = tf.range(self.num_classes)
            weight = gather_counts(tf_variable(self.class_weight), everything, "MIDX").numpy()
        codebooks, codes = self._fitted(head, weight)
        for variable, codebook in zip(self.codebooks, codebooks, strict=True):
            tf_variable(variable).assign(codebook)
        for name, value in self._cells(codes[0] * self.num_codewords + codes[1], weight).items():
            self._set(name, value)
        if self.learns:
            self.learner.summarize(head, codes, weight)

    def _predicted_frequency(self, head):
        """The softmax of the mean query, float32 [L] with mean 1; None before there was a query."""
        query = tf_variable(self.mean_query).numpy()
        if not query.any():
            return None
        logits = np.concatenate([vectors @ query for _, vectors in blocks(head)])
        weight = np.exp(logits - logits.max())
        return np.maximum(weight / weight.mean(), _SMALLEST_WEIGHT)

    def _fitted(self, head, weight):
        """Codebooks and each class's codewords int32 [2, L]: by k-means, or as learnt if about as good."""
        residual = self.quantizer == "rq"
        last = [tf_variable(codebook).numpy() for codebook in self.codebooks]
        last = last if self.learns and any(codebook.any() for codebook in last) else None
        fitted = fit_codebooks(head, last, residual, self.num_codewords, self.seed % 2**31, weight)
        codes, errors = encode(head, fitted, residual)
        if last is not None:
            learnt_codes, learnt_errors = encode(head, last, residual)
            limit = _KEPT_ERROR_RATIO * np.average(errors, weights=weight)
            if np.average(learnt_errors, weights=weight) <= limit:
                return last, learnt_codes
        return fitted, codes

    def _cells(self, cell, weight=None):
        """The classes sorted by cell, for a given cell int64 [L] and, by frequency, class weights [L]."""
        size = self.num_codewords
        narrow = np.uint16 if size <= 256 else cell.dtype  # NumPy sorts 16 bits by radix, ten times faster
        order = np.argsort(cell.astype(narrow), kind="stable").astype(np.int32)
        counts = np.bincount(cell, minlength=size * size)
        index = {
            "cell": cell.astype(np.int32),
            "cell_classes": order,
            "cell_offsets": np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        }
        if self.cells == "frequency":
            index["cumulative_weight"] = np.concatenate([[0.0], np.cumsum(weight[order], dtype=np.float64)])
            counts = np.bincount(cell, weights=weight, minlength=size * size)
        return {**index, "cell_mass": counts.reshape(size, size).astype(np.float32)}

    def _own_query(self, query):
        """The queries, or their mean [1, D] if the draws are shared."""
        if not self.shared:
            return query
        # A batch without any query has mean 0, not NaN.
        return tf.reduce_sum(query, 0, keepdims=True) / tf.cast(
            tf.maximum(tf.shape(query)[0], 1), query.dtype
        )

    def _cell_logits(self, query):
        """u and v [N, C]: the query's products with the codewords of either codebook."""
        first, second = (tf_variable(codebook) for codebook in self.codebooks)
        query = self._own_query(query)
        left, right = (query, query) if self.quantizer == "rq" else tf.split(query, [first.shape[1], -1], 1)
        return tf.matmul(left, first, transpose_b=True), tf.matmul(right, second, transpose_b=True)

    def draw(self, query, labels, seed):
        if self.exact:
            vectors = tf_variable(self.class_vectors)
            ids, log_prob = exact_draw(self._own_query(query), vectors, self.num_negatives, seed)
        else:
            ids, log_prob = midx_draw(*self._cell_logits(query), self._cell_index(), self.num_negatives, seed)
            with tf.control_dependencies([ids]):  # raises where a query is not finite
                self._follow(query)
        return (ids[0], log_prob[0]) if self.shared else (ids, log_prob)

    def _follow(self, query):
        """Takes the queries of a step into the mean."""
        mean, num_queries = tf_variable(self.mean_query), tf.cast(tf.shape(query)[0], tf.float32)
        num_steps = tf.clip_by_value(tf_variable(self.counter), 1, _MEAN_QUERY_STEPS)
        share = 1 / tf.cast(num_steps, tf.float32)
        step = tf.math.divide_no_nan(tf.reduce_sum(query, 0), num_queries) - mean
        mean.assign_add(tf.where(num_queries > 0, share, 0.0) * step)

    def _cell_index(self):
        return CellIndex(
            tf_variable(self.cell_mass),
            tf_variable(self.cell_offsets),
            tf_variable(self.cell_classes),
            tf_variable(self.cumulative_weight) if self.cells == "frequency" else tf.zeros([0], tf.float64),
        )

    def log_prob(self, query, ids):
        ids = tf.maximum(ids, 0)
        if self.exact:
            log_probs = exact_log_probs(self._own_query(query), tf_variable(self.class_vectors))
            return _gather(log_probs, ids, self.shared)
        row_logits, column_logits = self._cell_logits(query)
        log_total = midx_log_partition(row_logits, column_logits, tf_variable(self.cell_mass))
        cell = tf.gather(tf_variable(self.cell), ids)
        log_prob = _gather(row_logits - log_total[:, tf.newaxis], cell // self.num_codewords, self.shared)
        log_prob += _gather(column_logits, cell % self.num_codewords, self.shared)
        if self.cells == "frequency":
            log_prob += tf.math.log(gather_counts(tf_variable(self.class_weight), ids, "MIDX"))
        return log_prob

    def learn(self, query, labels, positives, ids, negatives):
        query = tf.stop_gradient(query)
        ids, target = softmax_estimate(labels, positives, ids, negatives)

        def cross_entropy():
            total = -tf.reduce_sum(target * self.log_prob(query, ids))
            return tf.math.divide_no_nan(total, tf.cast(tf.shape(query)[0], total.dtype))

        self.learner.learn([tf_variable(codebook) for codebook in self.codebooks], query, cross_entropy)


def _gather(table, ids, shared):
    """Of a table [N, C] at ids [N, S], or [S] for all queries; of a shared one [1, C] at ids of any shape."""
    if shared:
        return tf.gather(table[0], ids)
    return tf.gather(table, ids, axis=1, batch_dims=ids.shape.rank - 1)
