"""Gradient descent that updates only the rows a step touched."""

import tensorflow as tf

from tfxc._keras import register
from tfxc.ops.row_updates import row_sgd_update
from tfxc.optimizers.row_sparse import RowSparseOptimizer


@register
class LazySGD(RowSparseOptimizer):
    """Gradient descent without momentum, and so without slots: the least memory a table can train in.

    ``x = x - learning_rate * g`` for the rows with a gradient g, the sum over the row's occurrences in the
    batch: exactly plain gradient descent, in one pass and in place.

    Args:
        learning_rate, name, **options: see ``LazyAdam``.

    Raises:
        ValueError: An option that would touch every row, or an unknown one; when built, see ``LazyAdam``.

    >>> table = tf.Variable(tf.zeros([3, 1]))
    >>> gradient = tf.IndexedSlices(tf.constant([[1.0], [2.0]]), tf.constant([2, 2]))
    >>> _ = LazySGD(0.5).apply_gradients([(gradient, table)])
    >>> table.numpy().tolist()
    [[0.0], [0.0], [-1.5]]

    Reference: Herbert Robbins, Sutton Monro, "A Stochastic Approximation Method", 1951.
    """

    def __init__(self, learning_rate=0.01, name: str | None = None, **options) -> None:
        super().__init__(learning_rate, name, **options)

    def _sparse_step(self, gradient, variable, slots, learning_rate, seed):
        row_sgd_update(variable, gradient, learning_rate, seed)

    def _dense_step(self, gradient, variable, slots, learning_rate):
        tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle, alpha=tf.cast(learning_rate, variable.dtype), delta=gradient
        )
