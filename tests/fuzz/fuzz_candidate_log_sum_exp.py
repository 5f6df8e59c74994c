import numpy as np
import tensorflow as tf
from fuzz_arrays import GRADIENTS, NUMBERS, Arrays, agree, unit_rows
from fuzz_targets import HUGE, SEEDS, SIZES, attempt, call, fuzz, refused
from hypothesis import strategies as st

from tfxc.ops import library
from tfxc.ops.candidate_log_sum_exp import candidate_log_sum_exp

ROUNDING = 4e-6
FAULTS = (*["none"] * 8, "id", "offset", "shape")


@fuzz(
    n=SIZES,
    d=SIZES,
    classes=SIZES,
    p=st.sampled_from([0, 1, 1, 1, 3, 17]),
    s=SIZES,
    row_offset=st.sampled_from([0, 0, 0, 1, 5]),
    normalize=st.booleans(),
    numbers=st.sampled_from([kind for kind in NUMBERS if kind != "large"]),
    gradients=st.sampled_from(GRADIENTS),
    fault=st.sampled_from(FAULTS),
    huge=HUGE,
    seed=SEEDS,
)
def candidate_log_sum_exp_op(
    n, d, classes, p, s, row_offset, normalize, numbers, gradients, fault, huge, seed
):
    arrays = Arrays(seed)
    if n * (p + s) * d > 1 << 18:
        n = 1 + n % 17
    table = arrays.numbers((row_offset + classes, d), "normal" if normalize else numbers)
    query, offsets = arrays.numbers((n, d), numbers), arrays.numbers((n, s), numbers)
    offsets = np.where(arrays.random.random((n, s)) < 0.1, np.float32(-np.inf), offsets)
    labels, ids = arrays.ids((n, p), classes, low=-1), arrays.ids((n, s), classes, low=-1)
    upstream = arrays.gradient((n, p), gradients), arrays.gradient((n, 1), gradients)
    variable, table = arrays.table(table)
    if fault == "id":
        ids = ids if (spoiled := arrays.spoil(ids, -1, classes)) is None else spoiled
    attributes = {"normalize": normalize, "row_offset": row_offset}
    if fault == "offset":
        attributes["row_offset"] = arrays.pick([row_offset + classes + 1, huge])
    both = np.concatenate([labels, ids], 1)
    valid = fault != "offset" and bool(((both >= -1) & (both < classes)).all())
    ops = library.load()
    given = variable.handle, *map(arrays.tensor, (query, labels, ids, offsets))
    if fault == "shape":
        check_shapes(ops, arrays, given, attributes)
    made = attempt(valid, ops.tfxc_candidate_log_sum_exp, *given, **attributes)
    if not valid:
        refused(candidate_log_sum_exp, variable, *given[1:], **attributes)
        return
    handles = *given[:2], made.ids, *made[2:6], *map(arrays.tensor, upstream)
    found = call(ops.tfxc_candidate_log_sum_exp_grad, *handles, **attributes)
    with tf.GradientTape() as tape:
        tape.watch(given[1])
        values = call(candidate_log_sum_exp, variable, *given[1:], **attributes)
    of_query, of_table = tape.gradient(values, [given[1], variable], upstream)
    of_wrapper = *values, of_query, of_table.values, of_table.indices
    for one, other in zip(of_wrapper, (*made[:2], found[0], found[3], found[4]), strict=True):
        np.testing.assert_array_equal(one, other)
    filled = np.where(offsets == -np.inf, -1, ids)
    np.testing.assert_array_equal(made.ids, np.concatenate([labels, filled], 1))
    check_values(table[row_offset:], query, labels, ids, offsets, normalize, made)
    if all(np.isfinite(part).all() for part in (*made[:2], made.shares, made.mean, query, table)):
        check_gradients(table[row_offset:], query, labels, both, normalize, upstream, made, found, row_offset)


def check_values(table, query, labels, ids, offsets, normalize, made):
    with np.errstate(all="ignore"):
        unit = unit_rows(table, normalize)[0]
        scores = query.astype(np.float64) @ unit.T
        sizes = np.nan_to_num(np.abs(query) @ np.abs(unit).T, nan=0.0, posinf=0.0)
    inexact = not (np.isfinite(query).all() and np.isfinite(table).all())
    at, slots = np.nonzero(labels >= 0)
    want, tolerance = np.zeros(labels.shape), np.zeros(labels.shape)
    want[at, slots] = scores[at, labels[at, slots]]
    tolerance[at, slots] = ROUNDING * sizes[at, labels[at, slots]]
    agree(made.label_scores, want, tolerance + 1e-30, "label scores", not_hidden=not inexact)
    if inexact:
        return
    for n in range(len(ids)):
        filled = (ids[n] >= 0) & (offsets[n] != -np.inf)
        own = offsets[n][filled].astype(np.float64)
        if not np.isfinite(own).all():
            assert not np.isfinite(made.log_sum[n, 0])
            continue
        logits = scores[n, ids[n][filled]] + own
        want = np.logaddexp.reduce(logits) if len(logits) else np.float32(-1e30)
        size = sizes[n, ids[n][filled]].max(initial=1) + np.abs(own).max(initial=1)
        agree(made.log_sum[n], np.array([want]), 2 * ROUNDING * size, "log-sum-exp")
        shares = np.zeros(ids.shape[1])
        shares[filled] = np.exp(logits - want)
        agree(made.shares[n], shares, 8 * ROUNDING * size, "shares")
        mean = shares[filled] @ unit[ids[n][filled]]
        agree(made.mean[n], mean, 16 * ROUNDING * size * (1 + np.abs(unit).max(initial=0)), "mean")


def check_gradients(table, query, labels, both, normalize, upstream, made, found, row_offset):
    unit, norm, short = unit_rows(table, normalize)
    query, (of_labels, of_sums) = query.astype(np.float64), upstream
    coefficients = np.concatenate([of_labels, of_sums * made.shares], 1).astype(np.float64)
    agree(found[1], coefficients, 1e-6 * np.abs(coefficients) + 1e-30, "gradient of scores")
    agree(found[2], coefficients[:, labels.shape[1] :], 1e-6, "gradient of offsets")
    slots = made.slots.numpy()
    filled = np.zeros(both.shape, bool)
    filled.reshape(-1)[(slots & np.uint64(2**32 - 1)).astype(np.int64)] = True
    rows = (slots >> np.uint64(32)).astype(np.int64)
    np.testing.assert_array_equal(np.sort(rows), rows)
    np.testing.assert_array_equal(found[4], np.unique(rows))
    at, slot = np.nonzero(filled)
    own = both[at, slot]
    of_scores, sizes = np.zeros((len(query), len(unit))), np.zeros((len(query), len(unit)))
    np.add.at(of_scores, (at, own), coefficients[at, slot])
    np.add.at(sizes, (at, own), np.abs(coefficients[at, slot]))
    tolerance = 8 * ROUNDING * (sizes @ np.abs(unit)) + 1e-30
    agree(found[0], of_scores @ unit, tolerance, "gradient of query")
    of_unit, sizes = of_scores.T @ query, sizes.T @ np.abs(query)
    if normalize:
        along = (of_unit * unit).sum(1, keepdims=True)
        of_unit = np.where(
            short[:, np.newaxis], 0, (of_unit - along * unit) / np.maximum(norm, 1e-30)[:, None]
        )
        sizes = (sizes + (sizes * np.abs(unit)).sum(1, keepdims=True)) / np.maximum(norm, 1e-12)[:, None]
    touched = np.unique(own)
    agree(found[3], of_unit[touched], 8 * ROUNDING * sizes[touched] + 1e-30, "gradient of rows")


def check_shapes(ops, arrays, given, attributes):
    handle, query, labels, ids, offsets = given
    n, s = offsets.shape
    bad = [
        (query, labels, ids[:, :, tf.newaxis], offsets),
        (query, labels[:, :, tf.newaxis], ids, offsets),
        (tf.zeros([n + 1, query.shape[1]]), labels, ids, offsets),
        (query, labels, tf.zeros([n], tf.int32), offsets),
        (query, tf.zeros([n], tf.int32), ids, offsets),
        (query, tf.zeros([n + 1, 1], tf.int32), ids, offsets),
        (query, labels, ids, tf.zeros([n, s + 1])),
        (query, labels, ids, tf.zeros([n + 1, s])),
        (query, labels, ids, tf.zeros([])),
    ]
    chosen = arrays.pick(bad)
    refused(ops.tfxc_candidate_log_sum_exp, handle, *chosen, **attributes)
