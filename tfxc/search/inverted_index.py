"""An inverted index over a head's class vectors, searched by stock TensorFlow ops."""

import numbers

import numpy as np
import tensorflow as tf

from tfxc._keras import add_weight, keras, register, tf_variable
from tfxc.arguments import positive_int
from tfxc.class_vectors import one_thread
from tfxc.ids import check_ids, for_each_row
from tfxc.require import require
from tfxc.scored import BestClasses
from tfxc.search.apart import apart
from tfxc.search.candidates import best_allowed, best_candidates, search_or_allowed
from tfxc.search.cells import cut_into_cells, gather_around
from tfxc.search.exact import grouped_top_k
from tfxc.search.scanned import Answers, most_promising
from tfxc.search.tiles import DTYPES, Tiles, lay_out
from tfxc.search.tuning import cheapest, scan_steps

_NUM_PROBES = 8
_WEIGHTS = *Tiles._fields, "answers_mean", "answers_covariance"
_STORED_AS = {"bfloat16": "uint16"}  # the same bits: files of tf-keras know no bfloat16
# What a block of queries reads or writes, in numbers: 16 MB of float32: the cache holds and malloc keeps it.
_BLOCK_ELEMENTS = 1 << 22


@register
class InvertedIndex(keras.layers.Layer):
    """The best classes of a query among those of a few cells, many times faster than among all.

    k-means cuts the class vectors into cells of like direction, long vectors apart from short ones; a query z
    reads the members of the cells that promise most, ``max_c z · mean_c + |z| · reach_c``, and ranks them.
    Classes that answer many queries, as frequent ones do, are in no cell: one dense product scores all of
    them for every query. How much a query reads is always the same: ``num_scanned`` classes, and
    ``num_probes`` cells of mean size. So it serves millions of classes in milliseconds, at the price of a few
    it does not find: ``recall`` tells how many, ``tune`` chooses what reaches a given share.

    The index keeps a copy of the class vectors, cell by cell, and nothing of the head. Give it to
    ``model.export(path, index=index)``, or ask it for ``top_k``. It does not follow further training, nor
    other classes: ``rebuilt`` gives one that does.

    Args:
        num_cells: about how many directions are told apart; None for about twice the root of L. Each of them
            is up to two cells; after ``build_from`` the actual number of cells.
        num_probes: cells a query reads, in [1, num_cells]; None for 8.
        dtype: of the rows: "float32"; "bfloat16"; or "int8", with one scale a row. The latter two keep the
            difference of a row from the mean of its cell, and read a half or a quarter. Products are those of
            float32 queries with the rounded rows: so are the scores.
        num_scanned: classes that every query is scored with, in [0, L); None for what ``tune`` chooses, and
            for none in ``build_from``.

    Call arguments:
        query: float [N, E], a head's ``effective_query``.

    Returns:
        From ``call``: the 10 best as of ``top_k``.

    Raises:
        ValueError: for arguments outside their range, or an index used before ``build_from``.

    Example:
        >>> head = tfxc.layers.DenseHead(1000)
        >>> head.build((None, 16))
        >>> index = InvertedIndex(num_cells=20, num_probes=5)
        >>> index.build_from(head)
        >>> index.top_k(tf.ones([2, 16]), k=3).ids.shape
        TensorShape([2, 3])
        >>> 0 <= index.recall(head, tf.random.normal([8, 16]), k=3) <= 1
        True

    Reference:
        Sivic, Zisserman, "Video Google: A Text Retrieval Approach to Object Matching in Videos", 2003; Jégou,
        Douze, Schmid, "Product Quantization for Nearest Neighbor Search", 2011 (codes of the difference from
        the centre); Bruch, Krishnan, Nardini, "Optimistic Query Routing in Clustering-based Approximate
        Maximum Inner Product Search", 2024 (which cells are read); Liu et al., "Understanding and Improving
        Proximity Graph Based Maximum Inner Product Search", 2020 (few classes answer most queries).
    """

    supports_jit = False

    def __init__(self, num_cells=None, num_probes=None, dtype="float32", num_scanned=None, **kwargs):
        super().__init__(dtype="float32", **kwargs)
        if num_scanned is not None:
            num_scanned = positive_int(num_scanned, "num_scanned", least=0)
        if num_cells is not None:
            num_cells = positive_int(num_cells, "num_cells")
        if num_probes is not None:
            num_probes = positive_int(num_probes, "num_probes")
        if num_cells is not None and num_probes is not None and num_probes > num_cells:
            raise ValueError(f"num_probes must be in [1, num_cells={num_cells}], but got {num_probes}.")
        if dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {tuple(DTYPES)}, but got {dtype!r}.")
        self.num_cells = num_cells
        self.num_probes = num_probes
        self.rows_dtype = dtype
        self.num_scanned = num_scanned
        self.supports_jit = False

    def get_config(self):
        return {
            **super().get_config(),
            "num_cells": self.num_cells,
            "num_probes": self.num_probes,
            "dtype": self.rows_dtype,
            "num_scanned": self.num_scanned,
        }

    def get_build_config(self):
        """The shapes of the weights, which depend on the class vectors."""
        return {"shapes": [list(part.shape) for part in self._weights]} if self.built else None

    def build(self, input_shape=None):
        """Raises ValueError: an index is built from a head, not from the shape of its input."""
        self._require_built()

    def build_from_config(self, config):
        """Keras calls this when it loads a model: weights for what ``build_from`` had found."""
        if config:
            self._add_weights(config["shapes"])

    def _add_weights(self, shapes):
        rows_dtype = _STORED_AS.get(self.rows_dtype, self.rows_dtype)
        dtypes = ["float32", "float32", "int32", "int32", "int32", rows_dtype, "float32"]
        dtypes += ["int32", _STORED_AS.get(self._scanned_dtype, "float32"), "float32", "float32"]
        for name, shape, dtype in zip(_WEIGHTS, shapes, dtypes, strict=True):
            setattr(self, name, add_weight(self, name, shape, "zeros", dtype, trainable=False))
        self.num_classes = self.places.shape[0]
        self.built = True

    @property
    def _parts(self):
        return Tiles(*(tf_variable(getattr(self, name)) for name in Tiles._fields))

    @property
    def _weights(self):
        return [tf_variable(getattr(self, name)) for name in _WEIGHTS]

    @property
    def _scanned_dtype(self):
        return "float32" if self.rows_dtype == "float32" else "bfloat16"

    def build_from(self, head):
        """Cuts the head's class vectors into cells and copies them. A million of width 64 take half a minute.

        Raises:
            ValueError: for a head without class vectors whose inner product is the logit, for a class vector
                that is not finite, or if the index is built already.
        """
        if self.built:
            raise ValueError("The index is built already: make a new InvertedIndex for other class vectors.")
        _make_ready(head)
        answers = Answers.of_any(head.effective_dim)
        scanned = most_promising(head, answers, self._checked_num_scanned(head))
        with one_thread():
            self._take(head, cut_into_cells(head, self._usual_num_cells(head)), scanned, answers)

    def rebuilt(self, head):
        """An index of a head as it is now, after training or ``change_classes``, around the same centres.

        Without k-means it takes a fraction of the time of ``build_from``, which is worth its while again once
        ``recall`` falls.

        Args:
            head: as of ``build_from``, with any number of classes.

        Returns:
            Another ``InvertedIndex``, with as many probes and scanned classes.

        Raises:
            ValueError: as of ``build_from``, or for an index that is empty.
        """
        self._require_built()
        _make_ready(head)
        index = InvertedIndex(num_probes=self.num_probes, dtype=self.rows_dtype)
        answers = Answers(*(tf_variable(own).numpy() for own in (self.answers_mean, self.answers_covariance)))
        scanned = most_promising(head, answers, min(self.num_scanned, head.num_classes - 1))
        with one_thread():
            index._take(head, gather_around(head, self._parts.centres.numpy()), scanned, answers)
        return index

    def _checked_num_scanned(self, head):
        if self.num_scanned is not None and self.num_scanned >= head.num_classes:
            raise ValueError(
                f"num_scanned must be in [0, {head.num_classes}), below the number of classes, but got "
                f"{self.num_scanned}. To score all classes, export the model without an index."
            )
        return self.num_scanned or 0

    def _take(self, head, cells, scanned, answers):
        scanned = np.sort(scanned)
        tiles = lay_out(head, cells.without(scanned), scanned, self.rows_dtype)
        weights = [*tiles, *(moment.astype(np.float32) for moment in answers)]
        self._add_weights([weight.shape for weight in weights])
        for variable, weight in zip(self._weights, weights, strict=True):
            variable.assign(weight.view(variable.dtype.as_numpy_dtype))
        self.num_scanned = len(scanned)
        self.num_cells = len(tiles.centres)
        self.num_probes = min(self.num_probes or _NUM_PROBES, self.num_cells)

    def call(self, query):
        return self.top_k(query, min(10, self.num_classes))

    def top_k(self, query, k, exclude=None, allow=None, num_probes=None):
        """The k best of the scanned classes and those in the probed cells. Cells are added until there are k.

        Args:
            query: float [N, E], ``head.effective_query(query)`` of a head's queries.
            k: how many, an int in [1, L] or an int32 scalar tensor (clamped to L).
            exclude: None or class ids [N, X], or [1, X] for all queries, padded with -1, that are never
                returned.
            allow: None or class ids [N, A], or [1, A] for all queries, padded with -1: only these are ranked,
                all of them. A width of 0 allows every class.
            num_probes: None for the index's own, or an int or int32 scalar, clamped to the number of cells;
                with all of them nothing is missed.

        Returns:
            ``BestClasses`` as of ``Head.top_k``; of equals that do not all fit in, any.

        Raises:
            ValueError: if k is an int outside [1, L], num_probes one below 1, or the query of another width.
            tf.errors.InvalidArgumentError: for a class id outside [-1, L), or such numbers in a graph.
        """
        self._require_built()
        query = tf.cast(query, tf.float32)
        if query.shape[-1] != self.centres.shape[1]:
            raise ValueError(
                f"The index holds vectors of width {self.centres.shape[1]}, but the query is of shape "
                f"{query.shape}: give it head.effective_query(query), of the head it was built from."
            )
        if isinstance(k, numbers.Integral) and not 1 <= k <= self.num_classes:
            raise ValueError(f"k must be in [1, {self.num_classes}], the number of classes, but got {k}.")
        if isinstance(num_probes, numbers.Integral) and num_probes < 1:
            raise ValueError(f"num_probes must be at least 1, but got {num_probes}.")
        num_probes = tf.cast(self.num_probes if num_probes is None else num_probes, tf.int32)
        if exclude is None:
            exclude = tf.zeros([tf.shape(query)[0], 0], tf.int32)
        if allow is not None:
            allow = tf.convert_to_tensor(allow)
        return BestClasses(*self._top_k(query, tf.cast(k, tf.int32), exclude, allow, num_probes))

    def _require_built(self):
        if not self.built:
            raise ValueError("The index is empty: call build_from(head), or tune(head, queries), first.")

    @tf.function(reduce_retracing=True, autograph=False)
    def _top_k(self, query, k, exclude, allow, num_probes):
        exclude = check_ids(exclude, self.num_classes, "excluded class")
        exclude = for_each_row(exclude, query)
        with tf.control_dependencies(_at_least_one(k, "k") + _at_least_one(num_probes, "num_probes")):
            k = tf.minimum(k, self.num_classes)
            probes = tf.minimum(num_probes, self.num_cells)

        def allowed():
            score = lambda ids: self._score(query, ids)  # noqa: E731
            return best_allowed(score, allow, self.num_classes, tf.shape(query)[0], k, exclude)

        return search_or_allowed(lambda: self._search(query, k, exclude, probes), allowed, allow)

    def _search(self, query, k, exclude, probes):
        """The k best; for queries that find fewer, again with twice the probes."""
        best = self._in_blocks(query, k, exclude, probes)
        lacking = tf.where((best.ids[:, -1] < 0) & ~tf.math.is_nan(tf.reduce_sum(query, 1)))[:, 0]

        def more(lacking, probes, *best):
            probes = tf.minimum(2 * probes, self.num_cells)
            own_query, own_exclude = tf.gather(query, lacking), tf.gather(exclude, lacking)
            found = self._in_blocks(own_query, k, own_exclude, probes)
            where = lacking[:, tf.newaxis]
            best = [
                tf.tensor_scatter_nd_update(old, where, new) for old, new in zip(best, found, strict=True)
            ]
            return tf.boolean_mask(lacking, found.ids[:, -1] < 0), probes, *best

        def until_found():
            _, _, *found = tf.while_loop(
                lambda lacking, probes, *_: (tf.size(lacking) > 0) & (probes < self.num_cells),
                more,
                (lacking, probes, *best),
                shape_invariants=(
                    tf.TensorShape([None]),
                    tf.TensorShape([]),
                    *[tf.TensorShape([None, None])] * 2,
                ),
            )
            return BestClasses(*found)

        return tf.cond(tf.size(lacking) > 0, apart(until_found), lambda: best)

    def _in_blocks(self, query, k, exclude, probes):
        """The k best in the probed cells, a block of queries after the other: memory stays bounded."""
        num_tiles, tile, dim = self.rows.shape
        share = tf.cast(probes, tf.int64) * num_tiles
        num_read = tf.cast(-(-share // self.num_cells), tf.int32)  # as many tiles as so many mean cells have
        size = _BLOCK_ELEMENTS // tf.maximum(tile * dim * num_read, self.num_scanned)
        size = tf.maximum(size, 1)
        num_queries = tf.shape(query)[0]
        num_blocks = tf.maximum(-(-num_queries // size), 1)

        def step(block, *parts):
            rows = slice(block * size, (block + 1) * size)
            best = self._in_cells(query[rows], k, exclude[rows], probes, num_read)
            return block + 1, *(part.write(block, own) for part, own in zip(parts, best, strict=True))

        def loop():
            parts = [
                tf.TensorArray(dtype, num_blocks, infer_shape=False, element_shape=[None, None])
                for dtype in (tf.float32, tf.int32)
            ]
            _, *parts = tf.while_loop(
                lambda block, *_: block < num_blocks,
                step,
                (tf.constant(0), *parts),
                parallel_iterations=2,
            )
            return BestClasses(*(part.concat() for part in parts))

        # The loop alone costs a single query a millisecond.
        alone = lambda: self._in_cells(query, k, exclude, probes, num_read)  # noqa: E731
        return tf.cond(num_blocks > 1, apart(loop), alone)

    @tf.function(reduce_retracing=True, autograph=False)  # traced once for all the places that call it
    def _in_cells(self, query, k, exclude, probes, num_read):
        """The k best of scanned classes and the first ``num_read`` tiles of the cells that promise most."""
        parts = self._parts
        fit = tf.matmul(query, parts.centres, transpose_b=True)
        best = fit + tf.norm(query, axis=1, keepdims=True) * parts.reaches
        # Cells of long vectors are smaller than the mean: with four times as many there are tiles enough.
        ranked = tf.minimum(tf.minimum(4 * probes, num_read), self.num_cells)
        _, cells = grouped_top_k(best, ranked)
        offsets = tf.convert_to_tensor(parts.offsets)
        first = tf.gather(offsets, cells)
        end = tf.cumsum(tf.gather(offsets, cells + 1) - first, axis=1)
        first -= tf.pad(end[:, :-1], [[0, 0], [1, 0]])
        column = tf.broadcast_to(tf.range(num_read), [tf.shape(query)[0], num_read])
        cell = tf.searchsorted(end, column, side="right")
        filled = cell < ranked
        cell = tf.minimum(cell, ranked - 1)
        tiles = tf.where(filled, tf.gather(first, cell, batch_dims=1) + column, 0)
        ids = tf.gather(tf.convert_to_tensor(parts.members), tiles)
        ids = tf.where(filled[..., tf.newaxis], ids, -1)
        if self.rows_dtype == "float32":
            fit = None
        else:
            fit = tf.gather(tf.gather(fit, cells, batch_dims=1), cell, batch_dims=1)
        scores = self._tile_scores(query, tiles, fit)
        scores = tf.where((ids < 0) | tf.math.is_nan(scores), float("-inf"), scores)
        flat = [tf.shape(query)[0], -1]
        ids, scores = tf.reshape(ids, flat), tf.reshape(scores, flat)
        most = k + tf.shape(exclude)[1]
        scores, column = tf.math.top_k(scores, tf.minimum(most, tf.shape(ids)[1]))
        ids = tf.gather(ids, column, batch_dims=1)
        if self.num_scanned:
            more_scores, more_ids = self._scan(query, most)
            scores, ids = tf.concat([scores, more_scores], 1), tf.concat([ids, more_ids], 1)
        return best_candidates(scores, ids, k, exclude)

    def _scan(self, query, most):
        """Scores and ids [N, most] of the best scanned classes, fewer if there are not so many."""
        parts = self._parts
        columns = tf.cast(_read(parts.scanned_columns, self._scanned_dtype), tf.float32)
        scores = tf.matmul(query, columns)
        scores, column = grouped_top_k(scores, tf.minimum(most, self.num_scanned))
        return scores, tf.gather(tf.convert_to_tensor(parts.scanned), column)

    def _tile_scores(self, query, tiles, fit):
        """Scores [N, n, S] of the slots of tiles [N, n]; ``fit`` [N, n], of rows that are differences, are
        those of their cells' means."""
        parts = self._parts
        rows = tf.cast(tf.gather(_read(parts.rows, self.rows_dtype), tiles), tf.float32)
        shape = tf.shape(rows)
        rows = tf.reshape(rows, [shape[0], shape[1] * shape[2], rows.shape[3]])
        scores = tf.reshape(_products(rows, query), shape[:3])
        if self.rows_dtype == "int8":
            scores *= tf.gather(tf.convert_to_tensor(parts.scales), tiles)
        return scores if fit is None else scores + fit[..., tf.newaxis]

    def _score(self, query, class_ids):
        """Scores in float32 of class ids [N, S], or [S] for all queries; anything in empty slots."""
        rows = self._vectors(tf.maximum(class_ids, 0))
        if class_ids.shape.rank == 1:
            return tf.matmul(query, rows, transpose_b=True)
        return _products(rows, query)

    def _vectors(self, class_ids):
        """The vectors float32 of class ids of any shape."""
        places = tf.gather(tf.convert_to_tensor(self._parts.places), class_ids)
        if not self.num_scanned:
            return self._in_tiles(places)
        num_slots = tf.size(self._parts.members)
        is_scanned = places >= num_slots
        columns = _read(self._parts.scanned_columns, self._scanned_dtype)
        scanned = tf.gather(columns, tf.where(is_scanned, places - num_slots, 0), axis=1)
        scanned = tf.cast(tf.einsum("d...->...d", scanned), tf.float32)
        in_tiles = self._in_tiles(tf.where(is_scanned, 0, places))
        return tf.where(is_scanned[..., tf.newaxis], scanned, in_tiles)

    def _in_tiles(self, places):
        """The vectors of slots of tiles."""
        parts = self._parts
        dim = parts.rows.shape[2]
        rows = tf.gather(tf.reshape(_read(parts.rows, self.rows_dtype), [-1, dim]), places)
        if self.rows_dtype == "float32":
            return rows
        rows = tf.cast(rows, tf.float32)
        if self.rows_dtype == "int8":
            rows *= tf.gather(tf.reshape(parts.scales, [-1]), places)[..., tf.newaxis]
        cells = tf.searchsorted(
            parts.offsets[1:], tf.reshape(places // parts.rows.shape[1], [-1]), side="right"
        )
        cells = tf.reshape(cells, tf.shape(places))
        return rows + tf.gather(tf.convert_to_tensor(parts.centres), cells)

    def recall(self, head, queries, k=10):
        """The share of the exact k best classes that the index finds, over some queries.

        Args:
            head: the head it was built from.
            queries: float [n, D], as the head takes them: what the encoder gives.
            k: how many classes a query, in [1, L].

        Raises:
            ValueError: for no query, or one that is not finite.
        """
        _make_ready(head)
        queries = _finite(queries)
        wanted = head.top_k(queries, k).ids
        return self._recall(wanted, head.effective_query(queries), k, self.num_probes)

    def tune(self, head, queries, recall=0.95, k=10):
        """Chooses the numbers of cells and scanned classes, if the index is not built yet, and of probes: the
        cheapest that reach a recall.

        A query costs as many inner products as there are cells, and members in what it reads; scanned classes
        cost a tenth each. Half, once and twice the number of cells are compared, with up to a quarter of all
        classes scanned, and with long vectors apart or not; k-means runs four times.

        Args:
            head: as of ``build_from``.
            queries: float [n, D], as the head takes them; some hundreds that are like those to come.
            recall: the share of the exact k best classes to find, in (0, 1].
            k: how many classes a query.

        Returns:
            The recall that is reached. Less than wanted only where fewer bits lose it, with all cells probed.

        Raises:
            ValueError: for a recall outside (0, 1], as of ``recall``, or as ``build_from``.
        """
        if not 0 < recall <= 1:
            raise ValueError(f"recall must be in (0, 1], but got {recall}.")
        _make_ready(head)
        queries = _finite(queries)
        best, query = head.top_k(queries, k), head.effective_query(queries)
        if not self.built:
            self._build_cheapest(head, query.numpy(), best, recall)
        # The smallest number of probes that is enough: doubled until it is, then halving what is between.
        enough, found = 1, self._recall(best.ids, query, k, 1)
        while found < recall and enough < self.num_cells:
            enough = min(2 * enough, self.num_cells)
            found = self._recall(best.ids, query, k, enough)
        too_few = enough // 2
        while enough - too_few > 1:
            between = (enough + too_few) // 2
            reached = self._recall(best.ids, query, k, between)
            if reached >= recall:
                enough, found = between, reached
            else:
                too_few = between
        self.num_probes = enough
        return found

    def _build_cheapest(self, head, query, best, recall):
        usual = self._usual_num_cells(head)
        choices = (
            {max(min(usual * times // 2, head.num_classes), 1) for times in (1, 2, 4)}
            if not self.num_cells
            else {usual}
        )
        is_given = self.num_scanned is not None
        steps = [self._checked_num_scanned(head)] if is_given else scan_steps(head.num_classes)
        fewest, *more = sorted(choices)
        with one_thread():
            # First: it refuses class vectors that are not finite, by name.
            kinds = [cut_into_cells(head, fewest, skewed) for skewed in (False, True)]
            answers = Answers.of(query, best.scores[:, -1].numpy())
            promising = most_promising(head, answers, steps[-1])
            given = head, query, best.ids.numpy(), recall, promising, steps
            cells, *_ = cheapest(kinds, *given)
            skewed = cells is kinds[True]
            every = [cells, *(cut_into_cells(head, num_cells, skewed) for num_cells in more)]
            cells, num_scanned, _ = cheapest(every, *given)
            self._take(head, cells, promising[:num_scanned], answers)

    def _usual_num_cells(self, head):
        return min(self.num_cells or 2 ** round(np.log2(2 * head.num_classes**0.5)), head.num_classes)

    def _recall(self, wanted, query, k, num_probes):
        found = self.top_k(query, k, num_probes=num_probes).ids
        same = wanted[:, :, tf.newaxis] == found[:, tf.newaxis]
        return float(tf.reduce_mean(tf.cast(tf.reduce_any(same, 2), tf.float32)))


def _read(rows, dtype):
    """Rows of the dtype they are meant to be; nothing is copied."""
    rows = tf.convert_to_tensor(rows)
    return tf.bitcast(rows, dtype) if dtype in _STORED_AS else rows


def _products(rows, query):
    """Products [N, S] of rows [N, S, D] with the query [N, D] of each."""
    # TensorFlow's own kernel: oneDNN's, which takes over tf.matmul, is slower here, for a single query by a
    # tenth of a millisecond.
    products = tf.raw_ops.BatchMatMulV3(x=query[:, tf.newaxis], y=rows, adj_y=True, Tout=tf.float32)
    return tf.squeeze(products, 1)


def _make_ready(head):
    """Brings class vectors that a head caches up to date.

    Raises ValueError for a head whose logits are no inner products of short vectors.
    """
    if not head.indexable:
        raise ValueError(
            f"The logits of {type(head).__name__} are no inner products of short class vectors, so no index "
            "can rank by them. Export it without one; a MACHHead looks into the best buckets only by its own "
            "num_probes."
        )
    if not head.built:
        raise ValueError("The head has no class vectors yet: build it, or the model, before the index.")
    if head.cache_age:
        head.refresh()


def _finite(queries):
    """The queries as a tensor; raises ValueError where a share of what they find would mean nothing."""
    queries = tf.convert_to_tensor(queries)
    if not len(queries) or not np.isfinite(queries.numpy().astype(np.float32)).all():
        raise ValueError(
            f"Recall is measured of queries [n, D] that are finite, at least one, but got {len(queries)}, "
            "or NaN or infinity among them."
        )
    return queries


def _at_least_one(number, name):
    return require(number >= 1, f"{name} must be at least 1, but is", number)
