"""Adam that updates only the rows a step touched."""

import tensorflow as tf

from tfxc._keras import register
from tfxc._keras.layers import config_of
from tfxc.arguments import number_in
from tfxc.ops.row_updates import AdamHyper, lazy_adam_update
from tfxc.optimizers.row_sparse import RowSparseOptimizer


@register
class LazyAdam(RowSparseOptimizer):
    r"""Adam for large tables: a step costs what its gradient costs, not what the table costs.

    Use it for class heads and embeddings, whose gradients are sparse (``tf.IndexedSlices``). With g_t the
    gradient of a row, summed over its occurrences in the batch, and t the number of the step:

    ``m = beta_1 m + (1 - beta_1) g_t``, ``v = beta_2 v + (1 - beta_2) g_t^2``,
    ``x = x - learning_rate * sqrt(1 - beta_2^t) / (1 - beta_1^t) * m / (sqrt(v) + epsilon)``.

    **Skipped steps.** A row without a gradient does not move, and its moments decay only when it is touched
    again, where plain Adam would decay the moments and move the row by its momentum. The bias correction uses
    the global step count. To make up for the decay at the next gradient is worse (measured in
    docs/benchmarks/recommendation.md, "Moments of rows that rest"). A dense gradient takes TensorFlow's fused
    Adam, with the numbers of ``keras.optimizers.Adam``.

    **Weight decay** is decoupled, as in AdamW: a step first shrinks the rows that it touches, each once, and
    all of a weight with a dense gradient, ``x = x - learning_rate * weight_decay * x``. A row that a step
    skips is not shrunk, then or later. Biases decay too, as in Keras:
    ``exclude_from_weight_decay(var_names=["bias"])``, before the first step, leaves them out.

    **Gradient accumulation** (Keras 3). With ``gradient_accumulation_steps=n``, each n-th call makes one step
    by the mean of n gradients. The rows that any of them touched take part; clipping and decay act on the
    mean. As in Keras, ``iterations`` counts the steps, a schedule counts the calls, and a last group that is
    not full goes on in the next epoch. The sums cost the memory of float32 weights, and a byte a row.

    Args:
        learning_rate: Step size; float, schedule or (Keras 3) callable.
        beta_1: Decay of the first moment, in [0, 1).
        beta_2: Decay of the second moment, in [0, 1).
        epsilon: Above 0, added to the root of the second moment.
        name: Name of the optimizer.
        **options: ``weight_decay``, 0 or more, or None. ``seed``, an int, for the stochastic rounding of
            bfloat16 tables, whose slots are float32. At most one of ``clipnorm``, ``clipvalue``,
            ``global_clipnorm``, applied after duplicate rows are summed. ``gradient_accumulation_steps``,
            2 or more, or None.

    Raises:
        ValueError: A value outside its range, or an option that would touch every row (``use_ema``,
            ``amsgrad``, ``loss_scale_factor``, a constraint on a table); ``gradient_accumulation_steps``
            under tf-keras, or for several replicas; when built, for a weight of float16, for a scalar of
            bfloat16, and with ``clipnorm`` for a table that a strategy has cut by its rows.

    >>> table = tf.Variable(tf.zeros([4, 2]))
    >>> gradient = tf.IndexedSlices(tf.constant([[1.0, 0.0], [1.0, -5.0]]), tf.constant([2, 2]))
    >>> _ = LazyAdam(0.1).apply_gradients([(gradient, table)])
    >>> print(table.numpy().round(4))
    [[ 0.   0. ]
     [ 0.   0. ]
     [-0.1  0.1]
     [ 0.   0. ]]

    Reference: Kingma, Ba, "Adam: A Method for Stochastic Optimization", 2015; Loshchilov, Hutter, "Decoupled
    Weight Decay Regularization", 2019.
    """

    def __init__(
        self,
        learning_rate=1e-3,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        name: str | None = None,
        **options,
    ) -> None:
        super().__init__(learning_rate, name, **options)
        self.beta_1 = number_in(beta_1, "beta_1", "[0, 1)")
        self.beta_2 = number_in(beta_2, "beta_2", "[0, 1)")
        self.epsilon = number_in(epsilon, "epsilon", "(0, inf)")

    _slot_shapes = {"momentum": lambda shape: shape, "velocity": lambda shape: shape}

    def _sparse_step(self, gradient, variable, slots, learning_rate, seed):
        step = tf.cast(self.iterations + 1, tf.float64)
        beta_1, beta_2 = (tf.constant(beta, tf.float64) for beta in (self.beta_1, self.beta_2))
        correction = tf.sqrt(1 - beta_2**step) / (1 - beta_1**step)
        hyper = AdamHyper(tf.cast(learning_rate, tf.float64) * correction, beta_1, beta_2, self.epsilon)
        lazy_adam_update(variable, *slots, gradient, hyper, seed)

    def _dense_step(self, gradient, variable, slots, learning_rate):
        momentum, velocity = slots
        step = tf.cast(self.iterations + 1, variable.dtype)
        rates = learning_rate, self.beta_1, self.beta_2, self.epsilon
        rate, beta_1, beta_2, epsilon = (tf.cast(own, variable.dtype) for own in rates)
        handles = {"var": variable.handle, "m": momentum.handle, "v": velocity.handle}
        powers = {"beta1_power": beta_1**step, "beta2_power": beta_2**step}
        rates = {"lr": rate, "beta1": beta_1, "beta2": beta_2, "epsilon": epsilon}
        tf.raw_ops.ResourceApplyAdam(**handles, **powers, **rates, grad=gradient)

    def get_config(self):
        return {**super().get_config(), **config_of(self, "beta_1", "beta_2", "epsilon")}
