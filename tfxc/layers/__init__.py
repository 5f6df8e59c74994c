"""Heads: how a class is scored."""

from tfxc.layers.dense_head import DenseHead
from tfxc.layers.head import Head
from tfxc.layers.uniform_sparse_head import UniformSparseHead

__all__ = ["DenseHead", "Head", "UniformSparseHead"]
