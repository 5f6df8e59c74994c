"""MIDX: draws from the softmax over quantised class vectors, by an inverted multi-index."""

import numpy as np
import tensorflow as tf

from tfxc._keras import add_weight, constant, register, tf_variable
from tfxc.ops.midx_draw import CellIndex, midx_draw, midx_log_partition
from tfxc.samplers.class_counts import SAVED, check_counts, gather_counts, match_classes
from tfxc.samplers.quantization import two_codebooks
from tfxc.samplers.sampler import Sampler


@register
class MIDX(Sampler):
    """Draws classes that score high now: the softmax over quantised class vectors.

    Two codebooks of C codewords put class i into cell (a_i, b_i); with ``u = z·c1`` and ``v = z·c2``,
    ``Q(i|z) = exp(u_{a_i} + v_{b_i}) / Σ_ab |cell_ab| exp(u_a + v_b)``: first a cell by its share, then
    a class in it uniformly. A draw costs O(C·D + C²), whatever L. The closer Q is to the softmax, the less
    noise sampling adds, so a handful of these negatives trains nearly as well as all classes.

    Before its first ``refresh`` the codebooks are zero and Q is exactly uniform. Refresh once an epoch
    (``tfxc.callbacks.SamplerRefresh``): k-means on the class vectors, starting from the last codebooks.

    Args:
        num_negatives: S, draws a query (or a batch).
        num_codewords: C; 32 for about 10 thousand classes, 64 for 100 thousand and more.
        quantizer: "rq" (the second codebook quantises the residual of the first) or "pq" (each
            codebook quantises half of the dimensions).
        cells: "uniform", or "frequency": within a cell by ``counts + 1``.
        counts: None or class counts [L]; they weight the k-means (by counts + 1), so that codewords lie
            where the frequent classes are. Required by ``cells="frequency"``.
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
        self.num_codewords = num_codewords
        self.quantizer = quantizer
        self.cells = cells
        self.counts = counts
        if counts is not None and not isinstance(counts, str):
            self.counts = check_counts(np.asarray(counts, np.float64) + 1, "MIDX")

    def get_config(self):
        return {
            **super().get_config(),
            "num_codewords": self.num_codewords,
            "quantizer": self.quantizer,
            "cells": self.cells,
            "counts": None if self.counts is None else SAVED,
        }

    def build_index(self):
        size, dim = self.num_codewords, self.query_dim
        if self.quantizer == "pq" and dim < 2:
            raise ValueError(f'quantizer="pq" halves the query, but its width is {dim}; use "rq".')
        widths = (dim, dim) if self.quantizer == "rq" else (dim // 2, dim - dim // 2)
        for i, width in enumerate(widths):
            self._set(f"codebook_{i}", np.zeros((size, width), np.float32))
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
        weight = None
        if self.counts is not None:
            everything = tf.range(self.num_classes)
            weight = gather_counts(tf_variable(self.class_weight), everything, "MIDX").numpy()
        codebooks = [tf_variable(codebook).numpy() for codebook in self.codebooks]
        fitted, codes = two_codebooks(
            head,
            codebooks if any(codebook.any() for codebook in codebooks) else None,
            residual=self.quantizer == "rq",
            num_codewords=self.num_codewords,
            seed=self.seed % 2**31,
            weights=weight,
        )
        for variable, codebook in zip(self.codebooks, fitted, strict=True):
            tf_variable(variable).assign(codebook)
        for name, value in self._cells(codes[0] * self.num_codewords + codes[1], weight).items():
            self._set(name, value)

    def _cells(self, cell, weight=None):
        """The classes sorted by cell, for a given cell int64 [L] and, by frequency, class weights [L]."""
        size = self.num_codewords
        order = np.argsort(cell, kind="stable").astype(np.int32)
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

    def _cell_logits(self, query):
        """u and v [N, C]: the query's products with the codewords of either codebook."""
        first, second = (tf_variable(codebook) for codebook in self.codebooks)
        if self.shared:  # a batch without any query has mean 0, not NaN
            num_queries = tf.cast(tf.maximum(tf.shape(query)[0], 1), query.dtype)
            query = tf.reduce_sum(query, 0, keepdims=True) / num_queries
        left, right = (query, query) if self.quantizer == "rq" else tf.split(query, [first.shape[1], -1], 1)
        return tf.matmul(left, first, transpose_b=True), tf.matmul(right, second, transpose_b=True)

    def draw(self, query, labels, seed):
        frequency = self.cells == "frequency"
        index = CellIndex(
            tf_variable(self.cell_mass),
            tf_variable(self.cell_offsets),
            tf_variable(self.cell_classes),
            tf_variable(self.cumulative_weight) if frequency else tf.zeros([0], tf.float64),
        )
        ids, log_prob = midx_draw(*self._cell_logits(query), index, self.num_negatives, seed)
        return (ids[0], log_prob[0]) if self.shared else (ids, log_prob)

    def log_prob(self, query, ids):
        row_logits, column_logits = self._cell_logits(query)
        log_total = midx_log_partition(row_logits, column_logits, tf_variable(self.cell_mass))
        ids = tf.maximum(ids, 0)
        cell = tf.gather(tf_variable(self.cell), ids)
        row, column = cell // self.num_codewords, cell % self.num_codewords
        if self.shared:
            log_prob = tf.gather(row_logits[0], row) + tf.gather(column_logits[0], column) - log_total[0]
        else:
            log_prob = _gather(row_logits, row) + _gather(column_logits, column) - log_total[:, tf.newaxis]
        if self.cells == "frequency":
            log_prob += tf.math.log(gather_counts(tf_variable(self.class_weight), ids, "MIDX"))
        return log_prob


def _gather(logits, codes):
    """Logits [N, C] at codes [N, S], or [S] shared by all queries."""
    return tf.gather(logits, codes, axis=1, batch_dims=1 if codes.shape.rank == 2 else 0)
