"""Reading a head's class vectors: in blocks of rows, a sample of them, refused where one is not finite."""

import contextlib

import faiss
import numpy as np
import tensorflow as tf

from tfxc.progress import progress
from tfxc.spare_classes import require_no_spare

_BLOCK_ROWS = 1 << 16


@contextlib.contextmanager
def one_thread():
    """Runs FAISS on one thread: beside TensorFlow's threads, two OpenMP threads are much slower than one."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def require_current(head):
    """Raises ValueError for a head that is not built; has it bring its class vectors up to date."""
    if not head.built:
        raise ValueError("The head has no class vectors yet: build it, or the model, before the index.")
    head.prepare_index()


def require_indexable(head):
    """As ``require_current``, and refuses a head whose class vectors do not tell its logits (ValueError)."""
    if not hasattr(head, "indexable"):
        raise ValueError(f"An index is built from a head, as model.head, but got {type(head).__name__}.")
    require_current(head)
    if not head.indexable:
        raise ValueError(
            f"Inner products with class vectors of this {type(head).__name__} do not rank as its logits do, "
            "so no index can rank by them. A UniformSparseHead projects its weights for the queries of "
            "training steps: train it first. A MACHHead searches its best buckets only, by its own "
            "num_probes: export the model without an index."
        )
    require_no_spare(head)


def vector_of_each(head, class_ids):
    """Class vectors float32 [n, effective_dim] of ids int32 [n]; ValueError for another shape of them."""
    return _of_own_width(head, "class_vectors_of", class_ids, "class id")


def effective_query_of(head, query):
    """As ``vector_of_each``, the effective queries [N, effective_dim] of queries [N, D]."""
    return _of_own_width(head, "effective_query", query, "query")


def _of_own_width(head, method, given, what):
    given = tf.convert_to_tensor(given)
    vectors = tf.cast(getattr(head, method)(given), tf.float32)
    if not vectors.shape.is_compatible_with([given.shape[0], head.effective_dim]):
        raise ValueError(
            f"{type(head).__name__}.{method} must give a vector of width effective_dim = "
            f"{head.effective_dim} for each {what} {given.shape}, but gave {vectors.shape}."
        )
    return vectors


def shared_by_queries(head):
    """The part that all effective queries of a head share, float32 [E]: the 1 of a bias, 0 elsewhere."""
    if head.query_dim is None:  # a head of a user's own need not set it
        return np.zeros(head.effective_dim, np.float32)
    some = np.random.default_rng(0).standard_normal((3, head.query_dim)).astype(np.float32)
    queries = effective_query_of(head, some).numpy()
    return np.where((queries == queries[0]).all(0), queries[0], 0)


def blocks(head, rows=None, title=None):
    """(start, finite class vectors float32 [rows, D]) over all classes; with a title, and its progress."""
    rows = rows or _BLOCK_ROWS
    with progress(head.num_classes, title, "classes") as bar:
        for start in range(0, head.num_classes, rows):
            vectors = np.asarray(head.class_vectors(start, min(start + rows, head.num_classes)))
            require_finite(vectors, range(start, start + len(vectors)))
            yield start, vectors
            bar.update(len(vectors))


def copy_class_vectors(head, variable, change=lambda vectors: vectors):
    """Writes what ``change`` makes of a head's class vectors into a variable's rows, on every replica."""
    # Slicing a mirrored variable would change its first copy alone.
    copies = getattr(variable, "values", [variable])
    for start, vectors in blocks(head):
        rows = change(vectors)
        for copy in copies:
            copy[start : start + len(vectors)].assign(rows)


def blocks_of(head, class_ids):
    """As ``blocks``, for chosen class ids [n]: ``start`` is a position among these. None means all."""
    if class_ids is None:
        yield from blocks(head)
        return
    for start in range(0, len(class_ids), _BLOCK_ROWS):
        yield start, vectors_of(head, class_ids[start : start + _BLOCK_ROWS])


def changed_classes(head, fingerprint):
    """Yields the ids int [n] of the classes whose vectors changed, whatever changed them, in parts.

    A checksum of 64 bits a class tells which: int64 [L], zeros at first. It is brought up to date.
    """
    for start in range(0, head.num_classes, _BLOCK_ROWS):
        vectors = head.class_vectors(start, min(start + _BLOCK_ROWS, head.num_classes))
        with tf.device("CPU"):  # there is no kernel elsewhere
            seen = tf.raw_ops.Fingerprint(data=vectors, method="farmhash64")  # of all bits of each row
        seen = seen.numpy().view(np.int64)[:, 0]
        known = fingerprint[start : start + len(seen)]
        yield start + np.flatnonzero(seen != known)
        known[:] = seen


def require_finite(vectors, class_ids):
    """Raises ValueError for a class vector with NaN or infinity in it, and names the class."""
    flat = vectors.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.dot(flat, flat)):  # ten times faster than a look at each number
            return
    finite = np.isfinite(vectors).all(1)
    if not finite.all():
        raise ValueError(
            f"The vector of class {class_ids[finite.argmin()]} is not finite, so no index can be built: "
            "training has diverged. Lower the learning rate or clip the gradients."
        )


def vectors_of(head, class_ids):
    """The vectors float32 [n, D] of class ids int [n]; ValueError for one with NaN or infinity in it."""
    vectors = np.asarray(vector_of_each(head, tf.constant(class_ids, tf.int32)))
    require_finite(vectors, class_ids)
    return vectors


class SomeClasses:
    """Chosen classes of a head, by ids [n], read as the classes 0 to n - 1 of a head of its own."""

    def __init__(self, head, class_ids):
        self.head = head
        self.class_ids = tf.constant(class_ids, tf.int32)
        self.num_classes = len(class_ids)
        self.effective_dim, self.query_dim = head.effective_dim, head.query_dim
        self.effective_query = head.effective_query

    def class_vectors(self, start, stop):
        return vector_of_each(self.head, self.class_ids[start:stop])

    def class_vectors_of(self, class_ids):
        return vector_of_each(self.head, tf.gather(self.class_ids, class_ids))


def subsample(head, num_rows, seed):
    """Sorted random class ids and their vectors, at most num_rows of them."""
    generator = np.random.default_rng(seed)
    num_rows = min(num_rows, head.num_classes)
    ids = np.sort(generator.choice(head.num_classes, num_rows, replace=False))
    parts = []
    for start, vectors in blocks(head):
        inside = ids[np.searchsorted(ids, start) : np.searchsorted(ids, start + len(vectors))]
        parts.append(vectors[inside - start])
    return ids, np.concatenate(parts)
