"""The search in an inverted index by stock TensorFlow ops: which rows a query reads, and how they rank."""

import tensorflow as tf

from tfxc.ids import excluded_ids
from tfxc.require import at_least_one
from tfxc.scored import BestClasses
from tfxc.search.candidates import best_allowed, best_candidates, search_or_allowed
from tfxc.search.exact import LOWEST, grouped_top_k
from tfxc.search.not_inlined import not_inlined
from tfxc.search.tiles import read

# Numbers that a block of queries reads from cells: 4 MB of float32 stay in the cache of a core.
_READ_ELEMENTS = 1 << 20
# Scores of cells and their members in a block: many ops pass over them, so they too stay in the cache.
_CELL_ELEMENTS = 1 << 20
# Scores of scanned classes in a block. With fewer queries, reading the columns takes as long as the product.
_SCANNED_ELEMENTS = 1 << 22
_BEST = tf.float32, tf.int32  # scores and ids
# How far a stored vector may be from its class vector: in steps of int8 codes, some of which are rounded the
# other way, and of int16 codes; twice the rounding of bfloat16; the rounding of float32 sums; and numbers too
# small for a scale.
_INT8, _INT16, _BFLOAT16, _FLOAT32, _LEAST = 1.01, 0.51, 2**-8, 1e-5, 1e-33


class CellSearch:
    """Searches the classes in a ``Tiles`` of variables.

    ``columns()`` gives the vectors float32 [D, H] of scanned classes.
    """

    def __init__(self, tiles, columns):
        self.tiles = tiles
        self.columns = columns
        self.num_classes = tiles.places.shape[0]
        self.num_cells = tiles.centres.shape[0]
        self.num_scanned = tiles.scanned.shape[0]

    @tf.function(reduce_retracing=True, autograph=False)
    def top_k(self, query, k, exclude, allow, num_probes):
        """``InvertedIndex.top_k`` with tensors as arguments; only ``allow`` may be None.

        Raises an InvalidArgumentError if k or num_probes is below 1, or a class id outside [-1, L).
        """
        columns = self.columns()
        exclude = excluded_ids(exclude, self.num_classes, query)
        with tf.control_dependencies(at_least_one(k, "k") + at_least_one(num_probes, "num_probes")):
            k = tf.minimum(k, self.num_classes)
            probes = tf.minimum(num_probes, self.num_cells)

        def allowed():
            score = lambda ids: self._score(query, ids, columns)  # noqa: E731
            return best_allowed(score, allow, self.num_classes, tf.shape(query)[0], k, exclude)

        return search_or_allowed(lambda: self._search(query, k, exclude, probes, columns), allowed, allow)

    def roundings(self, class_ids, vectors):
        """How far stored vectors may be from the class vectors [n, D] of class ids [n]: [n, D]."""
        parts, rounded = self.tiles, _FLOAT32 * tf.abs(vectors)
        if parts.rows.dtype == tf.float32:
            return rounded
        places = tf.gather(tf.convert_to_tensor(parts.places), class_ids)
        num_slots = tf.size(parts.members)
        is_scanned = places >= num_slots
        in_tiles = tf.where(is_scanned, 0, places)
        means = tf.gather(tf.convert_to_tensor(parts.centres), self._cells(in_tiles))
        if parts.rows.dtype == tf.int8:
            own = _INT8 * self._scales(in_tiles)
        else:
            own = _BFLOAT16 * tf.abs(vectors - means)
        own += _FLOAT32 * tf.abs(means)
        if self.num_scanned:
            scales = tf.gather(
                tf.convert_to_tensor(parts.scanned_scales), tf.where(is_scanned, places - num_slots, 0)
            )
            own = tf.where(is_scanned[:, tf.newaxis], _INT16 * scales[:, tf.newaxis], own)
        return rounded + own + _LEAST

    def _search(self, query, k, exclude, probes, columns):
        """The k best; queries that find fewer search again with twice the probes."""
        best = self._best(query, k, exclude, probes, columns)
        lacking = tf.where((best.ids[:, -1] < 0) & ~tf.math.is_nan(tf.reduce_sum(query, 1)))[:, 0]

        def more(lacking, probes, *best):
            probes = tf.minimum(2 * probes, self.num_cells)
            own_query, own_exclude = tf.gather(query, lacking), tf.gather(exclude, lacking)
            found = self._best(own_query, k, own_exclude, probes, columns)
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

        return tf.cond(tf.size(lacking) > 0, not_inlined(until_found), lambda: best)

    def _best(self, query, k, exclude, probes, columns):
        """The k best of scanned classes and those in the probed cells."""
        most = k + tf.shape(exclude)[1]
        num_tiles, tile, _ = self.tiles.rows.shape
        share = tf.cast(probes, tf.int64) * num_tiles
        num_read = tf.cast(-(-share // self.num_cells), tf.int32)  # the tiles of so many cells of mean size
        in_cells = lambda query: self._in_cells(query, most, probes, num_read)  # noqa: E731
        num_scores = tf.maximum(tile * num_read, self.num_cells)
        scores, ids = _in_blocks(in_cells, _CELL_ELEMENTS // num_scores, _BEST, query)
        if self.num_scanned:
            scan = lambda query: self._scan(query, most, columns)  # noqa: E731
            more = _in_blocks(scan, _SCANNED_ELEMENTS // self.num_scanned, _BEST, query)
            scores, ids = (tf.concat(both, 1) for both in zip((scores, ids), more, strict=True))
        return best_candidates(scores, ids, k, exclude)

    @tf.function(reduce_retracing=True, autograph=False)  # traced once for all callers
    def _in_cells(self, query, most, probes, num_read):
        """Scores and ids [N, most] of the best in ``num_read`` tiles of the most promising cells.

        They are fewer where fewer are read; id -1 stands for none.
        """
        parts = self.tiles
        fit = tf.matmul(query, parts.centres, transpose_b=True)
        best = fit + tf.norm(query, axis=1, keepdims=True) * parts.reaches
        # Cells of long vectors are smaller than the mean: four times as many cells have enough tiles.
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
        if parts.rows.dtype == tf.float32:
            fit = None
        else:
            fit = tf.gather(tf.gather(fit, cells, batch_dims=1), cell, batch_dims=1)
        scores = self._tile_scores(query, tiles, fit)
        scores = tf.where((ids < 0) | tf.math.is_nan(scores), float("-inf"), scores)
        flat = [tf.shape(query)[0], -1]
        ids, scores = tf.reshape(ids, flat), tf.reshape(scores, flat)
        scores, column = tf.math.top_k(scores, tf.minimum(most, tf.shape(ids)[1]))
        return scores, tf.gather(ids, column, batch_dims=1)

    @tf.function(reduce_retracing=True, autograph=False)
    def _scan(self, query, most, columns):
        """Scores and ids [N, most] of the best scanned classes; fewer where there are fewer."""
        scores = tf.matmul(query, columns)
        scores, column = grouped_top_k(scores, tf.minimum(most, self.num_scanned))
        scores = tf.where(scores > LOWEST, scores, float("-inf"))
        return scores, tf.gather(tf.convert_to_tensor(self.tiles.scanned), column)

    def _tile_scores(self, query, tiles, fit):
        """Scores [N, n, S] of the slots of tiles [N, n]; where rows are differences from the means of their
        cells, ``fit`` [N, n] are the scores of these means."""
        parts = self.tiles
        num_read = tf.shape(tiles)[1]
        _, slots, dim = parts.rows.shape

        def products(query, tiles):
            # The reshape comes before the cast: Grappler would move a cast behind it, and keep the first one.
            rows = tf.reshape(tf.gather(read(parts.rows), tiles), [-1, num_read * slots, dim])
            return (_products(tf.cast(rows, tf.float32), query),)

        num_elements = slots * dim * tf.cast(num_read, tf.int64)
        size = tf.cast(_READ_ELEMENTS // num_elements, tf.int32)
        (scores,) = _in_blocks(products, size, [tf.float32], query, tiles)
        scores = tf.reshape(scores, [-1, num_read, slots])
        if parts.rows.dtype == tf.int8:
            scores *= tf.cast(tf.gather(read(parts.scales), tiles), tf.float32)
        return scores if fit is None else scores + fit[..., tf.newaxis]

    def _score(self, query, class_ids, columns):
        """Scores float32 of class ids [N, S], or [S] for all queries; arbitrary in empty slots."""
        rows = self.vectors(tf.maximum(class_ids, 0), columns)
        if class_ids.shape.rank == 1:
            return tf.matmul(query, rows, transpose_b=True)
        return _products(rows, query)

    def vectors(self, class_ids, columns):
        """The stored vectors float32 of class ids of any shape."""
        places = tf.gather(tf.convert_to_tensor(self.tiles.places), class_ids)
        if not self.num_scanned:
            return self._in_tiles(places)
        num_slots = tf.size(self.tiles.members)
        is_scanned = places >= num_slots
        scanned = tf.gather(columns, tf.where(is_scanned, places - num_slots, 0), axis=1)
        scanned = tf.einsum("d...->...d", scanned)
        in_tiles = self._in_tiles(tf.where(is_scanned, 0, places))
        return tf.where(is_scanned[..., tf.newaxis], scanned, in_tiles)

    def _in_tiles(self, places):
        """The vectors of slots of tiles."""
        parts = self.tiles
        dim = parts.rows.shape[2]
        rows = tf.gather(tf.reshape(read(parts.rows), [-1, dim]), places)
        if parts.rows.dtype == tf.float32:
            return rows
        rows = tf.cast(rows, tf.float32)
        if parts.rows.dtype == tf.int8:
            rows *= self._scales(places)
        return rows + tf.gather(tf.convert_to_tensor(parts.centres), self._cells(places))

    def _scales(self, places):
        """The scales float32 [..., 1] of the int8 rows in slots of tiles."""
        scales = tf.gather(tf.reshape(read(self.tiles.scales), [-1]), places)
        return tf.cast(scales, tf.float32)[..., tf.newaxis]

    def _cells(self, places):
        """The cells of slots of tiles."""
        tiles = tf.reshape(places // self.tiles.rows.shape[1], [-1])
        return tf.reshape(tf.searchsorted(self.tiles.offsets[1:], tiles, side="right"), tf.shape(places))


def _in_blocks(function, size, dtypes, *rows):
    """What a function gives for blocks of rows [N, ...] of at least one row: memory stays bounded.

    The function gives a tuple of matrices of these dtypes, with a row each.
    """
    size = tf.maximum(size, 1)
    num_blocks = -(-tf.shape(rows[0])[0] // size)

    def step(block, *parts):
        own = function(*(part[block * size : (block + 1) * size] for part in rows))
        return block + 1, *(part.write(block, new) for part, new in zip(parts, own, strict=True))

    def loop():
        parts = [
            tf.TensorArray(dtype, num_blocks, infer_shape=False, element_shape=[None, None])
            for dtype in dtypes
        ]
        _, *parts = tf.while_loop(
            lambda block, *_: block < num_blocks, step, (tf.constant(0), *parts), parallel_iterations=2
        )
        return tuple(part.concat() for part in parts)

    # A loop would cost a single query a millisecond.
    return tf.cond(num_blocks > 1, not_inlined(loop), lambda: tuple(function(*rows)))


def _products(rows, query):
    """Products [N, S] of rows [N, S, D] with the query [N, D] of each."""
    # TensorFlow's own kernel: tf.matmul would take oneDNN's, which is a tenth of a millisecond slower for a
    # single query.
    products = tf.raw_ops.BatchMatMulV3(x=query[:, tf.newaxis], y=rows, adj_y=True, Tout=tf.float32)
    return tf.squeeze(products, 1)
