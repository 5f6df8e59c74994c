"""K-means, a weighted sample of rows to train it on, and the nearest codeword of each vector."""

import numpy as np
from scipy import sparse

from tfxc.progress import progress

_ITERATIONS = 10
_PRODUCTS_AT_ONCE = 1 << 18


def sample_by_weight(weights, num_rows, seed):
    """Draws rows without replacement, in proportion to their weights w > 0 [L]: ids int [n] and weights [n].

    Row i is drawn with probability ``min(1, w_i / t)``, with t such that n = min(num_rows, L) rows are drawn,
    and weighs ``max(w_i, t)``: the weight of any set of rows has the right mean, and heavy rows keep theirs.
    Reference: Rosén, "On Sampling with Probability Proportional to Size", 1997.
    """
    weights = np.asarray(weights)
    if len(weights) <= num_rows:
        return np.arange(len(weights)), weights.astype(np.float32)
    chance = np.multiply(num_rows, weights, dtype=np.float64)  # in place: 80 MB for ten million classes
    chance /= weights.sum(dtype=np.float64)
    while chance.max() > 1:  # the others share the excess above 1
        certain = chance >= 1
        chance *= (num_rows - certain.sum()) / chance[~certain].sum()
        chance[certain] = 1
    # The n smallest odds of uniform numbers over those of the chances.
    odds = np.random.default_rng(seed).random(len(chance))
    odds /= 1 - odds
    with np.errstate(divide="ignore"):  # a chance may be too small for its type: the last to be drawn
        odds /= chance
    odds *= 1 - chance
    ids = np.sort(np.argpartition(odds, num_rows - 1)[:num_rows])
    return ids, (weights[ids] / chance[ids]).astype(np.float32)


def kmeans(vectors, num_codewords, start=None, weights=None, seed=0, title=None):
    """Codewords float32 [C, D] of vectors float32 [n, D]; where n < C, the last codewords are 0.

    ``start``: None or initial codewords [C, D]. ``weights``: None or positive weights [n]. With a title it
    tells of its progress. Reference: Lloyd, "Least Squares Quantization in PCM", 1982.
    """
    num_clusters, num_vectors = min(num_codewords, len(vectors)), len(vectors)
    weights = np.ones(num_vectors, np.float32) if weights is None else weights
    codewords = np.zeros((num_codewords, vectors.shape[1]), np.float32)
    own = codewords[:num_clusters]
    if start is None:
        # A vector of much weight is near a codeword from the start: few rounds would not bring one there.
        chances = weights / weights.sum(dtype=np.float64)
        random = np.random.default_rng(seed)
        own[:] = vectors[random.choice(num_vectors, num_clusters, replace=False, p=chances)]
    else:
        own[:] = start[:num_clusters]
    with progress(_ITERATIONS, title, "rounds") as bar:
        for _ in range(_ITERATIONS):
            codes, before = assign(vectors, own), own.copy()
            entries = weights, codes, np.arange(num_vectors + 1)
            of_code = sparse.csr_matrix(entries, (num_vectors, num_clusters)).T
            totals = of_code.sum(1).A1
            filled = totals > 0
            own[filled] = (of_code @ vectors)[filled] / totals[filled, np.newaxis]
            if num_empty := num_clusters - np.count_nonzero(filled):
                # Codewords of no vector go to the vectors that lose most.
                distances = np.empty(num_vectors, np.float32)
                assign(vectors, before, distances)
                own[~filled] = vectors[np.argpartition(-weights * distances, num_empty - 1)[:num_empty]]
            bar.update()
    return codewords


def assign(vectors, codewords, distances=None):
    """The nearest codeword int32 [n] of each vector; its squared distance goes to ``distances``, if given.

    ``|v − c|² = |v|² − 2 (v·c − |c|² / 2)``: blocks of a matrix product, each of which stays in the cache.
    """
    columns, half = np.ascontiguousarray(codewords.T), (codewords**2).sum(1) / 2
    codes, size = np.empty(len(vectors), np.int32), -(-_PRODUCTS_AT_ONCE // len(codewords))
    nearness, places = np.empty((min(size, len(vectors)), len(codewords)), np.float32), np.arange(size)
    for start in range(0, len(vectors), size):
        rows = slice(start, start + size)
        block = vectors[rows]
        near = np.matmul(block, columns, out=nearness[: len(block)])
        near -= half
        codes[rows] = best = near.argmax(1)
        if distances is not None:
            lengths = np.einsum("nd,nd->n", block, block)
            distances[rows] = np.maximum(lengths - 2 * near[places[: len(block)], best], 0)
    return codes
