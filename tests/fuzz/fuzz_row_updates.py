from functools import partial

import numpy as np
import tensorflow as tf
from fuzz_arrays import GRADIENTS, Arrays, agree
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
    start = [np.abs(arrays.numbers((rows, *width))) for _ in range(3)] + [np.abs(arrays.numbers(rows))]
    table, start[0] = arrays.table(start[0])
    momentum, velocity = (tf.Variable(part) for part in start[1:3])
    accumulator = tf.Variable(start[3])
    reader = table.read_value() if arrays.chance(0.5) else None  # what somebody holds must not change
    read = start[0]
    if fault == "shape":
        check_shapes(arrays, table, momentum, velocity, accumulator, gradient, huge)
    steps = (
        partial(lazy_adam_update, table, momentum, velocity, gradient, HYPER),
        partial(row_sgd_update, table, gradient, 0.1),
        partial(rowwise_adagrad_update, table, accumulator, gradient, 0.1, EPSILON),
    )
    parts = table, momentum, velocity, accumulator
    handles, ops = [part.handle for part in parts], library.load()
    given = {"values": gradient.values, "row_ids": gradient.indices, "seed": SEED}
    raw = (
        partial(ops.tfxc_lazy_adam_update, *handles[:3], **given, **SCALARS),
        partial(ops.tfxc_row_sgd_update, handles[0], **given, learning_rate=0.1),
        partial(ops.tfxc_rowwise_adagrad_update, handles[0], handles[3], **given, **ADAGRAD),
    )
    for made in steps, raw:
        start = check_steps(made, valid, start, parts, ids, values)
    if reader is not None:
        np.testing.assert_array_equal(reader, read)


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
    start = [np.abs(arrays.numbers((rows, width))) for _ in range(3)] + [np.abs(arrays.numbers(rows))]
    table, start[0] = arrays.table(start[0])
    parts = table, *(tf.Variable(part) for part in start[1:])
    given = {"query": arrays.tensor(query), "score_gradients": arrays.tensor(multipliers), "seed": SEED}
    given["slots"] = arrays.tensor(slots)
    handles, ops = [part.handle for part in parts], library.load()
    steps = (
        partial(ops.tfxc_lazy_adam_update_from_scores, *handles[:3], **given, **SCALARS),
        partial(ops.tfxc_row_sgd_update_from_scores, handles[0], **given, learning_rate=0.1),
        partial(ops.tfxc_rowwise_adagrad_update_from_scores, handles[0], handles[3], **given, **ADAGRAD),
    )
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


def check_shapes(arrays, table, momentum, velocity, accumulator, gradient, huge):
    ops = library.load()
    values, ids = gradient.values, gradient.indices
    n = ids.shape[0]
    bad = [
        (tf.zeros([n + 1, *table.shape[1:]]), ids),
        (tf.zeros([n, *table.shape[1:], 2]), ids),
        (tf.zeros([]), ids),
        (values, tf.zeros([n, 1], ids.dtype)),
        (values, tf.zeros([], ids.dtype)),
    ]
    values, ids = arrays.pick(bad)
    moments = momentum.handle, velocity.handle
    refused(ops.tfxc_lazy_adam_update, table.handle, *moments, values, ids, seed=SEED, **SCALARS)
    refused(lazy_adam_update, table, momentum, velocity, tf.IndexedSlices(values, ids), HYPER)
    refused(row_sgd_update, table, tf.IndexedSlices(values, ids), 0.1)
    refused(ops.tfxc_row_sgd_update, table.handle, values, ids, 0.1, SEED)
    op, scalars = ops.tfxc_rowwise_adagrad_update, (0.1, EPSILON, SEED)
    refused(op, table.handle, accumulator.handle, values, ids, *scalars)
    refused(rowwise_adagrad_update, table, accumulator, tf.IndexedSlices(values, ids), 0.1, EPSILON)
    # Slots that are not the table's.
    other = tf.Variable(tf.zeros([table.shape[0] + 1, *table.shape[1:]]))
    values, ids = gradient.values, gradient.indices
    bad = table.handle, other.handle, moments[1], values, ids
    refused(ops.tfxc_lazy_adam_update, *bad, seed=SEED, **SCALARS)
    refused(op, table.handle, other.handle, values, ids, *scalars)
    refused(ops.tfxc_row_sgd_update, table.handle, values, ids, [0.1], SEED)
    refused(ops.tfxc_row_sgd_update, table.handle, values, ids, 0.1, SEED[:1])
    # A table without rows may be wider than anything that has some.
    if huge < 1 << 60:
        wide = tf.Variable(tf.zeros([0, huge]))
        values, ids = tf.zeros([8, 2]), tf.zeros([8], ids.dtype)
        refused(ops.tfxc_row_sgd_update, wide.handle, values, ids, 0.1, SEED)
