"""Extreme classification in Keras: models with 100 thousand to 10 million classes."""

from tfxc import (
    callbacks,
    cluster,
    data,
    encoders,
    layers,
    losses,
    metrics,
    optimizers,
    samplers,
    search,
    serving,
    sparsity,
)
from tfxc._autograph import leave_alone
from tfxc.catalogue import change_classes
from tfxc.model.classifier import ExtremeClassifier
from tfxc.model.memory import memory_report
from tfxc.model.step import head_loss
from tfxc.report import report

__version__ = "0.3.0"

leave_alone(__name__)
del leave_alone

__all__ = [
    "ExtremeClassifier",
    "callbacks",
    "change_classes",
    "cluster",
    "data",
    "encoders",
    "head_loss",
    "layers",
    "losses",
    "memory_report",
    "metrics",
    "optimizers",
    "report",
    "samplers",
    "search",
    "serving",
    "sparsity",
]
