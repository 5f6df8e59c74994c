"""Cells laid out in tiles, blocks of equally many rows that a gather reads whole; and scanned classes."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfxc.aligned import aligned_zeros
from tfxc.class_vectors import vectors_of
from tfxc.search.cells import directions, moments

STORED_AS = {"bfloat16": "uint16"}  # the same bits: tf-keras cannot save bfloat16
DTYPES = {"float32": np.float32, "bfloat16": tf.bfloat16.as_numpy_dtype, "int8": np.int8}
_LARGEST_CODE = 127
_ROUNDS = 3  # how many coordinates of a row may be rounded the other way
_ALONG = 100  # the weight of an error along the direction, relative to one across it
_TILE, _SMALL_TILE = 32, 8
_COPIED_ROWS = 1 << 16
_TILES_PER_CELL = 4  # the mean size of a cell, in large tiles, from which on tiles are large


class Tiles(NamedTuple):
    """The rows of classes cell by cell, and separately those of H classes that every query scans.

    Empty slots fill up the last tile of a cell.
    """

    centres: np.ndarray  # float32 [C, D], the mean of each cell
    reaches: np.ndarray  # float32 [C], how far members reach from the mean, see cells.moments
    offsets: np.ndarray  # int32 [C + 1]: cell c has the tiles offsets[c] to before offsets[c + 1]
    members: np.ndarray  # int32 [T, S], class ids, -1 in empty slots
    places: np.ndarray  # int32 [L], the slot of each class in the flat members; of scanned ones T·S and more
    rows: np.ndarray  # [T, S, D]: float32 vectors; in fewer bits, their differences from the means of cells
    scales: np.ndarray  # bfloat16 [T, S], the factors of int8 rows; for other rows [0, S]
    scanned: np.ndarray  # int32 [H], the ids of scanned classes
    # [D, H], their vectors as columns, which a product with few queries reads faster; float32 if rows are,
    # else int16: these are whole and long vectors, of which 8 bits would lose more than of all rows.
    scanned_columns: np.ndarray
    scanned_scales: np.ndarray  # float32 [H], the factors of int16 columns; for others [0]


class Kept(NamedTuple):
    """Rows in few bits that stay as they are in other ``Tiles``: to round them again would add up."""

    tiles: Tiles  # of variables
    places: np.ndarray  # int32 [L], the slot there of each class whose row stays; -1 for other classes
    centres: np.ndarray  # float32 [C, D], of the cells of the new tiles, of which rows are differences

    def copy(self, name, array, places):
        """Copies these rows into the slots ``places`` [L] of an array of new tiles, flat, some at a time."""
        rows = read(getattr(self.tiles, name))
        rows = tf.reshape(rows, [-1, *rows.shape[2:]])
        ids = np.flatnonzero(self.places >= 0)
        for start in range(0, len(ids), _COPIED_ROWS):
            some = ids[start : start + _COPIED_ROWS]
            array[places[some]] = tf.gather(rows, self.places[some]).numpy()


def read(weight):
    """A tensor of the numbers in a variable, without a copy."""
    weight = tf.convert_to_tensor(weight)
    return tf.bitcast(weight, tf.bfloat16) if weight.dtype == tf.uint16 else weight


def tile_size(num_classes, num_cells):
    """The slots of a tile: few where cells are small, where empty slots would outnumber the classes."""
    return _TILE if num_classes >= _TILES_PER_CELL * _TILE * num_cells else _SMALL_TILE


def lay_out(head, cells, scanned, dtype, kept=None):
    """The ``Tiles`` of a head's classes in one of ``DTYPES``: ids [H] to scan, and ``Cells`` of all others.

    ``kept`` is None, or the ``Kept`` rows and the means around which all rows are stored.

    Memory: the rows once, the vectors of scanned classes, and those of eight thousand others or of one cell.
    """
    num_members, dim = len(cells.members), head.effective_dim
    sizes = np.diff(cells.offsets)
    slots = tile_size(num_members, len(sizes))
    offsets = np.concatenate([[0], np.cumsum(-(-sizes // slots))]).astype(np.int32)
    # A class has the same position in its cell's tiles as in its cell.
    apart = (slots * offsets[:-1] - cells.offsets[:-1]).astype(np.int32)
    places = np.arange(num_members, dtype=np.int32) + np.repeat(apart, sizes)
    num_tiles = int(offsets[-1])
    members = np.full(num_tiles * slots, -1, np.int32)
    members[places] = cells.members
    place_of = np.empty(num_members + len(scanned), np.int32)
    place_of[cells.members] = places
    place_of[scanned] = members.size + np.arange(len(scanned))
    means, reaches = np.empty((len(sizes), dim), np.float32), np.empty(len(sizes), np.float32)
    rows = aligned_zeros((num_tiles * slots, dim), DTYPES[dtype])
    scales = aligned_zeros((num_tiles if dtype == "int8" else 0) * slots, DTYPES["bfloat16"])
    for start, stop, vectors in cells.chunks(head, "Rows"):
        first, last = cells.offsets[start], cells.offsets[stop]
        given = None if kept is None else kept.centres[start:stop]
        means[start:stop], reaches[start:stop] = moments(vectors, cells.offsets[start : stop + 1], given)
        own, where = np.repeat(means[start:stop], sizes[start:stop], axis=0), places[first:last]
        if dtype == "int8":
            rows[where], scales[where] = int8_codes(vectors - own, own)
        else:
            rows[where] = vectors if dtype == "float32" else vectors - own
    if kept is not None:
        kept.copy("rows", rows, place_of)
        if dtype == "int8":
            kept.copy("scales", scales, place_of)
    columns, column_scales = np.ascontiguousarray(vectors_of(head, scanned).T), np.empty(0, np.float32)
    if dtype != "float32":
        columns, column_scales = int16_codes(columns)
    shape = num_tiles, slots
    members, rows, scales = members.reshape(shape), rows.reshape(*shape, dim), scales.reshape(-1, slots)
    of_scanned = np.asarray(scanned, np.int32), columns, column_scales
    return Tiles(means, reaches, offsets, members, place_of, rows, scales, *of_scanned)


def int16_codes(columns):
    """Codes int16 [D, H] and scales float32 [H] of columns [D, H]: 5 digits of a column's largest number."""
    largest = np.iinfo(np.int16).max
    scales = np.abs(columns).max(0, initial=0) / np.float32(largest)
    codes = np.rint(columns / np.maximum(scales, np.finfo(np.float32).tiny)).clip(-largest, largest)
    return codes.astype(np.int16), scales


def as_columns(columns, scales):
    """The vectors float32 [D, H] of scanned classes, as ``Tiles`` stores them."""
    columns = tf.convert_to_tensor(columns)
    return columns if columns.dtype == tf.float32 else tf.cast(columns, tf.float32) * scales


def int8_codes(vectors, along):
    """Codes int8 [n, D] and scales bfloat16 [n] of vectors [n, D], most exact ``along`` others [n, D].

    Queries that read a row have about the direction of its cell, so an error along it counts most. A few
    coordinates are therefore rounded the other way, so that the errors along the direction cancel.

    Reference:
        Guo et al., "Accelerating Large-Scale Inference with Anisotropic Vector Quantization", 2020.
    """
    scales = (np.abs(vectors).max(1) / _LARGEST_CODE).astype(DTYPES["bfloat16"]).astype(np.float32)
    exact = vectors / np.maximum(scales, np.finfo(np.float32).tiny)[:, np.newaxis]
    codes = np.rint(exact).clip(-_LARGEST_CODE, _LARGEST_CODE)
    unit = directions(along)
    rows, errors, gain = np.arange(len(codes)), codes - exact, _ALONG * unit**2 + 1
    for _ in range(_ROUNDS):
        product = np.einsum("nd,nd->n", errors, unit)
        step = -np.copysign(np.float32(1), errors)  # to the other neighbour
        change = gain + 2 * step * (_ALONG * product[:, np.newaxis] * unit + errors)
        change[np.abs(codes + step) > _LARGEST_CODE] = 0
        best = change.argmin(1)
        step = np.where(change[rows, best] < 0, step[rows, best], 0)
        codes[rows, best] += step
        errors[rows, best] += step
    return codes.astype(np.int8), scales.astype(DTYPES["bfloat16"])
