"""MIDX: draws from the softmax over quantised class vectors, by an inverted multi-index."""

import functools
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tfxc._keras import register
from tfxc._keras.weights import add_weight, tf_variable
from tfxc.arguments import one_of, positive_int
from tfxc.class_rows import ClassRows
from tfxc.class_vectors import blocks, vectors_of
from tfxc.ops.midx_draw import CellIndex, midx_draw, midx_log_partition, pack_slots
from tfxc.ops.remote import colocated_with
from tfxc.samplers.alias import alias_table
from tfxc.samplers.codebook_learner import CodebookLearner, softmax_estimate
from tfxc.samplers.moments import Moments, QueryMoments, log_frequency
from tfxc.samplers.quantization import encode, fit_codebooks, quantised_vectors
from tfxc.samplers.sampler import Sampler
from tfxc.samplers.step import Step, mean_query

_CODEBOOKS = "codebook_0", "codebook_1"
_INDEX = "cell_mass", "cell_offsets", "slots"
# Learnt codewords stay while their error is at most this much more than that of k-means.
_KEPT_ERROR_RATIO = 1.25
_SMALLEST_IMPORTANCE = 0.01  # of a class in the k-means, of the mean
_MOMENT_ROWS = 1 << 16  # class vectors that their moments are taken of
_SLOTS_AT_ONCE = 1 << 16
_LARGEST_LOG_WEIGHT = 10.0  # of a class in its cell, either way; so far they go at a million classes
# Codebooks learn from so many of a step's queries, and from class vectors of so many numbers.
_MOST_QUERIES = 256
_MOST_FLOATS = 1 << 23


@register
class MIDX(Sampler):
    """Draws classes that score high now: the softmax over quantised class vectors.

    Two codebooks of C codewords put class i into cell (a_i, b_i), where its vector w_i is quantised to ŵ_i,
    the sum of two codewords. ``Q(i|z) = m_i exp(z·ŵ_i) / Σ_j m_j exp(z·ŵ_j)``: first a cell by its share,
    then a class in it by its weight m_i. A draw costs O(C·D + C²), whatever L. The closer Q is to the
    softmax, the less noise sampling adds, so a handful of these negatives trains nearly as well as all
    classes.

    The weights make good, in the mean over queries, what quantisation took away: m_i is the frequency that
    the model gives class i, over what it would give one at ŵ_i (``log_frequency``, for queries as in the last
    steps). So a class that scores higher than the others of its cell for most queries is drawn more often.

    Before its first ``refresh`` the codebooks are zero and Q is exactly uniform. Refresh once an epoch
    (``tfxc.callbacks.SamplerRefresh``), where epochs are long every 50 to 200 steps: the younger the index,
    the nearer Q. It is k-means on the class vectors, each time anew: one that starts from the last codebooks
    keeps the clusters of the first, barely trained vectors. What k-means must keep small is the error in the
    logits of the classes that get probability, so it weights each class by its frequency, too (all alike
    before there was a query).

    ``learnable=True`` goes on where k-means ends. It knows the queries by their moments alone; training knows
    each of them, so the codebooks take a step of their own beside each of the model's, towards the smallest
    ``KL(softmax ‖ Q)``, estimated on the classes the step scored, plus the quantisation error. A refresh then
    sorts the classes into the learnt cells, and fits anew only codebooks that the classes have left behind.

    Args:
        num_negatives: S, draws a query (or a batch).
        num_codewords: C, in [1, 1024]; 32 for about 10 thousand classes, 64 for 100 thousand, 128 for a
            million and more.
        quantizer: "rq" (the second codebook quantises the residual of the first) or "pq" (each
            codebook quantises half of the dimensions).
        learnable: whether the codebooks learn while the model trains, from the first refresh on.
        shared: one set of draws for the whole batch, from the Q of its mean query.
        seed: int, see ``Sampler``.

    Raises:
        ValueError: for arguments outside their range.

    Example:
        >>> sampler = MIDX(4, num_codewords=2, seed=1)
        >>> sampler.build((10, 8))
        >>> draw = sampler.sample(tfxc.samplers.Step(tf.zeros([3, 8]), tf.zeros([3, 1], tf.int32)))
        >>> draw.ids.shape, round(float(tf.exp(draw.log_expected_count[0, 0])), 4)
        (TensorShape([3, 4]), 0.4)

    Reference:
        Chen et al., "Adaptive Sampled Softmax with Inverted Multi-Index: Methods, Theory and
        Applications", 2025.
    """

    def __init__(
        self,
        num_negatives: int,
        *,
        num_codewords: int = 64,
        quantizer: Literal["rq", "pq"] = "rq",
        learnable: bool = False,
        shared: bool = False,
        seed: int | None = None,
        **kwargs,
    ) -> None:
        super().__init__(num_negatives, shared=shared, seed=seed, **kwargs)
        self.num_codewords = positive_int(num_codewords, "num_codewords", most=1024)  # cost grows with C²
        self.quantizer = one_of(quantizer, "quantizer", ("rq", "pq"))
        self._residual = quantizer == "rq"
        self.learnable = bool(learnable)
        self.queries: Any = None  # a part that knows the classes of one shard alone keeps to no queries

    def get_config(self):
        return {
            **super().get_config(),
            "num_codewords": self.num_codewords,
            "quantizer": self.quantizer,
            "learnable": self.learnable,
        }

    def build_index(self):
        size, dim = self.num_codewords, self.query_dim
        if self.quantizer == "pq" and dim < 2:
            raise ValueError(f'quantizer="pq" halves the query, but its width is {dim}; use "rq".')
        widths = (dim, dim) if self._residual else (dim // 2, dim - dim // 2)
        self.queries = QueryMoments()
        self.queries.build((dim,))
        for i, width in enumerate(widths):
            codebook = add_weight(self, f"codebook_{i}", (size, width), trainable=False, aggregation="mean")
            setattr(self, f"codebook_{i}", codebook)
        if self.learnable:
            self.learner = CodebookLearner(residual=self._residual)
            self.learner.build([(size, width) for width in widths])

    def build_rows(self):
        # Codebooks of zeros and weights of one make this exactly the uniform distribution.
        cell = (np.arange(self.num_classes) % self.num_codewords**2).astype(np.int32)
        weight = np.ones(self.num_classes, np.float32)
        self.add_weights({"cell": cell})
        with colocated_with(tf_variable(self.cell)):
            self.add_weights({"class_weight": weight})
        self.divide(["cell", "class_weight"])
        if not self.parts:
            self.add_weights(_index(cell, weight, self.num_codewords))

    def build_part(self, whole: Sampler) -> None:
        """As a sampler of the classes of one shard: with codebooks and an index of its own."""
        for name, value in {**whole._copied(), **self._sorted()}.items():
            setattr(self, name, tf.Variable(value, trainable=False))

    def _copied(self):
        return {name: tf_variable(getattr(self, name)).numpy() for name in _CODEBOOKS}

    def _sorted(self):
        cell, weight = (tf_variable(own).numpy() for own in (self.cell, self.class_weight))
        return _index(cell, weight, self.num_codewords)

    @property
    def codebooks(self) -> tuple:
        """The two codebooks; weights in a list attribute would be missing from a ``tf.train.Checkpoint``."""
        return self.codebook_0, self.codebook_1

    def refresh(self, head) -> None:
        """Fits the codebooks to the head's class vectors and sorts the classes into cells anew."""
        self.check_head(head)
        log_of, log_frequencies = self._log_frequencies(head)
        codebooks, cell = self._fitted(head, _importance(log_frequencies))
        self._sort_classes(cell, self._weights(log_frequencies, log_of, cell, codebooks), codebooks)
        self._summarize(head, codebooks, cell, log_frequencies)

    def class_rows(self):
        return [ClassRows(self.cell)]

    def classes_changed(self, head, added: np.ndarray) -> None:
        """Keeps the codebooks, and sorts the new classes into the cells."""
        cell = tf_variable(self.cell).numpy()
        codebooks = [tf_variable(codebook).numpy() for codebook in self.codebooks]
        cell[added] = self._cell_of(encode(head, codebooks, self._residual, added)[0])
        log_of, log_frequencies = self._log_frequencies(head)
        self._sort_classes(cell, self._weights(log_frequencies, log_of, cell, codebooks), codebooks)
        self._summarize(head, codebooks, cell, log_frequencies)

    def derived_weights(self):
        return [] if self.parts else [getattr(self, name) for name in _INDEX]

    def weights_restored(self):
        for part in self.parts or [self]:
            part.assign_weights({**self._copied(), **part._sorted()})

    def _summarize(self, head, codebooks, cell, log_frequencies):
        if self.learnable:
            codes = np.stack([cell // self.num_codewords, cell % self.num_codewords])
            self.learner.summarize(head, codebooks, codes, _importance(log_frequencies))

    def _cell_of(self, codes):
        return codes[0] * self.num_codewords + codes[1]

    def _log_frequencies(self, head):
        """``log_frequency`` given the last queries and the classes; and what it gives each of them [L]."""
        generator = np.random.default_rng(self.seed % 2**31)
        num_rows = min(self.num_classes, _MOMENT_ROWS)
        ids = np.sort(generator.choice(self.num_classes, num_rows, replace=False))
        classes = Moments.of(vectors_of(head, ids))
        log_of = functools.partial(log_frequency, queries=self.queries.moments(), classes=classes)
        with np.errstate(over="ignore", invalid="ignore"):
            log_frequencies = np.concatenate([log_of(vectors) for _, vectors in blocks(head)])
        if not np.isfinite(log_frequencies).all():
            raise ValueError(
                "The products of the last queries and the class vectors are not finite, so no index can be "
                "built: training has diverged. Lower the learning rate or clip the gradients."
            )
        return log_of, log_frequencies

    def _weights(self, log_frequencies, log_of, cell, codebooks):
        """m_i float32 [L] of classes of these log frequencies in these cells."""
        rows = quantised_vectors(codebooks, self._residual)
        quantised = np.concatenate([log_of(vectors) for vectors in rows])
        log_weights = log_frequencies - quantised[cell]
        log_weights = np.clip(log_weights, -_LARGEST_LOG_WEIGHT, _LARGEST_LOG_WEIGHT)
        return np.exp(log_weights).astype(np.float32)

    def _fitted(self, head, importance):
        """Codebooks and each class's cell int32 [L]: by k-means, or as learnt if about as good."""
        last = [tf_variable(codebook).numpy() for codebook in self.codebooks]
        is_learnt = any(codebook.any() for codebook in last) and all(
            np.isfinite(codebook).all() for codebook in last
        )
        last = last if self.learnable and is_learnt else None
        fitted = fit_codebooks(head, last, self._residual, self.num_codewords, self.seed % 2**31, importance)
        codes, errors = encode(head, fitted, self._residual)
        if last is not None:
            learnt_codes, learnt_errors = encode(head, last, self._residual)
            limit = _KEPT_ERROR_RATIO * np.average(errors, weights=importance)
            if np.average(learnt_errors, weights=importance) <= limit:
                return last, self._cell_of(learnt_codes)
        return fitted, self._cell_of(codes)

    def _sort_classes(self, cell, weight, codebooks):
        """Takes over codebooks, and cells and weights [L] of the classes, sorted anew."""
        codebooks = dict(zip(_CODEBOOKS, codebooks, strict=True))
        rows = {"cell": cell.astype(np.int32), "class_weight": weight}
        if self.parts:
            self.assign_weights({**rows, **codebooks})
            self.weights_restored()
        else:
            # Nothing is assigned before all is computed: where memory runs out, the old index is whole.
            self.assign_weights({**_index(*rows.values(), self.num_codewords), **rows, **codebooks})

    def prepare(self, step: Step):
        """The queries and their products with the codewords of either codebook."""
        first, second = (tf_variable(codebook) for codebook in self.codebooks)
        left = right = step.query
        if self.quantizer == "pq":
            left, right = tf.split(step.query, [first.shape[1], -1], 1)
        row_logits = tf.matmul(left, first, transpose_b=True)
        return _CellLogits(step.query, row_logits, tf.matmul(right, second, transpose_b=True))

    def observe(self, step):
        self.queries.follow(step.query, tf_variable(self.counter))

    def draw(self, given, seed):
        logits = given.row_logits, given.column_logits
        ids, log_prob, given.log_total = midx_draw(*logits, self._cell_index(), self.num_negatives, seed)
        if self.queries is not None:
            with tf.control_dependencies([ids]):  # raises where a query is not finite
                self.queries.follow(given.query, tf_variable(self.counter))
        return ids, self.log_num_draws + log_prob

    def _cell_index(self):
        return CellIndex(*(tf_variable(getattr(self, name)) for name in _INDEX))

    def log_mass(self, given) -> tf.Tensor:
        """The log of what all classes weigh together for a query [N]: log Z."""
        return midx_log_partition(given.row_logits, given.column_logits, tf_variable(self.cell_mass))

    def log_expected_count(self, given, ids):
        log_total = given.log_total
        if log_total is None:  # not kept: a tensor of a loop's body is of no use outside it
            log_total = self.log_mass(given)
        return self.log_num_draws + self._log_weights(given, ids) - log_total[:, tf.newaxis]

    def _log_weights(self, given, ids):
        """``log Q + log Z`` of classes [N, P]: u + v of their cells, and the log of their own weights."""
        cell = tf.gather(tf_variable(self.cell), ids)
        log_weight = tf.gather(given.row_logits, cell // self.num_codewords, batch_dims=1)
        log_weight += tf.gather(given.column_logits, cell % self.num_codewords, batch_dims=1)
        return log_weight + self._log_own_weight(ids)

    def _log_own_weight(self, ids):
        return tf.math.log(tf.gather(tf_variable(self.class_weight), ids))

    @property
    def needs_scores(self):
        return self.learnable

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
        codebooks = [tf_variable(codebook) for codebook in self.codebooks]
        self.learner.learn(codebooks, query, vectors, estimate, self._log_own_weight(ids))


def _index(cell, weight, num_codewords):
    """The classes sorted by cell, for given cells and class weights [L]: by ``_INDEX``."""
    num_cells = num_codewords**2
    # NumPy sorts 16 bits by radix, ten times faster.
    order = np.argsort(cell.astype(np.uint16) if num_cells <= 1 << 16 else cell, kind="stable")
    order = order.astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(cell, minlength=num_cells))]).astype(np.int32)
    mass = np.bincount(cell, weights=weight, minlength=num_cells)
    mass = mass.reshape(num_codewords, num_codewords).astype(np.float32)
    return dict(zip(_INDEX, (mass, offsets, _slots(order, offsets, weight)), strict=True))


def _slots(order, offsets, weight):
    """The classes in that order with the alias table of each cell, see ``pack_slots``.

    They are made of some cells at a time: for all of them it would take many times the memory.
    """
    slots = np.empty((len(order), 4), np.int32)
    first = 0
    while first < len(offsets) - 1:
        last = np.searchsorted(offsets, offsets[first] + _SLOTS_AT_ONCE, side="right") - 1
        last = max(int(last), first + 1)
        start, end = offsets[first], offsets[last]
        classes = order[start:end]
        threshold, alias = alias_table(weight[classes], offsets[first : last + 1] - start)
        slots[start:end] = pack_slots(threshold, alias + start, classes, weight[classes])
        first = last
    return slots


def _importance(log_frequencies):
    """What classes weigh in k-means, of mean 1: their frequencies, and something for those without."""
    frequencies = np.exp(log_frequencies - log_frequencies.max())
    return np.maximum(frequencies / frequencies.mean(), _SMALLEST_IMPORTANCE)


class _CellLogits:
    """Queries [N, D], their u and v [N, C], and log Z [N] once it is known."""

    def __init__(self, query, row_logits, column_logits):
        self.query, self.row_logits, self.column_logits = query, row_logits, column_logits
        self.log_total = None
