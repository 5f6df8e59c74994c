"""Optimizers for large tables: the cost of a step is that of its gradient, not of the table."""

from tfxc.optimizers.lazy_adam import LazyAdam
from tfxc.optimizers.lazy_sgd import LazySGD
from tfxc.optimizers.multi_optimizer import MultiOptimizer
from tfxc.optimizers.rowwise_adagrad import RowwiseAdagrad

__all__ = ["LazyAdam", "LazySGD", "MultiOptimizer", "RowwiseAdagrad"]
