"""The choice of scanned classes, which are scored for every query: those that answer most often."""

from typing import NamedTuple

import numpy as np

from tfxc.class_vectors import blocks, shared_by_queries


class Answers(NamedTuple):
    """Mean [E + 1] and covariance [E + 1, E + 1] of queries z and of the scores t of their last answers."""

    mean: np.ndarray
    covariance: np.ndarray

    @classmethod
    def of(cls, query, last_score):
        """The moments of effective queries [n, E] and the scores [n] of their k-th best classes."""
        both = np.concatenate([query, last_score[:, np.newaxis]], axis=1).astype(np.float64)
        return cls(both.mean(0), np.cov(both.T, bias=True))

    @classmethod
    def of_any(cls, head):
        """The moments of queries of uniform directions, where classes of longer vectors answer more often.

        Coordinates that all queries share, such as the 1 of a bias, keep their value; the score is a little
        above the best score by these coordinates alone.
        """
        shared = shared_by_queries(head).astype(np.float64)
        best = max((vectors @ shared).max() for _, vectors in blocks(head)) if shared.any() else 0.0
        return cls(np.append(shared, best + 1.0), np.diag(np.append(shared == 0, 0.0)))


def most_promising(head, answers, num_classes):
    """The classes that are most likely among the answers, the likeliest first: int32 [num_classes].

    A class of vector w is an answer where the margin ``z·w - t`` is above 0. If the margin is normal, the
    chance of that grows with the ratio of its mean to its standard deviation. Where frequencies are skewed, a
    few classes are far ahead.
    """
    variances, axes = np.linalg.eigh(answers.covariance)
    root = axes * np.sqrt(np.maximum(variances, 0))
    ratios = np.empty(head.num_classes)
    for start, vectors in blocks(head, title="Answers"):
        mean = vectors @ answers.mean[:-1] - answers.mean[-1]
        deviation = np.linalg.norm(vectors @ root[:-1] - root[-1], axis=1)
        ratios[start : start + len(mean)] = -mean / np.maximum(deviation, np.finfo(np.float32).tiny)
    return np.argsort(ratios, kind="stable")[:num_classes].astype(np.int32)
