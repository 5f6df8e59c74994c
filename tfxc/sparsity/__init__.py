"""Sparse topologies: pure functions on arrays of connections."""

from tfxc.sparsity.topology import check_topology, grow, random_topology, smallest

__all__ = ["check_topology", "grow", "random_topology", "smallest"]
