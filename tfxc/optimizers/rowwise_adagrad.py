"""Adagrad with one accumulator a row."""

import tensorflow as tf

from tfxc._keras import register
from tfxc._keras.layers import config_of
from tfxc.arguments import number_in
from tfxc.ops.row_updates import rowwise_adagrad_update
from tfxc.optimizers.row_sparse import RowSparseOptimizer


@register
class RowwiseAdagrad(RowSparseOptimizer):
    """Adagrad whose slot is one number a row: 1/D of the slots of Adagrad, 1/(2D) of Adam's.

    With g the gradient of a row, summed over its occurrences in the batch:

    ``a = a + mean(g^2)`` (over the row's entries), ``x = x - learning_rate * g / (sqrt(a) + epsilon)``.

    A row without a gradient neither moves nor changes its accumulator, as in plain Adagrad. Frequent classes
    get smaller steps as they accumulate gradients, rare classes keep their step size. A dense gradient
    follows the same rule on all rows; a vector (a bias) has rows of one entry.

    Args:
        learning_rate, name, **options: see ``LazyAdam``.
        initial_accumulator_value: Initial value of every accumulator, 0 or more. At 0 the first step of a row
            has a root mean square of ``learning_rate``, whatever the scale of the loss.
        epsilon: Above 0, added to the root of the accumulator.

    Raises:
        ValueError: as ``LazyAdam``.

    >>> table = tf.Variable(tf.zeros([2, 2]))
    >>> gradient = tf.IndexedSlices(tf.constant([[3.0, 4.0]]), tf.constant([1]))
    >>> _ = RowwiseAdagrad(1.0).apply_gradients([(gradient, table)])
    >>> print(table.numpy().round(3))
    [[ 0.     0.   ]
     [-0.849 -1.131]]

    Reference: Duchi, Hazan, Singer, "Adaptive Subgradient Methods for Online Learning and Stochastic
    Optimization", 2011; Mudigere et al., "Software-Hardware Co-design", 2022 (row-wise).
    """

    def __init__(
        self,
        learning_rate=0.01,
        initial_accumulator_value: float = 0.0,
        epsilon: float = 1e-8,
        name: str | None = None,
        **options,
    ) -> None:
        super().__init__(learning_rate, name, **options)
        start = number_in(initial_accumulator_value, "initial_accumulator_value", "[0, inf)")
        self.initial_accumulator_value = self._initial_slot_value = start
        self.epsilon = number_in(epsilon, "epsilon", "(0, inf)")

    _slot_shapes = {"accumulator": lambda shape: shape[:1]}

    def _sparse_step(self, gradient, variable, slots, learning_rate, seed):
        rowwise_adagrad_update(variable, *slots, gradient, learning_rate, self.epsilon, seed)

    def _dense_step(self, gradient, variable, slots, learning_rate):
        (accumulator,) = slots
        trailing = range(1, gradient.shape.rank)
        accumulator.assign_add(tf.reduce_mean(tf.square(gradient), axis=list(trailing)))
        root = tf.sqrt(accumulator)[(..., *(tf.newaxis for _ in trailing))]
        variable.assign_sub(tf.cast(learning_rate, variable.dtype) * gradient / (root + self.epsilon))

    def get_config(self):
        return {**super().get_config(), **config_of(self, "initial_accumulator_value", "epsilon")}
