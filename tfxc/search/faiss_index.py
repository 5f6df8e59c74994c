"""Search for the classes of highest inner product, by FAISS."""

import warnings

import faiss
import numpy as np
import tensorflow as tf

from tfxc.arguments import seed_or_drawn
from tfxc.class_vectors import blocks, effective_query_of, require_indexable, subsample
from tfxc.ids import require_queries

_EXACT_UP_TO = 20_000
_FLAT_CELLS_UP_TO = 4_000_000
_POINTS_PER_CELL = 64
_RECALL = 0.9
_MOST_PROBES = 64
_RECALL_OF_USERS = 0.95
_NUM_CHECKED = 100  # queries, and classes of each


def index_for(num_classes):
    """The FAISS factory string that suits a number of classes: exact, inverted lists, or HNSW over them."""
    if num_classes <= _EXACT_UP_TO:
        return "Flat"
    num_cells = 2 ** round(np.log2(2 * np.sqrt(num_classes)))
    return f"IVF{num_cells}{'' if num_classes <= _FLAT_CELLS_UP_TO else '_HNSW32'},Flat"


def empty_index(factory, dim):
    """An empty FAISS index of inner products of a width, not trained.

    Raises ValueError if FAISS does not know the factory string, or cannot use it with that width.
    """
    try:
        return faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"index={factory!r} is no factory string that FAISS knows for vectors of width {dim}, such as "
            f'"Flat", "IVF4096,Flat" or "HNSW32": {_reason(error)}'
        ) from error


def faiss_index(head, factory: str | None = None, seed: int = 0, queries=None) -> faiss.Index:
    """A FAISS index of all class vectors of a head: its ids are class ids, its inner products are logits.

    Search it with ``head.effective_query(query)``. The inner products of a ``UniformSparseHead`` only come
    near to its logits: search for more than k classes, and rank these by ``head.score``. The effort of a
    search (``nprobe``, ``efSearch``) doubles until it finds 95 % of the 100 best classes of some queries.

    Args:
        head: a built head with class vectors, e.g. ``DenseHead``; or a ``UniformSparseHead`` after training.
        factory: a string of FAISS's ``index_factory``, e.g. "Flat", "IVF4096,Flat" or "HNSW32"; by default
            one that suits the number of classes.
        seed: int, for the choice of class vectors that train the index, and of directions.
        queries: float [n, D], queries like those to come, as ``model.queries(x)`` gives them: a hundred will
            do. By default random directions, which take most effort.

    Returns:
        A trained and filled ``faiss.Index`` of inner products, set to that effort. A warning says so if no
        effort is enough.

    Raises:
        ValueError: There is no query, one is not finite, or they are of another width. The head is not built
            or has no class vectors, or one is not finite; FAISS does not know the string, or needs more class
            vectors to train it.

    Example:
        >>> head = tfxc.layers.DenseHead(1000)
        >>> head.build((None, 8))
        >>> index = faiss_index(head, "IVF16,Flat")
        >>> index.ntotal
        1000
        >>> scores, ids = index.search(head.effective_query(tf.ones([2, 8])).numpy(), 5)
        >>> ids.shape
        (2, 5)

    Reference: Douze et al., The Faiss Library, 2024.
    """
    require_indexable(head)
    if not isinstance(factory, str | None):
        raise ValueError(
            f"factory must be a string such as 'IVF4096,Flat', or None, but is of {type(factory).__name__}: "
            "give queries by name, faiss_index(head, queries=queries)."
        )
    seed, width = seed_or_drawn(seed) % 2**64, head.class_vectors(0, 1).shape[1]
    if queries is None:
        width = head.query_dim or width  # a head of a user's own need not tell the first
        queries = np.random.default_rng(seed).standard_normal((_NUM_CHECKED, width), np.float32)
    queries = tf.convert_to_tensor(queries[:_NUM_CHECKED])
    require_queries(queries)
    head.require_width(queries)
    if not len(queries):
        raise ValueError("There are no queries [n, D]: give some like those to come, or leave them out.")
    checked = effective_query_of(head, queries).numpy()
    k = min(_NUM_CHECKED, head.num_classes)
    factory = factory or index_for(head.num_classes)
    index, recall = build_index(head, factory, checked, k, seed, _RECALL_OF_USERS, all_cells=True)
    if recall < _RECALL_OF_USERS:
        warnings.warn(
            f"index={factory!r} finds {recall:.0%} of the {k} best classes of some queries, whatever the "
            f"effort: {index_for(head.num_classes)!r} would find {_RECALL_OF_USERS:.0%}.",
            stacklevel=2,
        )
    return index


def build_index(head, factory, checked, k, seed=0, recall=_RECALL, all_cells=False):
    """An index over all class vectors of a head, and the share that it finds of the k best of some queries.

    The effort of a search (nprobe, efSearch) doubles until it finds the wanted ``recall`` of the true classes
    of queries ``checked`` float32 [n, D], or reads 64 cells a query, unless it may read ``all_cells``: with
    more, a search of a million examples takes longer than several epochs.
    """
    index, exact = _trained(head, factory, seed), faiss.ResultHeap(len(checked), k, keep_max=True)
    for start, vectors in blocks(head):
        index.add(vectors)
        scores, ids = faiss.knn(checked, vectors, min(k, len(vectors)), faiss.METRIC_INNER_PRODUCT)
        exact.add_result(scores, ids + start)
    exact.finalize()
    return index, _raise_effort(index, checked, exact.I, recall, all_cells)


def search(index, queries, k):
    """The k best classes int32 [n, k] of finite queries float32 [n, D]; -1 where fewer are found."""
    if not np.isfinite(queries).all():
        raise ValueError("A query is not finite: training has diverged. Lower the learning rate.")
    return index.search(np.ascontiguousarray(queries), k)[1].astype(np.int32)


def _trained(head, factory, seed):
    dim = head.class_vectors(0, 1).shape[1]
    index = empty_index(factory, dim)
    if not index.is_trained:
        inverted = faiss.try_extract_index_ivf(index)
        num_points = _POINTS_PER_CELL * max(inverted.nlist if inverted else 0, 1024)
        vectors = subsample(head, num_points, seed)[1]
        try:
            index.train(vectors)
        except RuntimeError as error:
            raise ValueError(
                f"index={factory!r} cannot be trained on {len(vectors)} class vectors of width {dim}; "
                f"{index_for(head.num_classes)!r} would suit them: {_reason(error)}"
            ) from error
    return index


def _reason(error):
    """The message of a FAISS error, without its place in the code of FAISS."""
    return str(error).splitlines()[0].rsplit(": ", 1)[-1]


def _raise_effort(index, queries, wanted, enough, all_cells):
    """Sets the effort of a search; returns the recall of the wanted ids [n, k]."""
    inverted = faiss.try_extract_index_ivf(index)
    if inverted is not None:
        most = inverted.nlist if all_cells else min(inverted.nlist // 4, _MOST_PROBES)
        name, efforts = "nprobe", _doublings(4, max(most, 4))
    elif hasattr(faiss.downcast_index(index), "hnsw"):
        name, efforts = "efSearch", _doublings(64, 1024)
    else:
        name, efforts = None, [0]
    for effort in efforts:
        if name is not None:
            faiss.ParameterSpace().set_index_parameter(index, name, effort)
        found = search(index, queries, wanted.shape[1])
        recall = share_found(wanted, found)
        if recall >= enough:
            break
    return recall


def share_found(wanted, found):
    """The mean share of the wanted ids [n, k] of each row among the found ones [n, k]."""
    return float(np.mean([np.isin(row, own).mean() for row, own in zip(wanted, found, strict=True)]))


def _doublings(first, last):
    """Each twice the one before, but for the last."""
    return sorted({last, *(first << i for i in range((last // first).bit_length()))})
