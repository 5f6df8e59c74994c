"""Heads: how a class is scored; and the input layer for bags of features."""

from tfxc.layers.dense_head import DenseHead
from tfxc.layers.embedding_bag import EmbeddingBag
from tfxc.layers.head import Head
from tfxc.layers.uniform_sparse_head import UniformSparseHead

__all__ = ["DenseHead", "EmbeddingBag", "Head", "UniformSparseHead"]
