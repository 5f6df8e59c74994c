"""Losses: how scores become a gradient."""

from tfxc.losses.binary import BinaryCrossentropy
from tfxc.losses.classification_loss import ClassificationLoss
from tfxc.losses.gbce import GBCE
from tfxc.losses.softmax import SoftmaxCrossentropy
from tfxc.losses.softmax_at_k import SoftmaxAtK
from tfxc.losses.squared_hinge import SquaredHinge
from tfxc.scored import MASKED_LOGIT, Scored

__all__ = [
    "GBCE",
    "MASKED_LOGIT",
    "BinaryCrossentropy",
    "ClassificationLoss",
    "Scored",
    "SoftmaxAtK",
    "SoftmaxCrossentropy",
    "SquaredHinge",
]
