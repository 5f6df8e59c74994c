"""An index of other classes, made of the weights of an index alone: only rows that come are assigned anew."""

import numpy as np
import tensorflow as tf

from tfxc.clustering import assign
from tfxc.search.cell_search import CellSearch
from tfxc.search.cells import cells_around
from tfxc.search.inverted_index import InvertedIndex
from tfxc.search.scanned import Answers, most_promising
from tfxc.search.tiles import Kept, Tiles, as_columns, lay_out

_ASSIGNED_ROWS = 1 << 16


def updated_index(stored, dtype, num_probes, old_ids, added):
    """An ``InvertedIndex`` of classes that stay in their cells, and of others in the nearest cell.

    ``InvertedIndex.stored`` and the dtype of its rows describe the present index. ``old_ids`` int64 [L'] has
    the present id of each class, -1 for one that is added; ``added`` float32 [n, E] the vectors of these, in
    the order of their ids.
    """
    *stored, mean, covariance = stored
    tiles, answers = Tiles(*stored), Answers(mean.numpy(), covariance.numpy())
    head = _Classes(tiles, old_ids, added)
    num_scanned = min(tiles.scanned.shape[0], len(old_ids) - 1)
    # To choose among all takes a pass over them: vectors that come may be among those that answer most.
    scanned = most_promising(head, answers, num_scanned) if num_scanned else np.empty(0, np.int32)
    scanned = np.sort(scanned)
    slots, offsets, centres = tiles.members.shape[1], tiles.offsets.numpy(), tiles.centres.numpy()
    places = np.where(old_ids >= 0, tiles.places.numpy()[np.maximum(old_ids, 0)], -1)
    places[places >= offsets[-1] * slots] = -1  # scanned so far
    cell_of = np.searchsorted(offsets, places // slots, side="right") - 1
    homeless = np.flatnonzero(places < 0)
    for start in range(0, len(homeless), _ASSIGNED_ROWS):
        some = homeless[start : start + _ASSIGNED_ROWS]
        cell_of[some] = assign(head.class_vectors_of(some).numpy(), centres)
    cell_of[scanned] = places[scanned] = -1
    cells = cells_around(cell_of, len(centres))
    # Rows in few bits are differences from the centres, which therefore stay; others follow their members.
    kept = None
    if dtype != "float32":
        kept = Kept(tiles, places, centres[cell_of[cells.members[cells.offsets[:-1]]]])
    index = InvertedIndex(num_probes=num_probes, dtype=dtype)
    index.hold(lay_out(head, cells, scanned, dtype, kept), answers)
    return index


class _Classes:
    """The classes of an index and others, as a head gives their vectors."""

    query_dim = None

    def __init__(self, tiles, old_ids, added):
        self.num_classes, self.effective_dim = len(old_ids), added.shape[1]
        self._search, self._added, self._old_ids = CellSearch(tiles, None), added, old_ids
        self._columns = as_columns(tiles.scanned_columns, tiles.scanned_scales)
        self._row_of_added = np.cumsum(old_ids < 0, dtype=np.int32) - 1

    def class_vectors(self, start, stop):
        """As of ``Head``."""
        return self.class_vectors_of(np.arange(start, stop))

    def class_vectors_of(self, class_ids):
        """As of ``Head``."""
        class_ids = np.asarray(class_ids)
        old_ids = self._old_ids[class_ids]
        old = tf.constant(np.maximum(old_ids, 0), tf.int32)
        vectors = self._search.vectors(old, self._columns).numpy()
        vectors[old_ids < 0] = self._added[self._row_of_added[class_ids[old_ids < 0]]]
        return tf.constant(vectors)
