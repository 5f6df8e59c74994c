"""Finds names that are spelled similarly."""

import numpy as np
from scipy import sparse

_AT_ONCE = 128


def similar_names(names, known, num_similar):
    """Of the m known names those that share most trigrams with each of n names. Rare trigrams count more.

    Returns their positions int64 [n, min(num_similar, m)], the most similar first, and the cosines float32 of
    TF-IDF vectors, 0 for a name without a common trigram.
    """
    num_similar = min(num_similar, len(known))
    vectors = _trigram_vectors([*known, *names])
    transposed, vectors = vectors[: len(known)].T.tocsr(), vectors[len(known) :]
    places = np.zeros((len(names), num_similar), np.int64)
    cosines = np.zeros((len(names), num_similar), np.float32)
    for start in range(0, len(names), _AT_ONCE):
        products = vectors[start : start + _AT_ONCE] @ transposed
        for row in range(products.shape[0]):
            inside = slice(*products.indptr[row : row + 2])
            values = products.data[inside]
            best = _largest(values, num_similar)
            places[start + row, : len(best)] = products.indices[inside][best]
            cosines[start + row, : len(best)] = values[best]
    return places, cosines


def _largest(values, count):
    """Returns the places of the largest values, the largest first, and of equal values the first."""
    places = np.arange(len(values))
    if count < len(values):  # sorting a hundred thousand values would take most of the time
        places = np.flatnonzero(values >= np.partition(values, -count)[-count])
    return places[np.argsort(-values[places], kind="stable")[:count]]


def _trigram_vectors(names):
    """Returns TF-IDF vectors of length 1, a sparse matrix [n, number of distinct trigrams of bytes]."""
    texts = [f" {name.lower()} ".encode() for name in names]
    letters = np.frombuffer(b"".join(texts) + b"  ", np.uint8).astype(np.int64)
    row = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    codes = (letters[:-2] << 16) + (letters[1:-1] << 8) + letters[2:]
    inside = np.flatnonzero(np.append(row[2:], [-1, -1]) == row)  # no trigram spans two names
    _, column = np.unique(codes[inside], return_inverse=True)
    counts = sparse.csr_matrix(
        (np.ones(len(column), np.float32), (row[inside], column)), (len(texts), column.max(initial=0) + 1)
    )
    counts.data = 1 + np.log(counts.data)
    num_names = np.bincount(counts.indices, minlength=counts.shape[1])
    counts.data *= np.log1p(len(texts) / num_names)[counts.indices].astype(np.float32)
    lengths = np.sqrt(counts.multiply(counts).sum(1)).A1
    return sparse.diags((1 / np.maximum(lengths, 1e-12)).astype(np.float32)) @ counts
