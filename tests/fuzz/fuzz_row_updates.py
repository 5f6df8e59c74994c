from functools import partial

import numpy as np
import tensorflow as tf
from fuzz_arrays import GRADIENTS, Arrays, agree, misshapen
from fuzz_targets import HUGE, SEEDS, SIZES, call, fuzz, refused
from hypothesis import strategies as st

from tfxc.ops import library
from tfxc.ops.row_updates import AdamHyper, lazy_adam_update, row_sgd_update, rowwise_adagrad_update

FAULTS = (*["none"] * 8, "id", "shape")
EPSILON = 1e-3
HYPER = AdamHyper(0.1, 0.9, 0.99, EPSILON)
SCALARS = {name: np.float64(value) for name, value in HYPER._asdict().items()}
ADAGRAD = {"learning_rate": 0.1, "epsilon": EPSILON}
SEED = np.int64([3, 4])


@fuzz(
    rows=SIZES,
    width=st.sampled_from([(), (0,), (1,), (2, 3), (1, 0)]) | st.tuples(SIZES),
    n=SIZES,
    long_ids=st.booleans(),
    gradients=st.sampled_from(GRADIENTS),
    fault=st.sampled_from(FAULTS),
    huge=HUGE,
    seed=SEEDS,
)
def row_updates(rows, width, n, long_ids, gradients, fault, huge, seed):
    arrays = Arrays(seed)
    width = tuple(width)
    n = 0 if rows == 0 else n
    ids = arrays.ids(n, rows).astype(np.int64 if long_ids else np.int32)
    values = arrays.gradient((n, *width), gradients)
    if fault == "id":
        ids = ids if (spoiled := arrays.spoil(ids, 0, rows)) is None else spoiled
        if long_ids and n and arrays.chance(0.3):
            ids[0] = arrays.pick([huge, -huge, 2**32, -(2**32)])
    valid = bool(((ids >= 0) & (ids < rows)).all())
    gradient = tf.IndexedSlices(arrays.tensor(values), arrays.tensor(ids))
    start, parts = table_and_slots(arrays, (rows, *width))
    reader = parts[0].read_value() if arrays.chance(0.5) else None  # what somebody holds must not change
    read = start[0]
    if fault == "shape":
        check_shapes(parts, gradient, huge)
    for made in both_steps(parts, gradient):
        start = check_steps(made, valid, start, parts, ids, values)
    if reader is not None:
        np.testing.assert_array_equal(reader, read)


def table_and_slots(arrays, shape):
    """Numbers, and the variables that hold them: the table, two moments, and Adagrad's accumulator."""
    start = [np.abs(arrays.numbers(shape)) for _ in range(3)] + [np.abs(arrays.numbers(shape[0]))]
    table, start[0] = arrays.table(start[0])
    return start, (table, *(tf.Variable(part) for part in start[1:]))


def both_steps(parts, gradient):
    """A step of each rule: by the package's functions, and by the ops."""
    (table, momentum, velocity, accumulator), ops = parts, library.load()
    steps = (
        partial(lazy_adam_update, table, momentum, velocity, gradient, HYPER),
        partial(row_sgd_update, table, gradient, 0.1),
        partial(rowwise_adagrad_update, table, accumulator, gradient, 0.1, EPSILON),
    )
    given = {"values": gradient.values, "row_ids": gradient.indices, "seed": SEED}
    rules = ops.tfxc_lazy_adam_update, ops.tfxc_row_sgd_update, ops.tfxc_rowwise_adagrad_update
    return steps, raw_steps(parts, given, *rules)


def raw_steps(parts, given, adam_op, sgd_op, adagrad_op):
    table, momentum, velocity, accumulator = (part.handle for part in parts)
    return (
        partial(adam_op, table, momentum, velocity, **given, **SCALARS),
        partial(sgd_op, table, **given, learning_rate=0.1),
        partial(adagrad_op, table, accumulator, **given, **ADAGRAD),
    )


@fuzz(
    rows=SIZES,
    width=SIZES,
    n=SIZES,
    s=SIZES,
    gradients=st.sampled_from(GRADIENTS),
    fault=st.sampled_from([*["none"] * 8, "slot", "order", "shape"]),
    huge=HUGE,
    seed=SEEDS,
)
def row_updates_from_scores(rows, width, n, s, gradients, fault, huge, seed):
    arrays = Arrays(seed)
    query, multipliers = arrays.numbers((n, width)), arrays.gradient((n, s), gradients)
    filled = np.flatnonzero(arrays.random.random(n * s) < arrays.pick([0.1, 1.0])) if rows else np.int64([])
    ids = arrays.ids(len(filled), rows)
    slots = np.sort(ids.astype(np.uint64) << np.uint64(32) | filled.astype(np.uint64))
    if fault == "slot":
        bad = [rows << 32, 2**64 - 1, huge << 32 & 2**64 - 1 | n * s]
        slots = np.append(slots, np.uint64(arrays.pick(bad)))
    elif fault == "order" and len(slots):
        slots = np.append(slots, arrays.pick([slots[0], slots[-1]]))
    elif fault == "shape":
        query = np.zeros(arrays.pick([(n + 1, width), (n, width + 1), (n,)]), np.float32)
    valid = fault == "none" or (fault == "order" and not len(slots))
    values = multipliers.reshape(-1, 1)[filled] * query[filled // max(s, 1)] if valid else None
    start, parts = table_and_slots(arrays, (rows, width))
    given = {"query": arrays.tensor(query), "score_gradients": arrays.tensor(multipliers), "seed": SEED}
    given["slots"], ops = arrays.tensor(slots), library.load()
    rules = ops.tfxc_lazy_adam_update_from_scores, ops.tfxc_row_sgd_update_from_scores
    steps = raw_steps(parts, given, *rules, ops.tfxc_rowwise_adagrad_update_from_scores)
    check_steps(steps, valid, start, parts, ids, values)


def check_steps(steps, valid, start, parts, ids, values):
    state = [part.astype(np.float64) for part in start]
    for step, update in zip(steps, (adam, sgd, adagrad), strict=True):
        if not valid:
            refused(step)
            continue
        call(step)
        update(state, ids, values)
        # One step's rounding; the next starts from what there is.
        now = [part.numpy() for part in parts]
        now[0] = now[0].astype(np.float32)
        size = 1 + np.abs(values).sum()
        # To either neighbour.
        roundings = [2.0**-7 if parts[0].dtype == tf.bfloat16 else 0.0, 0.0, 0.0, 0.0]
        for got, want, rounding in zip(now, state, roundings, strict=True):
            tolerance = 4e-6 * (np.abs(want) + size) + rounding * np.abs(want)
            agree(got, want, tolerance, step.func.__name__)
        state = [part.astype(np.float64) for part in now]
    if not valid:
        for variable, part in zip(parts, start, strict=True):
            np.testing.assert_array_equal(variable.numpy(), part)
    return state


def distinct(ids, values):
    rows, group = np.unique(ids, return_inverse=True)
    sums = np.zeros((len(rows), *values.shape[1:]))
    np.add.at(sums, group, values)
    return rows, sums


def adam(state, ids, values):
    table, momentum, velocity, _ = state
    rows, g = distinct(ids, values)
    momentum[rows] += (1 - HYPER.beta_1) * (g - momentum[rows])
    velocity[rows] += (1 - HYPER.beta_2) * (g**2 - velocity[rows])
    table[rows] -= HYPER.learning_rate * momentum[rows] / (np.sqrt(velocity[rows]) + EPSILON)


def sgd(state, ids, values):
    rows, g = distinct(ids, values)
    state[0][rows] -= 0.1 * g


def adagrad(state, ids, values):
    if not values.size:
        return
    rows, g = distinct(ids, values)
    state[3][rows] += (g**2).reshape(len(rows), -1).mean(1)
    rate = 0.1 / (np.sqrt(state[3][rows]) + EPSILON)
    state[0][rows] -= rate.reshape(-1, *[1] * (g.ndim - 1)) * g


def check_shapes(parts, gradient, huge):
    """A gradient, slots, scalars and a seed that do not fit the table, or the op."""
    (table, _, velocity, _), given = parts, (gradient.values, gradient.indices)
    for bad in misshapen(given, [range(given[0].shape.rank), (0,)]):
        for steps in both_steps(parts, tf.IndexedSlices(*bad)):
            for step in steps:
                refused(step)
    other = tf.Variable(tf.zeros([table.shape[0] + 1, *table.shape[1:]]))
    for step in both_steps((table, other, velocity, other), gradient)[1][::2]:  # with slots
        refused(step)
    op = library.load().tfxc_row_sgd_update
    refused(op, table.handle, *given, [0.1], SEED)
    refused(op, table.handle, *given, 0.1, SEED[:1])
    # A table without rows may be wider than anything that has some.
    if huge < 1 << 60:
        wide = tf.Variable(tf.zeros([0, huge]))
        refused(op, wide.handle, tf.zeros([8, 2]), tf.zeros([8], given[1].dtype), 0.1, SEED)
