import numpy as np
import tensorflow as tf
from fuzz_arrays import GRADIENTS, NUMBERS, Arrays, agree, unit_rows
from fuzz_targets import HUGE, SEEDS, SIZES, attempt, call, fuzz, in_stock_ops, refused
from hypothesis import strategies as st

from tfxc.ops import library
from tfxc.ops.candidate_scores import candidate_scores

ROUNDING = 4e-6
MORE_IDS = 8  # by the same table and queries
FAULTS = (*["none"] * 8, "id", "offset", "shape")


@fuzz(
    n=SIZES,
    d=SIZES,
    classes=SIZES,
    s=SIZES,
    row_offset=st.sampled_from([0, 0, 0, 1, 5]),
    normalize=st.booleans(),
    numbers=st.sampled_from(NUMBERS),
    gradients=st.sampled_from(GRADIENTS),
    fault=st.sampled_from(FAULTS),
    huge=HUGE,
    seed=SEEDS,
)
def candidate_scores_op(n, d, classes, s, row_offset, normalize, numbers, gradients, fault, huge, seed):
    arrays = Arrays(seed)
    if n * s * d > 1 << 18:
        n = 1 + n % 17
    table = arrays.numbers((row_offset + classes, d), "normal" if normalize else numbers)
    if arrays.chance(0.2):  # no direction
        table[: len(table) // 2] *= np.float32(1e-20)
    query = arrays.numbers((n, d), numbers)
    ids = arrays.ids((n, s), classes, low=-1)
    upstream = arrays.gradient((n, s), gradients)
    variable, table = arrays.table(table)
    if fault == "id":
        ids = ids if (spoiled := arrays.spoil(ids, -1, classes)) is None else spoiled
    attributes = {"normalize": normalize, "row_offset": row_offset}
    if fault == "offset":
        attributes["row_offset"] = arrays.pick([row_offset + classes + 1, huge])
    valid = fault != "offset" and bool(((ids >= -1) & (ids < classes)).all())
    inputs = arrays.tensor(query), arrays.tensor(ids)
    ops = library.load()
    if fault == "shape":
        check_shapes(ops, arrays, variable, inputs, attributes)
    if not valid:
        refused(candidate_scores, variable, *inputs, **attributes)
        refused(ops.tfxc_candidate_scores, variable.handle, *inputs, **attributes)
    grad = ops.tfxc_candidate_scores_grad
    handles = variable.handle, *inputs, arrays.tensor(upstream)
    found = attempt(valid, grad, *handles, **attributes)
    if not valid:
        return
    with tf.GradientTape() as tape:
        tape.watch(inputs[0])
        scores = call(candidate_scores, variable, *inputs, **attributes)
    of_table, of_query = tape.gradient(scores, [variable, inputs[0]], output_gradients=tf.constant(upstream))
    np.testing.assert_array_equal(of_table.indices, found[2])
    np.testing.assert_array_equal(of_table.values, found[1])
    np.testing.assert_array_equal(of_query, found[0])
    check(table[row_offset:], query, ids, upstream, normalize, scores, found, row_offset)
    for _ in range(MORE_IDS):
        ids = arrays.ids((n, s % 8 + 1), classes, low=-1)
        upstream = arrays.gradient(ids.shape, arrays.pick(GRADIENTS))
        handles = variable.handle, inputs[0], tf.constant(ids)
        scores = call(ops.tfxc_candidate_scores, *handles, **attributes)
        found = call(grad, *handles, tf.constant(upstream), **attributes)
        check(table[row_offset:], query, ids, upstream, normalize, scores, found, row_offset)
    if classes and arrays.chance(0.03):
        stock = call(in_stock_ops(candidate_scores), variable, *inputs, **attributes)
        scores = candidate_scores(variable, *inputs, **attributes)
        if np.isfinite(query).all() and np.isfinite(table).all():
            np.testing.assert_allclose(stock, scores, rtol=1e-4, atol=1e-4 * np.abs(query).max(initial=1))


def check(table, query, ids, upstream, normalize, scores, found, row_offset):
    query = query.astype(np.float64)
    with np.errstate(all="ignore"):
        unit, norm, short = unit_rows(table, normalize)
        all_scores = query @ unit.T
        sizes = np.nan_to_num(np.abs(query) @ np.abs(unit).T, nan=0.0, posinf=0.0)
        at, slots = np.nonzero(ids >= 0)
        own = ids[at, slots]
        want, tolerance = np.zeros(ids.shape), np.zeros(ids.shape)
        want[at, slots], tolerance[at, slots] = all_scores[at, own], ROUNDING * sizes[at, own]
        inexact = not (np.isfinite(query).all() and np.isfinite(table).all())
        agree(scores, want, tolerance + 1e-30, "scores", not_hidden=not inexact)
        if inexact:
            return
        of_scores, size_of = np.zeros(all_scores.shape), np.zeros(all_scores.shape)
        np.add.at(of_scores, (at, own), upstream[at, slots])
        np.add.at(size_of, (at, own), np.abs(upstream[at, slots]))
        want, tolerance = of_scores @ unit, 2 * ROUNDING * (size_of @ np.abs(unit))
        agree(found[0], want, tolerance + 1e-30, "gradient of query")
        touched = np.unique(own)
        np.testing.assert_array_equal(found[2], touched + row_offset)
        of_unit, size_of_unit = of_scores.T @ query, size_of.T @ np.abs(query)
        if normalize:
            along = (of_unit * unit).sum(1, keepdims=True)
            of_unit = np.where(short[:, np.newaxis], 0, (of_unit - along * unit) / norm[:, np.newaxis])
            total = size_of_unit + (size_of_unit * np.abs(unit)).sum(1, keepdims=True) * np.abs(unit)
            size_of_unit = np.where(short[:, np.newaxis], 0, total / norm[:, np.newaxis])
        want, tolerance = of_unit[touched], 2 * ROUNDING * size_of_unit[touched] + 1e-30
        agree(found[1], want, tolerance, "gradient of rows")


def check_shapes(ops, arrays, variable, inputs, attributes):
    query, ids = inputs
    n, s = ids.shape
    bad = [
        (query, tf.zeros([n + 1, s], tf.int32)),
        (query, tf.zeros([n], tf.int32)),
        (query, tf.zeros([], tf.int32)),
        (tf.zeros([n, query.shape[1] + 1]), ids),
        (tf.zeros([n]), ids),
        (tf.zeros([]), ids),
        (query[tf.newaxis], ids),
    ]
    query, ids = arrays.pick(bad)
    refused(candidate_scores, variable, query, ids, **attributes)
    handles = variable.handle, query, ids
    refused(ops.tfxc_candidate_scores, *handles, **attributes)
    upstream = tf.zeros(ids.shape)
    refused(ops.tfxc_candidate_scores_grad, *handles, upstream, **attributes)
    table = arrays.pick([tf.zeros([3]), tf.zeros([3, inputs[0].shape[1]], tf.float64)])
    table = tf.Variable(table)
    refused(ops.tfxc_candidate_scores, table.handle, *inputs, **attributes)
    grad = ops.tfxc_candidate_scores_grad
    upstream = arrays.pick([tf.zeros([n, s + 1]), tf.zeros([n]), tf.zeros([])])
    refused(grad, variable.handle, *inputs, upstream, **attributes)
