"""Extreme classification in Keras: models with 100 thousand to 10 million classes, on one machine."""

from tfxc import callbacks, data, hashing, layers, losses, metrics, optimizers, samplers, serving
from tfxc.classifier import ExtremeClassifier

__version__ = "0.1.0"

__all__ = [
    "ExtremeClassifier",
    "callbacks",
    "data",
    "hashing",
    "layers",
    "losses",
    "metrics",
    "optimizers",
    "samplers",
    "serving",
]
