"""The exact best classes of some queries, and the share of them that an index finds."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfxc.class_vectors import blocks
from tfxc.ids import is_among, padded_ids, require_queries
from tfxc.progress import progress
from tfxc.scored import BestClasses
from tfxc.search.candidates import ranked_best

_EQUAL = 1e-6  # scores within this share of each other are equal: sums of float32 round so much
_RANKED_QUERIES = 256  # queries whose best are found at once
_SCORED_PAIRS = 1 << 18  # pairs of a query and a class that are scored at once


class Wanted(NamedTuple):
    """What an index should find for some queries."""

    head: object  # that the index is built from
    queries: tf.Tensor  # float [n, D], as the head takes them
    exclude: tf.Tensor | None
    best: BestClasses  # exact
    least: np.ndarray  # float32 [n, 1], the score from which on a class is as good as the k-th best

    @classmethod
    def of(cls, head, queries, k, exclude):
        """Raises ValueError for no query, for one that is not finite, or one that is left fewer than k."""
        queries = tf.convert_to_tensor(queries)
        require_queries(queries)
        if not len(queries) or not np.isfinite(queries.numpy().astype(np.float32)).all():
            raise ValueError(
                "Recall is measured over queries [n, D] that are finite, at least one, but got "
                f"{len(queries)}, or NaN or infinity among them."
            )
        best = _exact(head, queries, k, exclude)
        if (best.ids[:, -1].numpy() < 0).any():
            for _ in blocks(head):  # raises, with the name of the class, if training has diverged
                pass
            raise ValueError(
                f"Recall is that of k={k} classes, but exclude leaves a query fewer: ask for a smaller k, or "
                "leave such queries out."
            )
        least = _scores(head, queries, best.ids).min(1, keepdims=True)
        return cls(head, queries, exclude, best, least - _EQUAL * np.abs(least))

    def recall(self, index, num_probes):
        """The share of the best classes that an index finds with a number of probes."""
        k = self.best.ids.shape[1]
        found = ranked_best(self.head, index, self.queries, k, self.exclude, num_probes=num_probes).ids
        right = is_among(found, self.best.ids) | (_scores(self.head, self.queries, found) >= self.least)
        return float(np.mean(right))  # float32 would be a little below .95


def _exact(head, queries, k, exclude):
    """The exact ``BestClasses`` [n, k], some queries at a time."""
    exclude, parts = padded_ids(exclude, "exclude"), []
    if exclude is not None and len(exclude) not in (1, len(queries)):
        raise ValueError(
            f"exclude must have one row, or one for each of {len(queries)} queries, but has {len(exclude)}."
        )
    with progress(len(queries), "Exact best", "queries") as bar:
        for start in range(0, len(queries), _RANKED_QUERIES):
            some = slice(start, start + _RANKED_QUERIES)
            own = exclude if exclude is None or len(exclude) == 1 else exclude[some]
            parts.append(head.top_k(queries[some], k, own))
            bar.update(len(queries[some]))
    return BestClasses(*(tf.concat(own, 0) for own in zip(*parts, strict=True)))


def _scores(head, queries, ids):
    """Exact scores float32 [n, k] of class ids [n, k], -inf for id -1, a few queries at a time."""
    size = max(_SCORED_PAIRS // ids.shape[1], 1)
    parts = [slice(start, start + size) for start in range(0, len(queries), size)]
    scores = np.concatenate([head.score(queries[part], ids[part]).numpy() for part in parts])
    return np.where(ids.numpy() < 0, -np.inf, scores)
