"""Two codebooks for the class vectors: k-means by FAISS, in blocks of rows, one thread."""

import faiss
import numpy as np

from tfxc.class_vectors import blocks, one_thread, subsample

_POINTS_PER_CODEWORD = 512
_ITERATIONS = 10


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


def fit_codebooks(head, start, residual, num_codewords, seed, weights=None):
    """Two codebooks float32 [C, D1], [C, D2] fitted by k-means to the head's class vectors.

    Args:
        head: has ``num_classes`` and ``class_vectors(start, stop)``.
        start: None, or the two codebooks to start from.
        residual: True quantises the residual of the first codebook with the second; False the first
            half of the dimensions with the first and the second half with the second.
        num_codewords: C.
        seed: int, of the k-means and the rows it sees.
        weights: None or positive class weights [L].
    """
    with one_thread():
        ids, vectors = subsample(head, _POINTS_PER_CODEWORD * num_codewords, seed)
        weights = None if weights is None else weights[ids].astype(np.float32)
        start = (None, None) if start is None else start
        left = vectors if residual else vectors[:, : vectors.shape[1] // 2]
        first = kmeans(left, num_codewords, start[0], weights, seed)
        right = _right(vectors, first, assign(left, first)[0], residual)
        return first, kmeans(right, num_codewords, start[1], weights, seed + 1)


def encode(head, codebooks, residual):
    """Each class's nearest codewords int32 [2, L], and the squared error of its quantised vector float32 [L].

    Args: as of ``fit_codebooks``.
    """
    first, second = codebooks
    codes, errors = np.empty((2, head.num_classes), np.int32), np.empty(head.num_classes, np.float32)
    with one_thread():
        for begin, vectors in blocks(head):
            end = begin + len(vectors)
            codes[0, begin:end], left_errors = assign(vectors[:, : first.shape[1]], first)
            right = _right(vectors, first, codes[0, begin:end], residual)
            codes[1, begin:end], errors[begin:end] = assign(right, second)
            if not residual:
                errors[begin:end] += left_errors
    return codes, errors


def _right(vectors, first, codes, residual):
    """What the second codebook quantises."""
    return vectors - first[codes] if residual else vectors[:, first.shape[1] :]
