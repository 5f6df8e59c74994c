"""Cuts class vectors into cells by k-means of FAISS; an inverted index consists of these cells."""

from typing import NamedTuple

import numpy as np

from tfxc.class_vectors import blocks, shared_by_queries, vectors_of
from tfxc.clustering import assign, kmeans, sample_by_weight
from tfxc.progress import progress

_POINTS_PER_CELL = 32
_POWER_OF_LENGTH = 8  # k-means weighs classes by it; a lower power would weigh classes that are never best
_LONG = 0.1  # the share of all classes whose vectors count as long
_LARGEST = 2  # a cell with more than this many times the mean number of members is split
_ALIKE = 0.9  # where k-means leaves this share of a cell together, its vectors are too similar to cut
_CHUNK_ROWS = 1 << 13  # what is made of the vectors of so many rows stays in the cache
_DEVIATIONS = 3  # standard deviations from the mean of a cell's scores to the best of them


class Cells(NamedTuple):
    """A partition of the classes: their ids ``members`` int32 [L], cell by cell.

    Cell c is ``members[offsets[c]:offsets[c + 1]]``, with ``offsets`` int64 [C + 1]; none is empty.
    """

    members: np.ndarray
    offsets: np.ndarray

    def chunks(self, head, title):
        """Iterates over cells, a few at a time, and tells of its progress.

        Yields the first cell, the cell after the last, and the vectors float32 [n, D] of their members.
        """
        start, num_cells = 0, len(self.offsets) - 1
        with progress(len(self.members), title, "classes") as bar:
            while start < num_cells:
                full = np.searchsorted(self.offsets, self.offsets[start] + _CHUNK_ROWS, side="right") - 1
                stop = max(int(full), start + 1)
                ids = self.members[self.offsets[start] : self.offsets[stop]]
                yield start, stop, vectors_of(head, ids)
                bar.update(len(ids))
                start = stop

    def moments(self, head):
        parts = [moments(own, self.offsets[a : b + 1]) for a, b, own in self.chunks(head, "Centres")]
        return tuple(map(np.concatenate, zip(*parts, strict=True)))

    def without(self, ids):
        """The cells without these classes."""
        stays = np.ones(len(self.members), bool)
        stays[ids] = False
        stays = stays[self.members]
        sizes = np.add.reduceat(stays, self.offsets[:-1], dtype=np.int64)
        return Cells(self.members[stays], np.concatenate([[0], np.cumsum(sizes[sizes > 0])]))


def moments(vectors, offsets, means=None):
    """The mean float32 [C, D] and the reach float32 [C] of cells, by their offsets and members' vectors.

    The reach is that from given ``means``, if there are any.

    The best class that a query z finds in a cell scores about ``z · mean + |z| · reach``: three standard
    deviations above the mean, like the largest of a few hundred normal numbers. So a query reads a cell of
    diverse members before an equally near cell of similar members: on skewed frequencies a third of the
    reading then finds as many of the best.
    """
    first, sizes = offsets[:-1] - offsets[0], np.diff(offsets)
    if means is None:
        means = (np.add.reduceat(vectors, first) / sizes[:, np.newaxis]).astype(np.float32)
    apart = vectors - np.repeat(means, sizes, axis=0)
    variances = np.add.reduceat(np.einsum("nd,nd->n", apart, apart), first) / apart.shape[1]
    return means, (_DEVIATIONS * np.sqrt(variances / sizes)).astype(np.float32)


def promise_of_cells(means, reaches, query):
    """Scores [n, C] of cells of these moments for queries [n, E], which read the largest first."""
    return query @ means.T + np.linalg.norm(query, axis=1, keepdims=True) * reaches


def cut_into_cells(head, num_cells, skewed=True, lengths=None):
    """``Cells`` of similar directions by k-means; long class vectors have their own if lengths are skewed.

    The longer its vector, the more often a class is among the best, whatever the direction of the query.
    (Lengths leave out coordinates that all queries share, such as a bias: a large negative bias makes a
    vector long, and its class rare.) Where lengths are skewed, k-means therefore weighs classes by a high
    power of their lengths, and the longest tenth have cells of their own, which queries read long before
    those of their shorter neighbours. With vectors of similar length that would read several times as much.

    There are up to twice ``num_cells``, or more: cells of more than twice the mean size are cut again.
    ``lengths`` are None, or what ``lengths_of`` the head returned. Raises ValueError if a class vector, or
    its squared length, is not finite.
    """
    lengths = lengths_of(head) if lengths is None else lengths
    weights = np.ones(head.num_classes)
    if skewed:
        relative = lengths.astype(np.float64) / max(lengths.max(), np.finfo(np.float32).tiny)
        weights = np.maximum(relative**_POWER_OF_LENGTH, 1e-12)
    ids, weights = sample_by_weight(weights, _POINTS_PER_CELL * num_cells, seed=0)
    points = directions(vectors_of(head, ids))
    codebook = kmeans(points, num_cells, weights=weights, title="k-means")
    cell_of = _assigned(head, directions(codebook), directions)
    mean = head.num_classes / num_cells
    parts = [part for cell in _members(cell_of, num_cells) for part in _small_parts(head, cell, mean)]
    if skewed:
        is_long = lengths >= np.quantile(lengths, 1 - _LONG)
        parts = [some for part in parts for some in (part[is_long[part]], part[~is_long[part]])]
    return _cells_of([part for part in parts if len(part)])


def gather_around(head, centres):
    """Cells of the classes that are nearest to each centre [C, D]; ValueError as of ``cut_into_cells``."""
    lengths_of(head)  # raises
    return cells_around(_assigned(head, centres, lambda vectors: vectors), len(centres))


def cells_around(cell_of, num_cells):
    """The cells of classes by the number of the cell of each, int [L]; -1 for a class in none."""
    return _cells_of([cell for cell in _members(cell_of + 1, num_cells + 1)[1:] if len(cell)])


def lengths_of(head):
    """The lengths [L] of all class vectors, without coordinates that all queries share, such as biases.

    Raises ValueError where the squared length of a whole vector overflows.
    """
    varies, lengths = shared_by_queries(head) == 0, np.empty(head.num_classes, np.float32)
    for start, vectors in blocks(head, title="Lengths"):
        with np.errstate(over="ignore"):
            endless = ~np.isfinite(np.einsum("nd,nd->n", vectors, vectors))
        if endless.any():
            raise ValueError(
                f"The vector of class {start + endless.argmax()} is finite, but its squared length is not, "
                "in float32, so no index can be built: training has diverged. Lower the learning rate or "
                "clip the gradients."
            )
        lengths[start : start + len(vectors)] = np.linalg.norm(vectors[:, varies], axis=1)
    return lengths


def _assigned(head, codebook, points_of):
    """The codeword int32 [L] nearest to the point of each class."""
    cell_of = np.empty(head.num_classes, np.int32)
    for start, vectors in blocks(head, title="Cells"):
        cell_of[start : start + len(vectors)] = assign(points_of(vectors), codebook)
    return cell_of


def _members(cell_of, num_cells):
    """The ascending class ids of each cell."""
    members = np.argsort(cell_of, kind="stable").astype(np.int32)
    return np.split(members, np.cumsum(np.bincount(cell_of, minlength=num_cells))[:-1])


def _cells_of(parts):
    return Cells(np.concatenate(parts), np.concatenate([[0], np.cumsum([len(part) for part in parts])]))


def directions(vectors):
    """Vectors [n, D] scaled to length 1; vectors of length 0 stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, np.finfo(np.float32).tiny)


def _small_parts(head, ids, mean):
    """The class ids of a cell, cut into parts of at most _LARGEST times the mean size."""
    if len(ids) <= max(_LARGEST * mean, 1):
        return [ids]
    vectors = directions(vectors_of(head, ids))
    num_parts = int(-(-len(ids) // mean))
    part_of = assign(vectors, kmeans(vectors, num_parts))
    sizes = np.bincount(part_of, minlength=num_parts)
    if sizes.max() > _ALIKE * len(ids):
        return np.array_split(ids, num_parts)
    order = np.argsort(part_of, kind="stable")
    parts = np.split(ids[order], np.cumsum(sizes)[:-1])
    return [small for part in parts for small in _small_parts(head, part, mean)]
