"""Callbacks: when something happens during training."""

from tfxc.callbacks.sampler_refresh import SamplerRefresh
from tfxc.callbacks.sparse_evolution import SparseEvolution

__all__ = ["SamplerRefresh", "SparseEvolution"]
