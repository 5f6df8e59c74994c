"""Callbacks: when something happens during training."""

from tfxc.callbacks.backup_and_restore import BackupAndRestore
from tfxc.callbacks.hard_negative_mining import HardNegativeMining
from tfxc.callbacks.sampler_diagnostics import SamplerDiagnostics
from tfxc.callbacks.sampler_refresh import SamplerRefresh
from tfxc.callbacks.sparse_evolution import SparseEvolution

__all__ = [
    "BackupAndRestore",
    "HardNegativeMining",
    "SamplerDiagnostics",
    "SamplerRefresh",
    "SparseEvolution",
]
