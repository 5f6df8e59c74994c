"""Two codebooks for the class vectors: k-means by FAISS, in blocks of rows, one thread."""

import faiss
import numpy as np

from tfxc.class_vectors import blocks, blocks_of, one_thread, vectors_of

_POINTS_PER_CODEWORD = 512
_ITERATIONS = 10


def sample_by_weight(weights, num_rows, seed):
    """Rows drawn without replacement, in proportion to their weights, and what each of them stands for.

    Row i is drawn with probability ``min(1, w_i / t)``, t such that num_rows of them come: one that is more
    than a 1 / num_rows of the total always. Drawn, it weighs ``max(w_i, t)``, so the weight of any set of
    rows is right in the mean, and that of the heavy ones exactly.

    Args:
        weights: positive weights [L].
        num_rows: how many rows, if there are as many.
        seed: int.

    Returns:
        Sorted row ids int [n] and their weights float32 [n], n = min(num_rows, L).

    Example:
        >>> ids, weights = sample_by_weight(np.array([1, 1, 1, 1, 8]), 3, seed=0)
        >>> len(ids), int(ids[-1]), weights.tolist()  # two of the first four stand for all of them
        (3, 4, [2.0, 2.0, 8.0])

    Reference:
        Madow, "On the Theory of Systematic Sampling, II", 1949.
    """
    weights = np.asarray(weights)
    if len(weights) <= num_rows:
        return np.arange(len(weights)), weights.astype(np.float32)
    generator = np.random.default_rng(seed)
    chance = np.multiply(num_rows, weights, dtype=np.float64)  # of ten million classes 80 MB
    chance /= weights.sum(dtype=np.float64)
    while chance.max() > 1:  # what is above 1 goes to the others
        certain = chance >= 1
        chance *= (num_rows - certain.sum()) / chance[~certain].sum()
        chance[certain] = 1
    # Systematic: one row in every unit of the summed chances. The order of the ids may have a period.
    rest = np.flatnonzero(chance < 1).astype(np.int32)
    generator.shuffle(rest)
    shares = chance[rest]
    np.cumsum(shares, out=shares)
    points = generator.random() + np.arange(num_rows - (len(chance) - len(rest)))
    places = np.searchsorted(shares, points, side="right")
    drawn = chance == 1
    drawn[rest[np.minimum(places, len(rest) - 1)]] = True
    ids = np.flatnonzero(drawn)
    return ids, (weights[ids] / chance[ids]).astype(np.float32)


def kmeans(vectors, num_codewords, start=None, weights=None, seed=0):
    """Codewords float32 [C, D]; fewer vectors than codewords leave the last codewords at 0.

    Args:
        vectors: float32 [n, D].
        num_codewords: C.
        start: None or codewords [C, D] to start from.
        weights: None or positive weights [n].
        seed: int.
    """
    num_clusters = min(num_codewords, len(vectors))
    clustering = faiss.Kmeans(
        vectors.shape[1],
        num_clusters,
        niter=_ITERATIONS,
        seed=seed,
        min_points_per_centroid=1,
        max_points_per_centroid=len(vectors),
    )
    start = None if start is None else start[:num_clusters]
    clustering.train(np.ascontiguousarray(vectors), weights=weights, init_centroids=start)
    codewords = np.zeros((num_codewords, vectors.shape[1]), np.float32)
    codewords[:num_clusters] = clustering.centroids
    return codewords


def assign(vectors, codewords):
    """The nearest codeword int32 [n] of each vector, and its squared distance float32 [n]."""
    index = faiss.IndexFlatL2(codewords.shape[1])
    index.add(codewords)
    distances, codes = index.search(np.ascontiguousarray(vectors), 1)
    return codes[:, 0].astype(np.int32), distances[:, 0]


def rows_to_fit(head, num_rows, seed, weights):
    """The class vectors float32 [n, D] that k-means sees, n <= num_rows, and their weights [n].

    Rows drawn uniformly would hardly hold a class that matters: of 400 thousand by Zipf's law, one in twelve
    of the thousand heaviest, half of all weight.
    """
    ids, weights = sample_by_weight(weights, num_rows, seed)
    return vectors_of(head, ids), weights


def fit_codebooks(head, start, residual, num_codewords, seed, weights):
    """Two codebooks float32 [C, D1], [C, D2] fitted by k-means to the head's class vectors.

    Args:
        head: gives the class vectors.
        start: None, or the two codebooks to start from.
        residual: True quantises the residual of the first codebook with the second; False the first
            half of the dimensions with the first and the second half with the second.
        num_codewords: C.
        seed: int in [0, 2^31), of the k-means and the rows it sees.
        weights: positive class weights [L], of the errors and of the rows it sees.
    """
    with one_thread():
        vectors, weights = rows_to_fit(head, _POINTS_PER_CODEWORD * num_codewords, seed, weights)
        start = (None, None) if start is None else start
        left = vectors if residual else vectors[:, : vectors.shape[1] // 2]
        first = kmeans(left, num_codewords, start[0], weights, seed)
        right = _right(vectors, first, assign(left, first)[0], residual)
        return first, kmeans(right, num_codewords, start[1], weights, (seed + 1) % 2**31)


def encode(head, codebooks, residual, class_ids=None):
    """Each class's nearest codewords int32 [2, L], and the squared error of its quantised vector float32 [L].

    Args: as of ``fit_codebooks``; and None or the class ids [n] that are wanted in place of all.
    """
    first, second = codebooks
    num_classes = head.num_classes if class_ids is None else len(class_ids)
    codes, errors = np.empty((2, num_classes), np.int32), np.empty(num_classes, np.float32)
    with one_thread():
        for begin, vectors in blocks(head) if class_ids is None else blocks_of(head, class_ids):
            end = begin + len(vectors)
            codes[0, begin:end], left_errors = assign(vectors[:, : first.shape[1]], first)
            right = _right(vectors, first, codes[0, begin:end], residual)
            codes[1, begin:end], errors[begin:end] = assign(right, second)
            if not residual:
                errors[begin:end] += left_errors
    return codes, errors


def quantised_vectors(codebooks, residual):
    """What the classes of a cell are quantised to: float32 [C, D] of each first codeword and every second."""
    first, second = codebooks
    for codeword in first:
        yield codeword + second if residual else np.hstack([np.tile(codeword, (len(second), 1)), second])


def _right(vectors, first, codes, residual):
    """What the second codebook quantises."""
    return vectors - first[codes] if residual else vectors[:, first.shape[1] :]
