"""Heads: how a class is scored."""

from tfxc.layers.dense_head import DenseHead
from tfxc.layers.head import Head

__all__ = ["DenseHead", "Head"]
