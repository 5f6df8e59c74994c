"""Groups of classes that share their inputs: classes that are labels of the same examples."""

import numpy as np
import scipy.sparse
import tensorflow as tf

from tfxc.arguments import integers, positive_int
from tfxc.labels import pad_labels


def group_classes(labels, num_classes: int, group_size: int, max_labels: int = 100) -> np.ndarray:
    """Renumbers the classes so that classes which are labels of the same examples are neighbours.

    A group starts with the most frequent class that is left. Then it takes, until it is full, the class that
    most often shares an example with its members, relative to the frequency of the class; where no class
    shares one, the most frequent class that is left.

    Args:
        labels: int [N, P] class ids in [0, L), padded with -1, ragged, or sparse with ids as values, as the
            losses take them; or a SciPy sparse matrix [N, L], as in ``tfxc.data.LabeledPoints``.
        num_classes: L.
        group_size: G, at least 1.
        max_labels: examples with more labels are ignored: they tell little about any two classes, and cost
            the square of their number of labels.

    Returns:
        int32 [L], the class at each position, each class once. Train on ``np.argsort(order)[labels]``,
        padding aside; class i of the model then is class ``order[i]``.

    Raises:
        ValueError: Labels have another rank or are outside [-1, L), or ``group_size`` is below 1.

    Example:
        >>> labels = np.array([[0, 2], [2, 0], [1, 3], [3, -1]])
        >>> group_classes(labels, num_classes=4, group_size=2).tolist()
        [0, 2, 3, 1]

    Reference:
        HASTE, arXiv 2606.01117, 2026, for classes that share their inputs.
    """
    group_size = positive_int(group_size, "group_size")
    examples = _examples(labels, num_classes)
    frequency = np.bincount(examples.indices, minlength=num_classes)
    examples = examples[np.diff(examples.indptr) <= max_labels]
    together = (examples.T @ examples).tocsr()
    together.setdiag(0)
    together.eliminate_zeros()
    by_frequency = iter(np.argsort(-frequency, kind="stable").tolist())
    is_free = np.ones(num_classes, bool)
    order = np.empty(num_classes, np.int32)
    beside: dict[int, float] = {}
    for place in range(num_classes):
        if place % group_size == 0:
            beside = {}
        if beside:
            best = max(beside, key=lambda own: (beside[own], -own))
            del beside[best]
        else:
            best = next(own for own in by_frequency if is_free[own])
        order[place] = best
        is_free[best] = False
        row = slice(together.indptr[best], together.indptr[best + 1])
        neighbours = together.indices[row]
        kept = is_free[neighbours]
        shares = together.data[row][kept] / frequency[neighbours[kept]]
        for other, share in zip(neighbours[kept].tolist(), shares.tolist(), strict=True):
            beside[other] = beside.get(other, 0.0) + share
    return order


def _examples(labels, num_classes):
    """The labels of each example as a sparse matrix of ones [N, L]."""
    if scipy.sparse.issparse(labels):
        if labels.shape[1] != num_classes:
            raise ValueError(f"labels must be [N, {num_classes}], but their shape is {labels.shape}.")
        examples = scipy.sparse.csr_matrix(labels, dtype=np.float32, copy=True)
    else:
        if isinstance(labels, (tf.RaggedTensor, tf.SparseTensor)):
            labels = pad_labels(labels)
        labels = integers(labels, "labels", num_classes, least=-1)
        if labels.ndim != 2:
            raise ValueError(f"labels must be [N, P], but their shape is {labels.shape}.")
        rows, slots = np.nonzero(labels >= 0)
        ones = np.ones(len(rows), np.float32)
        examples = scipy.sparse.csr_matrix((ones, (rows, labels[rows, slots])), (len(labels), num_classes))
    examples.sum_duplicates()
    examples.eliminate_zeros()
    examples.data[:] = 1.0  # also for a label that occurs twice
    return examples
