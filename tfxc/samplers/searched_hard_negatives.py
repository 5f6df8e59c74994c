"""Hard negatives searched inside the training step, without a table."""

import numpy as np
import tensorflow as tf

from tfxc._keras import register
from tfxc._keras.weights import add_weight, tf_variable
from tfxc.arguments import positive_int
from tfxc.class_vectors import blocks, subsample
from tfxc.clustering import assign, kmeans
from tfxc.ops.candidate_scores import candidate_scores
from tfxc.samplers.hard_negatives import HardAndUniform

_POINTS_PER_CELL = 64
_MAX_CELLS = 1 << 14
_CAPACITY = 4  # a step reads at most this many times the mean number of members of a cell


@register
class SearchedHardNegatives(HardAndUniform):
    """``HardNegatives`` that each step searches in an inverted index, with queries that are never stale.

    k-means cuts the class vectors into cells. A step scores the members of the ``num_probes`` cells whose
    centres fit a query best: of each cell at most four times the mean number of members, which every refresh
    chooses at random. The sampler needs neither example ids nor a disk, so it suits streams and sequences,
    but keeps a copy of the class vectors [L, D] and costs time in every step. The loss stays unbiased
    whatever it finds. Before the first ``refresh`` (``tfxc.callbacks.SamplerRefresh``) draws are uniform.

    Args:
        num_hard, num_uniform, num_retrieved, seed: see ``HardNegatives``.
        num_cells: cells of the index; None for about four times the root of L, at most 16,384.
        num_probes: cells searched for a query, in [1, num_cells].

    Raises:
        ValueError: for arguments outside their range.

    Example:
        >>> sampler = SearchedHardNegatives(2, 3, num_cells=4, num_probes=2, seed=1)
        >>> sampler.build((100, 8))
        >>> sampler.sample(tfxc.samplers.Step(tf.zeros([4, 8]), tf.zeros([4, 1], tf.int32))).ids.shape
        TensorShape([4, 5])

    Reference:
        Sivic, Zisserman, "Video Google: A Text Retrieval Approach to Object Matching in Videos", 2003 (the
        inverted index); Mehta et al., "ASTRA: Accurate and Scalable ANNS-based Training of Extreme
        Classifiers", 2024.
    """

    def __init__(
        self,
        num_hard: int,
        num_uniform: int,
        *,
        num_cells: int | None = None,
        num_probes: int = 4,
        num_retrieved: int | None = None,
        seed: int | None = None,
        **kwargs,
    ) -> None:
        super().__init__(num_hard, num_uniform, num_retrieved=num_retrieved, seed=seed, **kwargs)
        self.num_probes = positive_int(num_probes, "num_probes")
        self.num_cells = None if num_cells is None else positive_int(num_cells, "num_cells", most=_MAX_CELLS)
        if num_cells is not None and num_probes > num_cells:
            raise ValueError(f"num_probes must be in [1, num_cells={num_cells}], but got {num_probes}.")

    def get_config(self):
        return {**super().get_config(), "num_cells": self.num_cells, "num_probes": self.num_probes}

    def build_index(self):
        super().build_index()
        num_cells = self.num_cells or min(int(4 * self.num_classes**0.5), self.num_classes, _MAX_CELLS)
        self.centres = self._add("centres", (num_cells, self.query_dim))
        self.cell_classes = self._add("cell_classes", (self.num_classes,), "int32")
        self.cell_offsets = self._add("cell_offsets", (num_cells + 1,), "int32")
        self.vectors = self._add("vectors", (self.num_classes, self.query_dim))

    def _add(self, name, shape, dtype="float32"):
        return add_weight(self, name, shape, "zeros", dtype, trainable=False)

    def refresh(self, head) -> None:
        """Copies the head's class vectors and cuts them into cells anew."""
        self.check_head(head)
        num_cells, cells = self.centres.shape[0], np.empty(self.num_classes, np.int32)
        vectors = tf_variable(self.vectors)
        _, points = subsample(head, _POINTS_PER_CELL * num_cells, self.seed % 2**31)
        centres = kmeans(points, num_cells, seed=self.seed % 2**31)
        for start, block in blocks(head):
            cells[start : start + len(block)] = assign(block, centres)
            vectors.scatter_update(tf.IndexedSlices(block, tf.range(start, start + len(block))))
        offsets = np.concatenate([[0], np.cumsum(np.bincount(cells, minlength=num_cells))])
        tf_variable(self.centres).assign(centres)
        # The order within a cell is random, so that a large cell leaves out other classes each time.
        random = np.random.default_rng([self.seed % 2**31, tf_variable(self.counter).numpy()])
        order = random.permutation(self.num_classes)
        order = order[np.argsort(cells[order], kind="stable")]
        tf_variable(self.cell_classes).assign(order.astype(np.int32))
        tf_variable(self.cell_offsets).assign(offsets.astype(np.int32))

    def retrieve(self, step):
        query = step.query
        centres, offsets = tf_variable(self.centres), tf_variable(self.cell_offsets)
        probes = min(self.num_probes, centres.shape[0])
        cells = tf.math.top_k(tf.matmul(query, centres, transpose_b=True), probes, sorted=False).indices
        start, stop = (tf.gather(offsets, cells + i)[..., tf.newaxis] for i in (0, 1))
        capacity = min(_CAPACITY * -(-self.num_classes // centres.shape[0]), self.num_classes)
        place = start + tf.range(tf.minimum(capacity, tf.maximum(tf.reduce_max(stop - start), 1)))
        members = tf.gather(tf_variable(self.cell_classes), tf.minimum(place, self.num_classes - 1))
        members = tf.reshape(tf.where(place < stop, members, -1), [tf.shape(query)[0], -1])
        scores = candidate_scores(tf_variable(self.vectors), query, members)
        scores = tf.where(members >= 0, scores, float("-inf"))
        num_found = tf.minimum(self.num_retrieved, tf.shape(members)[1])
        best = tf.gather(members, tf.math.top_k(scores, num_found).indices, batch_dims=1)
        best = tf.pad(best, [[0, 0], [0, self.num_retrieved - num_found]], constant_values=-1)
        return tf.ensure_shape(best, [None, self.num_retrieved])
