"""Extreme classification in Keras: models with 100 thousand to 10 million classes."""

from tensorflow.python.autograph.core import config as _autograph

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
from tfxc.catalogue import change_classes
from tfxc.model.classifier import ExtremeClassifier
from tfxc.model.memory import memory_report
from tfxc.model.step import head_loss
from tfxc.report import report

__version__ = "0.3.0"

# No function of the package needs AutoGraph: without it the first call of a graph is faster.
_autograph.CONVERSION_RULES = _autograph.DoNotConvert(__name__), *_autograph.CONVERSION_RULES

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
