"""TF-IDF weights for bags of words."""

from dataclasses import replace

import numpy as np
import scipy.sparse

from tfxc.data.extreme_classification import LabeledPoints, require_points


def tfidf(train: LabeledPoints, *others: LabeledPoints) -> list[LabeledPoints]:
    """Weights features as ``value · (log((1 + N) / (1 + n_f)) + 1)`` and scales each point to length 1.

    ``n_f`` is the number of training points that have feature f. The other sets get the same weights.

    Raises:
        ValueError: if a set has another number of features than the training points.

    Example:
        >>> labels = scipy.sparse.csr_matrix((2, 1), dtype=bool)
        >>> points = LabeledPoints(scipy.sparse.csr_matrix(np.float32([[1, 1], [0, 3]])), labels)
        >>> print(tfidf(points)[0].features.toarray().round(2))
        [[0.81 0.58]
         [0.   1.  ]]

    Reference: Salton, Buckley, "Term-weighting approaches in automatic text retrieval", 1988.
    """
    for points in (train, *others):
        require_points(points)
    widths = [points.num_features for points in (train, *others)]
    if len(set(widths)) > 1:
        raise ValueError(f"All sets must have the same number of features, but have {widths}.")
    counts = np.bincount(train.features.indices[train.features.data != 0], minlength=train.num_features)
    weight = np.log((1 + len(train)) / (1 + counts)) + 1
    weighted = []
    for points in (train, *others):
        features = points.features @ scipy.sparse.diags(weight)
        length = np.sqrt(np.asarray(features.multiply(features).sum(1)).ravel())
        features = scipy.sparse.diags(1 / np.where(length > 0, length, 1)) @ features
        weighted.append(replace(points, features=scipy.sparse.csr_matrix(features, dtype=np.float32)))
    return weighted
