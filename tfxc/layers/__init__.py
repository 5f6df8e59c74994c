"""Heads: how a class is scored; and the input layer for bags of features."""

from tfxc.class_rows import ClassRows
from tfxc.layers.dense_head import DenseHead
from tfxc.layers.embedding_bag import EmbeddingBag
from tfxc.layers.encoded_head import EncodedHead
from tfxc.layers.head import BestClasses, Head
from tfxc.layers.mach_head import MACHHead
from tfxc.layers.mach_merge import merge_mach_heads
from tfxc.layers.mach_plan import MACHPlan, suggest_mach
from tfxc.layers.uniform_sparse_head import UniformSparseHead

__all__ = [
    "BestClasses",
    "ClassRows",
    "DenseHead",
    "EmbeddingBag",
    "EncodedHead",
    "Head",
    "MACHHead",
    "MACHPlan",
    "UniformSparseHead",
    "merge_mach_heads",
    "suggest_mach",
]
