"""Attributes in the order of an index, and about how many classes of each cell pass what is wanted."""

import functools

import numpy as np
import tensorflow as tf

from tfxc.search.attributes import where_restricted


class AttributesInCells(tf.Module):
    """Tells for each cell of ``Tiles`` of variables whether any class passes, and for its rows which do.

    A table counts the classes of each kind in each cell: those of one value, of a few values where there are
    many, or of numbers within bounds.
    """

    def __init__(self, attributes, tiles):
        super().__init__()
        members, offsets, scanned = (own.numpy() for own in (tiles.members, tiles.offsets, tiles.scanned))
        self.num_tiles, self.slots = members.shape
        ids = np.concatenate([members.ravel(), scanned])
        ids = np.append(ids, np.full(-len(ids) % self.slots, -1))  # whole blocks
        self.attributes = attributes.arranged(np.maximum(ids, 0))
        self.num_scanned, num_cells = len(scanned), len(offsets) - 1
        filled = members.ravel() >= 0
        cells = np.repeat(np.arange(num_cells), self.slots * np.diff(offsets))[filled]
        self.sizes = tf.Variable(np.bincount(cells, minlength=num_cells).astype(np.float32), trainable=False)
        self.counts = []
        for part in self.attributes.parts:
            kinds = part.kinds(part.table[: members.size]).numpy()[filled]
            counted = kinds >= 0
            where = kinds[counted] * num_cells + np.broadcast_to(cells[:, np.newaxis], kinds.shape)[counted]
            counts = np.bincount(where, minlength=part.num_kinds * num_cells).reshape(-1, num_cells)
            up_to = np.pad(np.cumsum(counts, axis=0), [[1, 0], [0, 0]])
            smallest = np.min_scalar_type(~up_to.max())  # has room for one more below zero than above
            self.counts.append(tf.Variable(up_to.astype(smallest), trainable=False))

    def expected(self, wanted):
        """About how many classes of each cell pass: float32 [N or 1, C], 0 only where none does."""
        shares = map(self._share, self.counts, self.attributes.parts, wanted)
        return functools.reduce(tf.multiply, shares, tf.convert_to_tensor(self.sizes))

    def _share(self, counts, part, wanted):
        """The share of each cell's classes, at most 1, that passes one attribute: float32 [N or 1, C]."""

        def share():
            up_to, (first, last) = tf.convert_to_tensor(counts), part.kinds_wanted(*wanted)
            found = [tf.cast(tf.gather(up_to, kind), tf.float32) for kind in (last + 1, tf.maximum(first, 0))]
            found = tf.reduce_sum(tf.maximum(found[0] - found[1], 0), 1) / tf.maximum(self.sizes, 1)
            return tf.where(part.restricts(*wanted), tf.minimum(found, 1), 1)

        return where_restricted(part, wanted, share, tf.ones([1, 1]))

    def in_tiles(self, tiles, wanted):
        """Which slots of tiles int32 [N, n] pass: bool [N or 1, n, S]; arbitrary in empty slots."""
        passes = self.attributes.passes(tiles, wanted, self.slots)
        return tf.reshape(passes, [tf.shape(passes)[0], tf.shape(tiles)[1], self.slots])

    def scanned(self, wanted):
        """Which scanned classes pass: bool [N or 1, H]."""
        blocks = tf.range(self.num_tiles, self.num_tiles - -self.num_scanned // self.slots)
        return self.attributes.passes(blocks[tf.newaxis], wanted, self.slots)[:, : self.num_scanned]
