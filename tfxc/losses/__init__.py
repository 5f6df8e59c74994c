"""Losses: how scores become a gradient."""

from tfxc.losses.binary import BinaryCrossentropy
from tfxc.losses.classification_loss import ClassificationLoss
from tfxc.losses.gbce import GBCE
from tfxc.losses.reductions import (
    LOGSUMEXP,
    LOGSUMEXP_OF_CANDIDATES,
    SOFTPLUS,
    SQUARED_HINGE,
    CandidateReduction,
    Reduction,
    sum_of,
    weighted_sum_of,
)
from tfxc.losses.softmax import SoftmaxCrossentropy
from tfxc.losses.softmax_at_k import SoftmaxAtK
from tfxc.losses.squared_hinge import SquaredHinge
from tfxc.scored import MASKED_LOGIT, Scored

__all__ = [
    "GBCE",
    "LOGSUMEXP",
    "LOGSUMEXP_OF_CANDIDATES",
    "MASKED_LOGIT",
    "SOFTPLUS",
    "SQUARED_HINGE",
    "BinaryCrossentropy",
    "CandidateReduction",
    "ClassificationLoss",
    "Reduction",
    "Scored",
    "SoftmaxAtK",
    "SoftmaxCrossentropy",
    "SquaredHinge",
    "sum_of",
    "weighted_sum_of",
]
