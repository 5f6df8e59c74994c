"""MIDX: draws from the softmax over quantised class vectors, by an inverted multi-index."""

import numpy as np
import tensorflow as tf

from tfxc._keras import add_weight, constant, register, tf_variable
from tfxc.arguments import positive_int
from tfxc.class_rows import ClassRows
from tfxc.class_vectors import blocks
from tfxc.ops.midx_draw import CellIndex, midx_draw, midx_log_partition
from tfxc.samplers.class_counts import SAVED, as_the_rarest, check_counts, gather_counts, match_classes
from tfxc.samplers.codebook_learner import CodebookLearner, softmax_estimate
from tfxc.samplers.quantization import encode, fit_codebooks
from tfxc.samplers.sampler import Sampler, mean_query

# Learnt codewords stay while their error is at most this much more than that of k-means.
_KEPT_ERROR_RATIO = 1.25
_MEAN_QUERY_STEPS = 100  # steps over which the mean query is taken
_SMALLEST_WEIGHT = 0.01  # of a class in the k-means, of the mean weight
# Codebooks learn from so many of a step's queries, and from class vectors of so many numbers.
_MOST_QUERIES = 256
_MOST_FLOATS = 1 << 23


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

    Args:
        num_negatives: S, draws a query (or a batch).
        num_codewords: C; 32 for about 10 thousand classes, 64 for 100 thousand and more.
        quantizer: "rq" (the second codebook quantises the residual of the first) or "pq" (each
            codebook quantises half of the dimensions).
        cells: "uniform", or "frequency": within a cell by ``counts + smoothing``.
        learnable: whether the codebooks learn while the model trains, from the first refresh on.
        counts: None or class counts [L]; they weight the k-means in the place of the mean query's softmax,
            from the first refresh on. Required by ``cells="frequency"``.
        smoothing: added to every count.
        shared: one set of draws for the whole batch, from the Q of its mean query.
        seed: int, see ``Sampler``.

    Raises:
        ValueError: for arguments outside their range.

    Example:
        >>> sampler = MIDX(4, num_codewords=2, seed=1)
        >>> sampler.build((10, 8))
        >>> draw = sampler.sample(tfxc.samplers.Step(tf.zeros([3, 8]), tf.zeros([3, 1], tf.int32)))
        >>> draw.ids.shape, round(float(tf.exp(draw.log_count[0, 0])), 4)
        (TensorShape([3, 4]), 0.4)

    Reference:
        Chen et al., "Adaptive Sampled Softmax with Inverted Multi-Index: Methods, Theory and
        Applications", 2025.
    """

    def __init__(
        self,
        num_negatives,
        *,
        num_codewords=64,
        quantizer="rq",
        cells="uniform",
        learnable=False,
        counts=None,
        smoothing=1.0,
        shared=False,
        seed=None,
        **kwargs,
    ):
        super().__init__(num_negatives, shared=shared, seed=seed, **kwargs)
        num_codewords = positive_int(num_codewords, "num_codewords")
        if num_codewords > 1024:
            raise ValueError(f"num_codewords must be in [1, 1024] (cost grows with C²), got {num_codewords}.")
        if quantizer not in ("rq", "pq"):
            raise ValueError(f'quantizer must be "rq" or "pq", but got {quantizer!r}.')
        if cells not in ("uniform", "frequency"):
            raise ValueError(f'cells must be "uniform" or "frequency", but got {cells!r}.')
        if cells == "frequency" and counts is None:
            raise ValueError('cells="frequency" draws by class counts: pass counts=[L].')
        self.num_codewords = num_codewords
        self.quantizer = quantizer
        self.cells = cells
        self.learnable = bool(learnable)
        self.smoothing = float(smoothing)
        self.counts = None if counts is None else check_counts(counts, smoothing, "MIDX")

    def get_config(self):
        return {
            **super().get_config(),
            "num_codewords": self.num_codewords,
            "quantizer": self.quantizer,
            "cells": self.cells,
            "learnable": self.learnable,
            "counts": None if self.counts is None else SAVED,
            "smoothing": self.smoothing,
        }

    def build_index(self):
        size, dim = self.num_codewords, self.query_dim
        if self.quantizer == "pq" and dim < 2:
            raise ValueError(f'quantizer="pq" halves the query, but its width is {dim}; use "rq".')
        widths = (dim, dim) if self.quantizer == "rq" else (dim // 2, dim - dim // 2)
        self.mean_query = add_weight(self, "mean_query", (dim,), trainable=False, aggregation="mean")
        for i, width in enumerate(widths):
            codebook = add_weight(self, f"codebook_{i}", (size, width), trainable=False, aggregation="mean")
            setattr(self, f"codebook_{i}", codebook)
        if self.learnable:
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
        self.check_head(head)
        if self.counts is None:
            weight = self._predicted_frequency(head)
        else:
            everything = tf.range(self.num_classes)
            weight = gather_counts(tf_variable(self.class_weight), everything, "MIDX").numpy()
        codebooks, codes = self._fitted(head, weight)
        cells = self._cells(self._cell_of(codes), weight)
        # Nothing is assigned before all is computed: where memory runs out, the old index is whole.
        for variable, codebook in zip(self.codebooks, codebooks, strict=True):
            tf_variable(variable).assign(codebook)
        for name, value in cells.items():
            self._set(name, value)
        if self.learnable:
            self.learner.summarize(head, codebooks, codes, weight)

    def class_rows(self):
        return [ClassRows(self.cell)] + ([] if self.counts is None else [ClassRows(self.class_weight)])

    def classes_changed(self, head, new_ids):
        """Keeps the codebooks, and sorts the new classes into the cells."""
        weight = None
        if self.counts is not None:
            weight = as_the_rarest(self.class_weight, new_ids)
            self._set("class_weight", weight.astype(np.float32))
        cell = tf_variable(self.cell).numpy()
        codebooks = [tf_variable(codebook).numpy() for codebook in self.codebooks]
        cell[new_ids] = self._cell_of(encode(head, codebooks, self.quantizer == "rq", new_ids)[0])
        for name, value in self._cells(cell, weight).items():
            self._set(name, value)
        if self.learnable:
            codes = np.stack([cell // self.num_codewords, cell % self.num_codewords])
            self.learner.summarize(head, codebooks, codes, weight)

    def _cell_of(self, codes):
        return codes[0] * self.num_codewords + codes[1]

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
        last = last if self.learnable and any(codebook.any() for codebook in last) else None
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

    def prepare(self, step):
        """The queries and their products with the codewords of either codebook."""
        first, second = (tf_variable(codebook) for codebook in self.codebooks)
        left = right = step.query
        if self.quantizer == "pq":
            left, right = tf.split(step.query, [first.shape[1], -1], 1)
        row_logits = tf.matmul(left, first, transpose_b=True)
        if self.cells == "frequency":  # counts that were never loaded are named before an op meets their NaN
            with tf.control_dependencies([gather_counts(tf_variable(self.class_weight), 0, "MIDX")]):
                row_logits = tf.identity(row_logits)
        return _CellLogits(step.query, row_logits, tf.matmul(right, second, transpose_b=True))

    def draw(self, given, seed):
        logits = given.row_logits, given.column_logits
        ids, log_prob = midx_draw(*logits, self._cell_index(), self.num_negatives, seed)
        with tf.control_dependencies([ids]):  # raises where a query is not finite
            self._follow(given.query)
        # A draw tells the log of the partition function, at a fraction of what computing it takes.
        given.log_total = self._log_weights(given, ids[:, :1])[:, 0] - log_prob[:, 0]
        return ids, self.log_num_draws + log_prob

    def _follow(self, query):
        """Takes the queries of a step into the mean."""
        mean, num_queries = tf_variable(self.mean_query), tf.cast(tf.shape(query)[0], tf.float32)
        known = tf.reduce_any(query != 0)  # the mean of no query is 0, and tells nothing
        num_steps = tf.clip_by_value(tf_variable(self.counter), 1, _MEAN_QUERY_STEPS)
        share = 1 / tf.cast(num_steps, tf.float32)
        step = tf.math.divide_no_nan(tf.reduce_sum(query, 0), num_queries) - mean
        mean.assign_add(tf.where(known, share, 0.0) * step)

    def _cell_index(self):
        return CellIndex(
            tf_variable(self.cell_mass),
            tf_variable(self.cell_offsets),
            tf_variable(self.cell_classes),
            tf_variable(self.cumulative_weight) if self.cells == "frequency" else tf.zeros([0], tf.float64),
        )

    def log_count(self, given, ids):
        log_total = given.log_total
        if log_total is None:  # not kept: a tensor of a loop's body is of no use outside it
            logits = given.row_logits, given.column_logits
            log_total = midx_log_partition(*logits, tf_variable(self.cell_mass))
        return self.log_num_draws + self._log_weights(given, ids) - log_total[:, tf.newaxis]

    def _log_weights(self, given, ids):
        """``log Q + log Z`` of classes [N, P]: u + v of their cells, and the log of their own weights."""
        cell = tf.gather(tf_variable(self.cell), ids)
        log_weight = tf.gather(given.row_logits, cell // self.num_codewords, batch_dims=1)
        log_weight += tf.gather(given.column_logits, cell % self.num_codewords, batch_dims=1)
        if self.cells == "frequency":
            log_weight += tf.math.log(self._own_weight(ids))
        return log_weight

    def _own_weight(self, ids):
        return gather_counts(tf_variable(self.class_weight), ids, "MIDX")

    def learn(self, step, draw, positives, negatives):
        if not self.learnable:
            return
        if step.class_vectors is None:
            raise ValueError(
                "Learnable codebooks learn from class vectors, but the step has none: pass "
                "Step(class_vectors=...)."
            )
        query = tf.stop_gradient(step.query)
        estimate = softmax_estimate(step.labels, positives, draw.ids, negatives)
        num_queries, num_scored = tf.unstack(tf.shape(estimate.ids))
        most = tf.maximum(_MOST_FLOATS // tf.maximum(num_scored * self.query_dim, 1), 1)
        num_rows = tf.minimum(num_queries, tf.minimum(most, _MOST_QUERIES))
        rows = tf.range(num_rows) * (num_queries // tf.maximum(num_rows, 1))
        estimate = estimate.of(rows)
        query = mean_query(query) if self.shared else tf.gather(query, rows)
        ids = tf.maximum(estimate.ids, 0)
        vectors = step.class_vectors(tf.reshape(ids, [-1]))
        vectors = tf.reshape(vectors, [num_rows, num_scored, self.query_dim])
        log_weights = tf.math.log(self._own_weight(ids)) if self.cells == "frequency" else 0.0
        codebooks = [tf_variable(codebook) for codebook in self.codebooks]
        self.learner.learn(codebooks, query, vectors, estimate, log_weights)


class _CellLogits:
    """Queries [N, D], their u and v [N, C], and log Z [N] once it is known."""

    def __init__(self, query, row_logits, column_logits):
        self.query, self.row_logits, self.column_logits = query, row_logits, column_logits
        self.log_total = None
