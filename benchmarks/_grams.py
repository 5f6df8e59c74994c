"""Names as words and runs of three letters, and measures of how a model ranks held-out names by them."""

import re
import zlib

import numpy as np
import scipy.sparse

NUM_GRAMS = 1 << 15


def words_of(name):
    return re.findall(r"\w+", name.lower())


def grams(name):
    """The parts of a name as numbers from 1 on: its words, and any three letters in a row."""
    words = words_of(name)
    parts = {*words}
    for word in (f"<{word}>" for word in words):
        parts.update(word[i : i + 3] for i in range(len(word) - 2))
    return sorted({zlib.crc32(part.encode()) % (NUM_GRAMS - 1) + 1 for part in parts})


def gram_ids(names):
    """Ids int32 [L, N] of the parts of each name, padded with 0."""
    return padded([grams(name) for name in names])


def padded(lists):
    """Lists of ids as an array int32 [L, N], padded with 0."""
    ids = np.zeros([len(lists), max(map(len, lists))], np.int32)
    for row, own in zip(ids, lists, strict=True):
        row[: len(own)] = own
    return ids


def gram_rows(ids):
    """A CSR matrix [L, F] of ones from padded ids."""
    rows, places = np.nonzero(ids)
    return scipy.sparse.csr_matrix(
        (np.ones(len(rows), np.float32), (rows, ids[rows, places])), (len(ids), NUM_GRAMS)
    )


def normed(matrix):
    """A CSR matrix with rows of length 1, or empty."""
    lengths = np.sqrt(np.asarray(matrix.multiply(matrix).sum(1))).ravel()
    return (scipy.sparse.diags(1 / np.maximum(lengths, 1e-12)) @ matrix).tocsr()


def ranking(scores, truth):
    """MRR, recall@10 and the median rank of the best true label; ties count against it."""
    first, recalls = [], []
    for row in range(len(scores)):
        labels = truth.indices[truth.indptr[row] : truth.indptr[row + 1]]
        ranks = np.sort([np.sum(scores[row] >= scores[row, label]) for label in labels])
        first.append(ranks[0])
        recalls.append(np.mean(ranks <= 10))
    return np.mean(1 / np.array(first)), np.mean(recalls), np.median(first)
