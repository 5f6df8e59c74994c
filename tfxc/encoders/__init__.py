"""Encoders of item sequences, with a query for each position; and any encoder on large batches."""

from tfxc.encoders.grad_cache import GradCache
from tfxc.encoders.gru4rec import gru4rec
from tfxc.encoders.sasrec import esasrec, sasrec

__all__ = ["GradCache", "esasrec", "gru4rec", "sasrec"]
