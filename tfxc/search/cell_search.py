"""The search in an inverted index by stock TensorFlow ops: which rows a query reads, and how they rank."""

import tensorflow as tf

from tfxc.ids import excluded_ids
from tfxc.require import at_least_one
from tfxc.scored import BestClasses
from tfxc.search.candidates import best_allowed, best_candidates, search_or_allowed, search_or_filtered
from tfxc.search.exact import LOWEST, grouped_top_k, not_inlined
from tfxc.search.tiles import read

# Numbers that a block of queries reads from cells: 4 MB of float32 stay in the cache of a core.
_READ_ELEMENTS = 1 << 20
# Scores of cells and their members in a block: many ops pass over them, so they too stay in the cache.
_CELL_ELEMENTS = 1 << 20
# Scores of scanned classes in a block. With fewer queries, reading the columns takes as long as the product.
_SCANNED_ELEMENTS = 1 << 22
# For a filtered query a cell counts as its size times the share of its classes that pass, to this power. By
# 1, all would read as many classes that pass; but to find few among many takes longer than to score them.
_POWER_OF_SHARE = 0.66
# A filtered query ranks so many times the cells that it would read if all were of mean size.
_RANKED = 2
# A filtered query searches on until it has found this many times k: by ranges of values, more classes of a
# cell may seem to pass than do.
_FOUND_PER_ANSWER = 4
_BEST = tf.float32, tf.int32  # scores and ids
# How far a stored vector may be from its class vector: in steps of int8 codes, some of which are rounded the
# other way, and of int16 codes; twice the rounding of bfloat16; the rounding of float32 sums; and numbers too
# small for a scale.
_INT8, _INT16, _BFLOAT16, _FLOAT32, _LEAST = 1.01, 0.51, 2**-8, 1e-5, 1e-33


class CellSearch:
    """Searches the classes in a ``Tiles`` of variables.

    ``columns()`` gives the vectors float32 [D, H] of scanned classes; ``attributes`` is None or an
    ``AttributesInCells``.
    """

    def __init__(self, tiles, columns, attributes=None):
        self.tiles = tiles
        self.columns = columns
        self.attributes = attributes
        self.num_classes = tiles.places.shape[0]
        self.num_cells = tiles.centres.shape[0]
        self.num_scanned = tiles.scanned.shape[0]

    @tf.function(reduce_retracing=True, autograph=False)
    def top_k(self, query, k, exclude, allow, num_probes, **where):
        """``InvertedIndex.top_k`` with tensors as arguments; only ``allow`` may be None.

        Queries with ``where_...``, see ``Attributes``, read rows of classes that pass: where most do, as many
        as other queries read, else fewer, from more cells.

        Raises an InvalidArgumentError if k or num_probes is below 1, or a class id outside [-1, L).
        """
        columns = self.columns()
        exclude = excluded_ids(exclude, self.num_classes, query)
        with tf.control_dependencies(at_least_one(k, "k") + at_least_one(num_probes, "num_probes")):
            k = tf.minimum(k, self.num_classes)
            probes = tf.minimum(num_probes, self.num_cells)

        attributes = None if self.attributes is None else self.attributes.attributes
        size = tf.shape(query)[0]

        def passes(ids):
            return attributes.passes(self._places(ids), attributes.wanted(where, query))

        def allowed():
            score = lambda ids: self._score(query, ids, columns)  # noqa: E731
            filters = () if attributes is None else (passes,)
            return best_allowed(score, allow, self.num_classes, size, k, exclude, *filters)

        def every():
            return self._search(k, probes, columns, query, exclude)

        def filtered():
            each = lambda part: tf.gather(part, tf.minimum(tf.range(size), tf.shape(part)[0] - 1))  # noqa: E731
            wanted = tf.nest.map_structure(each, attributes.wanted(where, query))
            return self._search(k, probes, columns, query, exclude, wanted)

        def search():
            if attributes is None:
                return every()
            return search_or_filtered(every, filtered, attributes.restricts(where))

        return search_or_allowed(search, allowed, allow)

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
            scales = tf.convert_to_tensor(parts.scanned_scales)
            scales = tf.gather(scales, tf.where(is_scanned, places - num_slots, 0))[:, tf.newaxis]
            own = tf.where(is_scanned[:, tf.newaxis], _INT16 * scales, own)
        return rounded + own + _LEAST

    def _search(self, k, probes, columns, query, *more):
        """The k best; queries that find too few search again with more probes.

        ``more`` has a row for each query, too: class ids to exclude, and what is wanted of the attributes.
        """
        is_filtered = len(more) > 1
        num_found = _FOUND_PER_ANSWER * k if is_filtered else k
        best = self._best(num_found, probes, columns, query, *more)
        lacking = tf.where((best.ids[:, -1] < 0) & ~tf.math.is_nan(tf.reduce_sum(query, 1)))[:, 0]

        def again(lacking, probes, *best):
            # To read all that pass a filter takes no longer than several rounds.
            probes = self.num_cells if is_filtered else tf.minimum(2 * probes, self.num_cells)
            own = tf.nest.map_structure(lambda part: tf.gather(part, lacking), (query, *more))
            found = self._best(num_found, probes, columns, *own)
            where = lacking[:, tf.newaxis]
            best = (
                tf.tensor_scatter_nd_update(old, where, new) for old, new in zip(best, found, strict=True)
            )
            return tf.boolean_mask(lacking, found.ids[:, -1] < 0), probes, *best

        def until_found():
            _, _, *found = tf.while_loop(
                lambda lacking, probes, *_: (tf.size(lacking) > 0) & (probes < self.num_cells),
                again,
                (lacking, probes, *best),
                shape_invariants=tuple(map(tf.TensorShape, ([None], [], [None, None], [None, None]))),
            )
            return BestClasses(*found)

        best = tf.cond(tf.size(lacking) > 0, not_inlined(until_found), lambda: best)
        return BestClasses(*(part[:, :k] for part in best)) if is_filtered else best

    def _best(self, k, probes, columns, query, exclude, wanted=()):
        """The k best of scanned classes and those in the probed cells."""
        most = k + tf.shape(exclude)[1]
        num_tiles, tile, _ = self.tiles.rows.shape
        share = tf.cast(probes, tf.int64) * num_tiles
        num_read = tf.cast(-(-share // self.num_cells), tf.int32)  # the tiles of so many cells of mean size
        given, rows = (most, probes, num_read), (query, wanted) if wanted else (query,)
        if wanted:
            in_cells, size = self._passing_in_cells, _SCANNED_ELEMENTS // (num_tiles * tile)
        else:
            in_cells = self._in_cells
            size = _CELL_ELEMENTS // tf.maximum(tile * num_read, self.num_cells)
        scores, ids = _in_blocks(lambda *rows: in_cells(*given, *rows), size, _BEST, *rows)
        if self.num_scanned:
            scan = lambda *rows: self._scan(most, columns, *rows)  # noqa: E731
            more = _in_blocks(scan, _SCANNED_ELEMENTS // self.num_scanned, _BEST, *rows)
            scores, ids = (tf.concat(both, 1) for both in zip((scores, ids), more, strict=True))
        return best_candidates(scores, ids, k, exclude)

    @tf.function(reduce_retracing=True, autograph=False)  # traced once for all callers
    def _in_cells(self, most, probes, num_read, query):
        """Scores and ids [N, most] of the best in ``num_read`` tiles of the most promising cells.

        They are fewer where fewer are read; id -1 stands for none.
        """
        parts = self.tiles
        fit = tf.matmul(query, parts.centres, transpose_b=True)
        best = fit + tf.norm(query, axis=1, keepdims=True) * parts.reaches
        # Cells of long vectors are smaller than the mean: four times as many cells have enough tiles.
        ranked = tf.minimum(tf.minimum(4 * probes, num_read), self.num_cells)
        _, cells = grouped_top_k(best, ranked)
        first, num_tiles = self._tiles_of(cells)
        tiles, cell, ids = self._read_in_order(first, num_tiles, num_read)
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
    def _passing_in_cells(self, most, probes, num_read, query, wanted):
        """``_in_cells`` among classes that pass what is ``wanted``. With all cells probed, all are read."""
        parts = self.tiles
        slots = parts.rows.shape[1]
        fit = tf.matmul(query, parts.centres, transpose_b=True)
        best = fit + tf.norm(query, axis=1, keepdims=True) * parts.reaches
        expected, sizes = self.attributes.expected(wanted), self.attributes.sizes
        num_rows = tf.cast(num_read * slots, tf.float32)
        num_rows = tf.where(probes == self.num_cells, tf.float32.max / 4, num_rows)
        passing = expected > 0
        total, size = tf.reduce_sum(expected, 1), tf.reduce_sum(tf.where(passing, sizes, 0), 1)
        mean = _cost(total, size) / tf.maximum(tf.reduce_sum(tf.cast(passing, tf.float32), 1), 1)
        fewest = tf.reduce_min(tf.where(mean > 0, mean, tf.float32.max))
        # Cells of long vectors are smaller than the mean, and may have more classes that pass.
        ranked = tf.cast(tf.clip_by_value(_RANKED * num_rows / fewest, 1, self.num_cells), tf.int32)
        _, cells = tf.math.top_k(tf.where(passing, best, LOWEST), ranked)
        expected = tf.gather(tf.broadcast_to(expected, tf.shape(best)), cells, batch_dims=1)
        cost = _cost(expected, tf.gather(tf.convert_to_tensor(sizes), cells))
        is_read = (tf.cumsum(cost, axis=1, exclusive=True) < num_rows) & (expected > 0)
        first, num_tiles = self._tiles_of(cells)
        starts = tf.reshape(first, [-1])
        limits = starts + tf.reshape(tf.where(is_read, num_tiles, 0), [-1])
        ends, tiles = tf.raw_ops.RaggedRange(starts=starts, limits=limits, deltas=1)
        tiles = tf.RaggedTensor.from_row_splits(tiles, ends[::ranked], validate=False).to_tensor(-1)
        passes = self.attributes.in_tiles(tf.maximum(tiles, 0), wanted) & (tiles >= 0)[..., tf.newaxis]
        slot = tf.where(tf.reshape(passes, [-1]))[:, 0]  # takes half as long as in three dimensions
        tile = slot // slots
        places = tf.gather(tf.reshape(tiles, [-1]), tile) * slots + tf.cast(slot % slots, tf.int32)
        num_queries, width = tf.unstack(tf.shape(tiles, tf.int64))
        places = tf.RaggedTensor.from_value_rowids(places, tile // width, num_queries, validate=False)
        places = places.to_tensor(-1)
        # Blocks of queries are joined, so each has the same width.
        missing = tf.maximum(most - tf.shape(places)[1], 0)
        places = tf.pad(places, [[0, 0], [0, missing]], constant_values=-1)
        size = _READ_ELEMENTS // (parts.rows.shape[2] * tf.maximum(tf.shape(places)[1], 1))
        # The scores in slots of tiles are arbitrary where there is none, -1.
        in_tiles = lambda query, at: (_products(self._in_tiles(tf.maximum(at, 0)), query),)  # noqa: E731
        (scores,) = _in_blocks(in_tiles, size, [tf.float32], query, places)
        ids = tf.gather(tf.reshape(tf.convert_to_tensor(parts.members), [-1]), tf.maximum(places, 0))
        out = (places < 0) | (ids < 0) | tf.math.is_nan(scores)
        scores, column = tf.math.top_k(tf.where(out, float("-inf"), scores), most)
        return scores, tf.gather(tf.where(out, -1, ids), column, batch_dims=1)

    def _tiles_of(self, cells):
        """The first tile of cells [N, n], and how many they have."""
        offsets = tf.convert_to_tensor(self.tiles.offsets)
        first = tf.gather(offsets, cells)
        return first, tf.gather(offsets, cells + 1) - first

    def _read_in_order(self, first, num_tiles, num_read):
        """The first ``num_read`` of the tiles of cells [N, n], cell by cell.

        Returns the tiles [N, num_read], the cell of each, a column of ``first``, and the class ids
        [N, num_read, S] in them; -1 where there are no more tiles.
        """
        end = tf.cumsum(num_tiles, axis=1)
        column = tf.broadcast_to(tf.range(num_read), [tf.shape(first)[0], num_read])
        cell = tf.searchsorted(end, column, side="right")
        filled = cell < tf.shape(first)[1]
        cell = tf.minimum(cell, tf.shape(first)[1] - 1)
        first -= end - num_tiles
        tiles = tf.where(filled, tf.gather(first, cell, batch_dims=1) + column, 0)
        ids = tf.gather(tf.convert_to_tensor(self.tiles.members), tiles)
        return tiles, cell, tf.where(filled[..., tf.newaxis], ids, -1)

    @tf.function(reduce_retracing=True, autograph=False)
    def _scan(self, most, columns, query, wanted=()):
        """Scores and ids [N, most] of the best scanned classes; fewer where there are fewer."""
        scores = tf.matmul(query, columns)
        if wanted:
            scores = tf.where(self.attributes.scanned(wanted), scores, LOWEST)
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
        places = self._places(class_ids)
        if not self.num_scanned:
            return self._in_tiles(places)
        num_slots = tf.size(self.tiles.members)
        is_scanned = places >= num_slots
        scanned = tf.gather(columns, tf.where(is_scanned, places - num_slots, 0), axis=1)
        scanned = tf.einsum("d...->...d", scanned)
        in_tiles = self._in_tiles(tf.where(is_scanned, 0, places))
        return tf.where(is_scanned[..., tf.newaxis], scanned, in_tiles)

    def _places(self, class_ids):
        return tf.gather(tf.convert_to_tensor(self.tiles.places), class_ids)

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
        tiles = tf.reshape(places // self.tiles.rows.shape[1], [1, -1])  # tf.searchsorted takes no empty row
        ends = self.tiles.offsets[1:][tf.newaxis]
        return tf.reshape(tf.raw_ops.UpperBound(sorted_inputs=ends, values=tiles), tf.shape(places))


def _cost(passing, size):
    """What it costs to read a cell of a number of classes of which so many pass, in classes."""
    return size * tf.math.divide_no_nan(passing, size) ** _POWER_OF_SHARE


def _in_blocks(function, size, dtypes, *rows):
    """What a function gives for blocks of nested rows [N, ...] of at least one row: memory stays bounded.

    The function gives a tuple of matrices of these dtypes, with a row each.
    """
    size = tf.maximum(size, 1)
    num_blocks = -(-tf.shape(rows[0])[0] // size)

    def step(block, *parts):
        own = function(*tf.nest.map_structure(lambda part: part[block * size : (block + 1) * size], rows))
        return block + 1, *(part.write(block, new) for part, new in zip(parts, own, strict=True))

    def loop():
        shape = [None, None]
        parts = (tf.TensorArray(own, num_blocks, infer_shape=False, element_shape=shape) for own in dtypes)
        is_left = lambda block, *_: block < num_blocks  # noqa: E731
        _, *parts = tf.while_loop(is_left, step, (tf.constant(0), *parts), parallel_iterations=2)
        return tuple(part.concat() for part in parts)

    # A loop would cost a single query a millisecond.
    return tf.cond(num_blocks > 1, not_inlined(loop), lambda: tuple(function(*rows)))


def _products(rows, query):
    """Products [N, S] of rows [N, S, D] with the query [N, D] of each."""
    # TensorFlow's own kernel: tf.matmul would take oneDNN's, which is a tenth of a millisecond slower for a
    # single query.
    products = tf.raw_ops.BatchMatMulV3(x=query[:, tf.newaxis], y=rows, adj_y=True, Tout=tf.float32)
    return tf.squeeze(products, 1)
