"""Two codebooks for the class vectors, by k-means and in blocks of rows."""

import numpy as np

from tfxc.class_vectors import blocks_of, vectors_of
from tfxc.clustering import assign, kmeans, sample_by_weight

_POINTS_PER_CODEWORD, _FEW_POINTS = 512, 128


def rows_to_fit(head, num_rows, seed, weights):
    """The class vectors float32 [n, D] that k-means sees, n <= num_rows, and their weights [n].

    Uniform draws of rows would miss most classes that matter. By Zipf's law the thousand heaviest of 400
    thousand classes have half of the weight, and one in twelve of them would be among the rows.
    """
    ids, weights = sample_by_weight(weights, num_rows, seed)
    return vectors_of(head, ids), weights


def fit_codebooks(head, start, residual, num_codewords, seed, weights, sees_few=False):
    """Two codebooks float32 [C, D1], [C, D2] fitted by k-means to the head's class vectors.

    ``start`` is None, or two codebooks to start from. With ``residual`` the second codebook quantises the
    residual of the first, else each of them half of the dimensions. The seed, in [0, 2^31), and the positive
    class weights [L] count for the k-means and the rows it sees. With ``sees_few`` these are 128 a codeword,
    not 512: a quarter of the time, nearly as good.
    """
    points = _FEW_POINTS if sees_few else _POINTS_PER_CODEWORD
    vectors, weights = rows_to_fit(head, points * num_codewords, seed, weights)
    start = (None, None) if start is None else start
    left = vectors if residual else vectors[:, : vectors.shape[1] // 2]
    first = kmeans(left, num_codewords, start[0], weights, seed)
    right = _right(vectors, first, assign(left, first), residual)
    return first, kmeans(right, num_codewords, start[1], weights, (seed + 1) % 2**31)


def encode(head, codebooks, residual, class_ids=None, errors=None):
    """The nearest codewords int32 [2, L] of the classes; the squared errors [L] go to ``errors``, if given.

    ``residual`` is as of ``fit_codebooks``. Class ids [n] choose classes; None means all.
    """
    num_classes = head.num_classes if class_ids is None else len(class_ids)
    return _encode(blocks_of(head, class_ids), num_classes, codebooks, residual, errors)


def encode_cells(cells_of, codebooks, residual):
    """The nearest codewords int32 [2, C²] of the quantised vectors of all cells of two other codebooks."""
    rows = enumerate(quantised_vectors(cells_of, residual))
    size = len(cells_of[1])
    return _encode(((size * a, own) for a, own in rows), len(cells_of[0]) * size, codebooks, residual)


def _encode(parts, num_vectors, codebooks, residual, errors=None):
    """As ``encode``, of the vectors in parts ``(start, vectors)``."""
    (first, second), codes = codebooks, np.empty((2, num_vectors), np.int32)
    for begin, vectors in parts:
        rows = slice(begin, begin + len(vectors))
        own_errors = None if errors is None else errors[rows]
        left_errors = None if errors is None else np.empty_like(own_errors)
        codes[0, rows] = assign(vectors[:, : first.shape[1]], first, left_errors)
        codes[1, rows] = assign(_right(vectors, first, codes[0, rows], residual), second, own_errors)
        if errors is not None and not residual:
            own_errors += left_errors
    return codes


def quantised_vectors(codebooks, residual):
    """Yields for each codeword of the first codebook the quantised vectors float32 [C, D] of its cells."""
    first, second = codebooks
    for codeword in first:
        yield codeword + second if residual else np.hstack([np.tile(codeword, (len(second), 1)), second])


def _right(vectors, first, codes, residual):
    """The vectors that the second codebook quantises."""
    return vectors - first[codes] if residual else vectors[:, first.shape[1] :]
