"""Optimizer rules applied to the touched rows of a table only.

Each function sums the gradients of a row that occurs more than once, then updates that row of the table and
of its slots, in place. Nothing of the table's size is read, written or allocated: the cost is that of the
gradient, whatever the number of rows. The compiled op does it in one pass; the TensorFlow path has the same
numbers to float32 rounding.

All updates take

* ``variable``: ``tf.Variable`` ``[rows, ...]``, the table x;
* the slots, ``tf.Variable`` each;
* ``gradient``: ``tf.IndexedSlices``, values ``[N, ...]``, int32 or int64 indices ``[N]`` in [0, rows);
* ``seed``: int64 ``[2]``, a key and a counter of steps, for a table of bfloat16. Such a table is updated in
  float32 and rounded stochastically, see :func:`~tfxc.ops.stochastic_rounding.stochastic_round`; its slots
  are float32.

They raise ``ValueError`` where the gradient's shape does not fit the table's, and
``tf.errors.InvalidArgumentError`` for an index outside [0, rows), before anything has changed.
"""

import functools
from typing import NamedTuple

import tensorflow as tf

from tfxc.ops import library
from tfxc.ops.stochastic_rounding import stochastic_round
from tfxc.ops.table_rows import read_rows
from tfxc.require import in_range

NO_SEED = (0, 0)
# For each op that makes a table's gradient from scores: the scores' gradients, the slots, and its rows.
_GRADIENTS_OF_SCORES = {
    "Tfxc>CandidateScoresGrad": lambda op: (op.inputs[3], op.outputs[3], *op.outputs[1:3]),
    "Tfxc>CandidateLogSumExpGrad": lambda op: (op.outputs[1], op.inputs[6], *op.outputs[3:5]),
}


class AdamHyper(NamedTuple):
    """Scalars of one Adam step.

    The step size has the bias correction in it, ``learning_rate * sqrt(1 - beta_2^t) / (1 - beta_1^t)``.
    """

    learning_rate: float
    beta_1: float  # decay of the first moment, in [0, 1)
    beta_2: float  # decay of the second moment, in [0, 1)
    epsilon: float  # added to the root of the second moment; above 0


class ScoreGradient(NamedTuple):
    """The factors of a table's gradient: that of row r is the sum of ``score_gradients[n, s] * query[n]``."""

    query: tf.Tensor  # [N, D]
    score_gradients: tf.Tensor  # [N, S], the gradient of each score
    slots: tf.Tensor  # uint64, r << 32 | n * S + s of each slot (n, s) that scores row r, ascending


def sum_duplicate_rows(gradient):
    """Sums the values [N, ...] of equal rows in ``tf.IndexedSlices``, in order of first occurrence."""
    if _are_distinct(gradient.indices):
        return gradient
    row_ids, group = tf.unique(gradient.indices)
    sums = tf.math.unsorted_segment_sum(gradient.values, group, tf.size(row_ids))
    return tf.IndexedSlices(sums, row_ids, gradient.dense_shape)


def lazy_adam_update(variable, momentum, velocity, gradient, hyper, seed=NO_SEED):
    r"""One Adam step on the touched rows; all other rows keep table and moments.

    With g the sum of a row's gradients, and moments m and v of the table's shape, by an ``AdamHyper``:
    ``m += (1 - beta_1)(g - m)``, ``v += (1 - beta_2)(g^2 - v)``,
    ``x -= learning_rate * m / (sqrt(v) + epsilon)``.
    """
    slots = {"momentum": momentum, "velocity": velocity}
    _update("lazy_adam_update", _adam_rule, variable, slots, gradient, hyper._asdict(), seed)


def _adam_rule(g, m, v, learning_rate, beta_1, beta_2, epsilon):
    # 1 - beta in double first: in float16 it would be 0.
    scalars = (1 - beta_1, 1 - beta_2, learning_rate, epsilon)
    decay_1, decay_2, learning_rate, epsilon = (tf.cast(scalar, g.dtype) for scalar in scalars)
    m += decay_1 * (g - m)
    v += decay_2 * (tf.square(g) - v)
    return learning_rate * m / (tf.sqrt(v) + epsilon), m, v


def row_sgd_update(variable, gradient, learning_rate, seed=NO_SEED):
    """One step of gradient descent on the touched rows: ``x -= learning_rate * g``; see the module."""

    def rule(g, learning_rate):
        return (tf.cast(learning_rate, g.dtype) * g,)

    _update("row_sgd_update", rule, variable, {}, gradient, {"learning_rate": learning_rate}, seed)


def shrink_rows(variable, gradient, share, seed=NO_SEED):
    """Shrinks the rows of a gradient, each once however often it occurs: ``x -= share * x``; see the module.

    It comes before an update with the same seed: the random numbers of the two are others.
    """
    row_ids = touched_rows(variable, gradient)
    rows = tf.IndexedSlices(read_rows(variable, row_ids), row_ids)
    row_sgd_update(variable, rows, share, tf.bitwise.invert(tf.cast(seed, tf.int64)))


def touched_rows(variable, gradient):
    """The rows of a table that its gradient touches: ids, each once."""
    from_scores = score_gradient_behind(gradient) if library.takes_table(variable) else None
    if from_scores is not None:  # to ask for the indices would make the gradient's rows
        row_ids = tf.cast(tf.bitwise.right_shift(from_scores.slots, 32), tf.int64)
        is_first = tf.concat([tf.ones_like(row_ids[:1], tf.bool), row_ids[1:] != row_ids[:-1]], 0)
        return tf.boolean_mask(row_ids, is_first)
    return gradient.indices if _are_distinct(gradient.indices) else tf.unique(gradient.indices)[0]


def rowwise_adagrad_update(variable, accumulator, gradient, learning_rate, epsilon, seed=NO_SEED):
    """One Adagrad step on the touched rows, with one accumulator a row.

    With g the sum of a row's gradients, and the accumulator a ``[rows]``: ``a += mean(g^2)``,
    ``x -= learning_rate * g / (sqrt(a) + epsilon)``.
    """
    slots, hyper = {"accumulator": accumulator}, {"learning_rate": learning_rate, "epsilon": epsilon}
    _update("rowwise_adagrad_update", _adagrad_rule, variable, slots, gradient, hyper, seed)


def _adagrad_rule(g, a, learning_rate, epsilon):
    learning_rate, epsilon = tf.cast(learning_rate, g.dtype), tf.cast(epsilon, g.dtype)
    trailing = range(1, g.shape.rank)
    a += tf.reduce_mean(tf.square(g), axis=list(trailing))
    rate = (learning_rate / (tf.sqrt(a) + epsilon))[(..., *(tf.newaxis for _ in trailing))]
    return rate * g, a


def _update(op, rule, variable, slots, gradient, hyper, seed):
    """Updates the rows of a gradient, by the compiled op of this name or by its rule in TensorFlow ops.

    The rule maps the distinct rows' gradients, their rows of the slots, and the scalars by name, to the step
    to subtract from the rows, and the new rows of the slots. Slots and ``hyper`` are dicts by name.
    """
    _check_shapes(variable, gradient)
    # tf.cast would first round a Python number to float32.
    hyper = {
        name: tf.cast(own, tf.float64) if tf.is_tensor(own) else tf.constant(own, tf.float64)
        for name, own in hyper.items()
    }
    if library.takes_table(variable):
        handles = {name: slot.handle for name, slot in slots.items()}
        _compiled(op, gradient)(variable=variable.handle, seed=seed, **handles, **hyper)
        return
    rows = _distinct_rows(variable, gradient)
    step, *changed = rule(rows.values, *(tf.gather(slot, rows.indices) for slot in slots.values()), **hyper)
    for slot, values in zip(slots.values(), changed, strict=True):
        _scatter(tf.raw_ops.ResourceScatterUpdate, slot, rows.indices, values)
    if variable.dtype != tf.bfloat16:
        _scatter(tf.raw_ops.ResourceScatterSub, variable, rows.indices, step)
        return
    values = tf.cast(tf.gather(variable, rows.indices), tf.float32) - step
    values = stochastic_round(values, rows.indices, seed)
    _scatter(tf.raw_ops.ResourceScatterUpdate, variable, rows.indices, values)


def _check_shapes(variable, gradient):
    row_ids, values = (tf.TensorShape(part.shape) for part in (gradient.indices, gradient.values))
    fits = row_ids.rank in (None, 1) and values.is_compatible_with(row_ids.concatenate(variable.shape[1:]))
    if not variable.shape.rank or not fits:
        raise ValueError(
            f"A sparse gradient with values {values} and indices {row_ids} does not fit a table of shape "
            f"{variable.shape}: expected indices [N] and values [N] with the table's trailing dimensions."
        )


def _compiled(name, gradient):
    """The compiled update that takes the gradient in its cheapest form, with the gradient filled in."""
    ops, from_scores = library.load(), score_gradient_behind(gradient)
    if from_scores is None:
        update = getattr(ops, f"tfxc_{name}")
        return functools.partial(update, values=gradient.values, row_ids=gradient.indices)
    return functools.partial(getattr(ops, f"tfxc_{name}_from_scores"), **from_scores._asdict())


def score_gradient_behind(gradient):
    """The ``ScoreGradient`` of ``tf.IndexedSlices`` that come straight from scores, in a graph; else None.

    An optimizer that takes the factors instead of the rows saves a write and a read of a row for each touched
    class: the graph then does not make the rows. It is None in eager mode, for normalised scores, and where
    the gradient was changed or summed with another one.
    """
    op = getattr(gradient.values, "op", None)  # eager tensors have none
    if op is None or op.type not in _GRADIENTS_OF_SCORES or op.get_attr("normalize"):
        return None
    score_gradients, slots, row_gradients, rows = _GRADIENTS_OF_SCORES[op.type](op)
    if gradient.values is not row_gradients or gradient.indices is not rows:
        return None
    return ScoreGradient(op.inputs[1], score_gradients, slots)


def _distinct_rows(variable, gradient):
    """The gradient with duplicate rows summed, its indices checked before anything is written."""
    with tf.control_dependencies(in_range(gradient.indices, 0, variable.shape[0], "row id")):
        checked = tf.IndexedSlices(gradient.values, tf.identity(gradient.indices))
    return checked if _are_distinct(gradient.indices) else sum_duplicate_rows(checked)


def _are_distinct(row_ids):
    """Whether the graph shows that no row occurs twice: all rows, flagged ones, or summed by clipping.

    XLA pads the result of ``tf.unique`` and ``tf.where`` to a fixed size. A second ``tf.unique`` would take
    the padding for one more row, and write that row's slots twice.
    """
    op = getattr(row_ids, "op", None)  # eager tensors have none
    if op is None or row_ids is not op.outputs[0]:
        return False
    # The rank of what tf.where returns is one too high.
    return (op.inputs[0].op if op.type == "Squeeze" else op).type in ("Range", "Unique", "Where")


def _scatter(op, variable, row_ids, values):
    op(resource=variable.handle, indices=row_ids, updates=values)
