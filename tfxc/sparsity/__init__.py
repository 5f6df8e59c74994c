"""Sparse topologies: pure functions on arrays of connections, and the grouping of classes that share them."""

from tfxc.sparsity.class_groups import group_classes
from tfxc.sparsity.topology import check_topology, group_norms, grow, random_topology, smallest

__all__ = ["check_topology", "group_classes", "group_norms", "grow", "random_topology", "smallest"]
