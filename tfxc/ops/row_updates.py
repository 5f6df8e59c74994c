"""Optimizer rules applied to the touched rows of a table only.

Each function sums the gradients of a row that occurs more than once, then updates
that row of the table and of its slots, in place. Nothing of the table's size is read,
written or allocated: the cost is that of the gradient, whatever the number of rows.
The compiled op does it in one pass; the TensorFlow path beside it gives the same
numbers to float32 rounding.

A table of bfloat16 is updated in float32 and rounded stochastically, see
:func:`~tfxc.ops.stochastic_rounding.stochastic_round`; its slots are float32.
"""

import functools
from typing import NamedTuple

import tensorflow as tf

from tfxc.ops import library
from tfxc.ops.score_gradient import score_gradient_behind
from tfxc.ops.stochastic_rounding import stochastic_round
from tfxc.ops.table_rows import rows_dtype
from tfxc.require import in_range

NO_SEED = (0, 0)


class AdamHyper(NamedTuple):
    """Scalars of one Adam step.

    Args:
        learning_rate: The step size with the bias correction already in,
            ``learning_rate * sqrt(1 - beta_2^t) / (1 - beta_1^t)``.
        beta_1: Decay of the first moment, in [0, 1).
        beta_2: Decay of the second moment, in [0, 1).
        epsilon: Added to the root of the second moment; above 0.
    """

    learning_rate: float
    beta_1: float
    beta_2: float
    epsilon: float


def sum_duplicate_rows(gradient):
    """Merges the gradients of rows that occur more than once.

    Args:
        gradient: ``tf.IndexedSlices`` with values ``[N, ...]`` and indices ``[N]``.

    Returns:
        ``tf.IndexedSlices`` with the summed values of each distinct index, in order of
        first occurrence.

    >>> gradient = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]]), tf.constant([5, 3, 5]))
    >>> merged = sum_duplicate_rows(gradient)
    >>> merged.indices.numpy().tolist(), merged.values.numpy().tolist()
    ([5, 3], [[5.0], [2.0]])
    """
    row_ids, group = tf.unique(gradient.indices)
    sums = tf.math.unsorted_segment_sum(gradient.values, group, tf.size(row_ids))
    return tf.IndexedSlices(sums, row_ids, gradient.dense_shape)


def lazy_adam_update(variable, momentum, velocity, gradient, hyper, seed=NO_SEED):
    r"""One Adam step on the touched rows; all other rows keep table and moments.

    With g the sum of a row's gradients: ``m += (1 - beta_1)(g - m)``,
    ``v += (1 - beta_2)(g^2 - v)``, ``x -= learning_rate * m / (sqrt(v) + epsilon)``.

    Args:
        variable: ``tf.Variable`` ``[rows, ...]``, the table x.
        momentum: ``tf.Variable`` of the same shape, the first moment m.
        velocity: ``tf.Variable`` of the same shape, the second moment v.
        gradient: ``tf.IndexedSlices``, values ``[N, ...]``, int32 or int64 indices ``[N]`` in [0, rows).
        hyper: :class:`AdamHyper`.
        seed: int64 ``[2]``, a key and a counter of steps, for a table of bfloat16.

    Raises:
        ValueError: The gradient's shape does not fit the table's.
        tf.errors.InvalidArgumentError: An index outside [0, rows); nothing was changed.

    >>> table, m, v = (tf.Variable(tf.zeros([3, 2])) for _ in range(3))
    >>> gradient = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([1, 1]))
    >>> lazy_adam_update(table, m, v, gradient, AdamHyper(0.1, 0.0, 0.0, 1e-7))
    >>> print(table.numpy().round(4))
    [[ 0.   0. ]
     [-0.1 -0.1]
     [ 0.   0. ]]
    """
    _check_shapes(variable, gradient)
    hyper = AdamHyper(*map(_double, hyper))
    if library.takes_table(variable):
        _update_by("lazy_adam_update", gradient)(
            variable=variable.handle,
            momentum=momentum.handle,
            velocity=velocity.handle,
            seed=seed,
            **hyper._asdict(),
        )
        return
    rows, dtype = _distinct_rows(variable, gradient), rows_dtype(variable)
    # 1 - beta in double first: in float16 it would be 0.
    decay_1, decay_2 = (tf.cast(1 - beta, dtype) for beta in (hyper.beta_1, hyper.beta_2))
    learning_rate, epsilon = (tf.cast(x, dtype) for x in (hyper.learning_rate, hyper.epsilon))
    m, v = tf.gather(momentum, rows.indices), tf.gather(velocity, rows.indices)
    m += decay_1 * (rows.values - m)
    v += decay_2 * (tf.square(rows.values) - v)
    _scatter(tf.raw_ops.ResourceScatterUpdate, momentum, rows.indices, m)
    _scatter(tf.raw_ops.ResourceScatterUpdate, velocity, rows.indices, v)
    step = learning_rate * m / (tf.sqrt(v) + epsilon)
    _subtract(variable, rows.indices, step, seed)


def row_sgd_update(variable, gradient, learning_rate, seed=NO_SEED):
    """One step of gradient descent on the touched rows: ``x -= learning_rate * g``.

    Args:
        variable: ``tf.Variable`` ``[rows, ...]``, the table x.
        gradient: ``tf.IndexedSlices``, values ``[N, ...]``, int32 or int64 indices ``[N]`` in [0, rows).
        learning_rate: The step size, a scalar.
        seed: int64 ``[2]``, a key and a counter of steps, for a table of bfloat16.

    Raises:
        ValueError: The gradient's shape does not fit the table's.
        tf.errors.InvalidArgumentError: An index outside [0, rows); nothing was changed.

    >>> table = tf.Variable(tf.zeros([3, 2]))
    >>> row_sgd_update(table, tf.IndexedSlices(tf.ones([2, 2]), tf.constant([1, 1])), 0.5)
    >>> table.numpy().tolist()
    [[0.0, 0.0], [-1.0, -1.0], [0.0, 0.0]]
    """
    _check_shapes(variable, gradient)
    learning_rate = _double(learning_rate)
    if library.takes_table(variable):
        _update_by("row_sgd_update", gradient)(
            variable=variable.handle,
            seed=seed,
            learning_rate=learning_rate,
        )
        return
    rows = _distinct_rows(variable, gradient)
    step = tf.cast(learning_rate, rows_dtype(variable)) * rows.values
    _subtract(variable, rows.indices, step, seed)


def rowwise_adagrad_update(variable, accumulator, gradient, learning_rate, epsilon, seed=NO_SEED):
    """One Adagrad step on the touched rows, with one accumulator a row.

    With g the sum of a row's gradients: ``a += mean(g^2)``, ``x -= learning_rate * g / (sqrt(a) + epsilon)``.

    Args:
        variable: ``tf.Variable`` ``[rows, ...]``, the table x.
        accumulator: ``tf.Variable`` ``[rows]``, the sums a of mean squared gradients.
        gradient: ``tf.IndexedSlices``, values ``[N, ...]``, int32 or int64 indices ``[N]`` in [0, rows).
        learning_rate: The step size, a scalar.
        epsilon: Added to the root of the accumulator; above 0.
        seed: int64 ``[2]``, a key and a counter of steps, for a table of bfloat16.

    Raises:
        ValueError: The gradient's shape does not fit the table's.
        tf.errors.InvalidArgumentError: An index outside [0, rows); nothing was changed.

    >>> table, accumulator = tf.Variable(tf.zeros([2, 2])), tf.Variable(tf.zeros([2]))
    >>> gradient = tf.IndexedSlices(tf.constant([[3.0, 4.0]]), tf.constant([1]))
    >>> rowwise_adagrad_update(table, accumulator, gradient, 1.0, 1e-8)
    >>> print(accumulator.numpy())
    [ 0.  12.5]
    >>> print(table.numpy().round(3))
    [[ 0.     0.   ]
     [-0.849 -1.131]]
    """
    _check_shapes(variable, gradient)
    learning_rate, epsilon = _double(learning_rate), _double(epsilon)
    if library.takes_table(variable):
        _update_by("rowwise_adagrad_update", gradient)(
            variable=variable.handle,
            accumulator=accumulator.handle,
            seed=seed,
            learning_rate=learning_rate,
            epsilon=epsilon,
        )
        return
    rows = _distinct_rows(variable, gradient)
    learning_rate, epsilon = (tf.cast(x, rows_dtype(variable)) for x in (learning_rate, epsilon))
    trailing = range(1, variable.shape.rank)
    a = tf.gather(accumulator, rows.indices) + tf.reduce_mean(tf.square(rows.values), axis=list(trailing))
    rate = (learning_rate / (tf.sqrt(a) + epsilon))[(..., *(tf.newaxis for _ in trailing))]
    _scatter(tf.raw_ops.ResourceScatterUpdate, accumulator, rows.indices, a)
    _subtract(variable, rows.indices, rate * rows.values, seed)


def _double(scalar):
    # tf.cast would first round a Python number to float32.
    return tf.cast(scalar, tf.float64) if tf.is_tensor(scalar) else tf.constant(scalar, tf.float64)


def _check_shapes(variable, gradient):
    row_ids, values = gradient.indices.shape, gradient.values.shape
    fits = row_ids.rank in (None, 1) and values.is_compatible_with(row_ids.concatenate(variable.shape[1:]))
    if not variable.shape.rank or not fits:
        raise ValueError(
            f"A sparse gradient with values {values} and indices {row_ids} does not fit a table of shape "
            f"{variable.shape}: expected indices [N] and values [N] with the table's trailing dimensions."
        )


def _update_by(name, gradient):
    """The compiled update that takes the gradient in its cheapest form, that form filled in."""
    ops, from_scores = library.load(), score_gradient_behind(gradient)
    if from_scores is None:
        update = getattr(ops, f"tfxc_{name}")
        return functools.partial(update, values=gradient.values, row_ids=gradient.indices)
    return functools.partial(getattr(ops, f"tfxc_{name}_from_scores"), **from_scores._asdict())


def _distinct_rows(variable, gradient):
    """The gradient with duplicate rows summed, its indices checked before anything is written."""
    with tf.control_dependencies(in_range(gradient.indices, 0, variable.shape[0], "row id")):
        checked = tf.IndexedSlices(gradient.values, tf.identity(gradient.indices))
    return checked if _are_distinct(gradient.indices) else sum_duplicate_rows(checked)


def _are_distinct(row_ids):
    """Whether a graph shows that no row occurs twice: clipping has summed its rows.

    XLA pads what ``tf.unique`` gives to a fixed size, and a second ``tf.unique`` would take the padding for
    one row more, whose slots it would write twice.
    """
    op = getattr(row_ids, "op", None)  # eager tensors have none
    return op is not None and op.type == "Unique" and row_ids is op.outputs[0]


def _subtract(variable, row_ids, step, seed):
    if variable.dtype != tf.bfloat16:
        _scatter(tf.raw_ops.ResourceScatterSub, variable, row_ids, step)
        return
    rows = tf.cast(tf.gather(variable, row_ids), tf.float32) - step
    _scatter(tf.raw_ops.ResourceScatterUpdate, variable, row_ids, stochastic_round(rows, row_ids, seed))


def _scatter(op, variable, row_ids, values):
    op(resource=variable.handle, indices=row_ids, updates=values)
