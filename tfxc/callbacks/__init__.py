"""Callbacks: when something happens during training."""

from tfxc.callbacks.sampler_diagnostics import SamplerDiagnostics
from tfxc.callbacks.sampler_refresh import SamplerRefresh
from tfxc.callbacks.sparse_evolution import SparseEvolution
from tfxc.fit_callback import FitCallback
from tfxc.mining.hard_negative_mining import HardNegativeMining
from tfxc.resume.backup_and_restore import BackupAndRestore

__all__ = [
    "BackupAndRestore",
    "FitCallback",
    "HardNegativeMining",
    "SamplerDiagnostics",
    "SamplerRefresh",
    "SparseEvolution",
]
