"""Encoders of item sequences, which return a query for each position."""

from tfxc.encoders.esasrec import esasrec
from tfxc.encoders.gru4rec import gru4rec
from tfxc.encoders.sasrec import sasrec

__all__ = ["esasrec", "gru4rec", "sasrec"]
