"""Scores of candidates, and the log-sum-exp of them: the same tables, queries and gradients."""

import numpy as np
import tensorflow as tf
from fuzz_arrays import GRADIENTS, NUMBERS, Arrays, agree, misshapen, unit_rows
from fuzz_targets import HUGE, SEEDS, SIZES, attempt, call, fuzz, in_stock_ops, refused
from hypothesis import strategies as st

from tfxc.ops import library
from tfxc.ops.candidate_log_sum_exp import candidate_log_sum_exp
from tfxc.ops.candidate_scores import candidate_scores

ROUNDING = 4e-6
MORE_IDS = 8  # by the same table and queries
PROBLEM = {
    "n": SIZES,
    "d": SIZES,
    "classes": SIZES,
    "s": SIZES,
    "row_offset": st.sampled_from([0, 0, 0, 1, 5]),
    "normalize": st.booleans(),
    "gradients": st.sampled_from(GRADIENTS),
    "fault": st.sampled_from([*["none"] * 8, "id", "offset", "shape"]),
    "huge": HUGE,
    "seed": SEEDS,
}


@fuzz(numbers=st.sampled_from(NUMBERS), **PROBLEM)
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
    ids, attributes = spoiled(arrays, fault, ids, classes, row_offset, normalize, huge)
    valid = fault != "offset" and is_valid(ids, classes)
    inputs = arrays.tensor(query), arrays.tensor(ids)
    ops = library.load()
    grad, handles = ops.tfxc_candidate_scores_grad, (variable.handle, *inputs, arrays.tensor(upstream))
    if fault == "shape":
        for bad in misshapen(inputs, [(0, 1), (0,)]):
            refused(candidate_scores, variable, *bad, **attributes)
            refused(ops.tfxc_candidate_scores, variable.handle, *bad, **attributes)
        for bad in misshapen(handles[1:], [(0, 1), (0,), (0, 1)]):
            refused(grad, variable.handle, *bad, **attributes)
        for bad in tf.zeros([3]), tf.zeros([3, d], tf.float64):
            refused(ops.tfxc_candidate_scores, tf.Variable(bad).handle, *inputs, **attributes)
    if not valid:
        refused(candidate_scores, variable, *inputs, **attributes)
        refused(ops.tfxc_candidate_scores, variable.handle, *inputs, **attributes)
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
    reference = Reference(table, query, normalize, row_offset)
    reference.check(ids, upstream, scores, found)
    for _ in range(MORE_IDS):
        ids = arrays.ids((n, s % 8 + 1), classes, low=-1)
        upstream = arrays.gradient(ids.shape, arrays.pick(GRADIENTS))
        handles = variable.handle, inputs[0], tf.constant(ids)
        scores = call(ops.tfxc_candidate_scores, *handles, **attributes)
        found = call(grad, *handles, tf.constant(upstream), **attributes)
        reference.check(ids, upstream, scores, found)
    if classes and arrays.chance(0.03):
        stock = call(in_stock_ops(candidate_scores), variable, *inputs, **attributes)
        scores = candidate_scores(variable, *inputs, **attributes)
        if reference.exact:
            np.testing.assert_allclose(stock, scores, rtol=1e-4, atol=1e-4 * np.abs(query).max(initial=1))


def spoiled(arrays, fault, ids, classes, row_offset, normalize, huge):
    """The ids, and the attributes of the op, with the fault of either."""
    if fault == "id" and (one_outside := arrays.spoil(ids, -1, classes)) is not None:
        ids = one_outside
    row_offset = arrays.pick([row_offset + classes + 1, huge]) if fault == "offset" else row_offset
    return ids, {"normalize": normalize, "row_offset": row_offset}


def is_valid(ids, classes):
    return bool(((ids >= -1) & (ids < classes)).all())


class Reference:
    """What a table and queries give, in float64, with bounds on rounding errors."""

    def __init__(self, table, query, normalize, row_offset):
        self.normalize, self.row_offset = normalize, row_offset
        self.query = query.astype(np.float64)
        self.exact = bool(np.isfinite(query).all() and np.isfinite(table).all())
        with np.errstate(all="ignore"):
            self.unit, self.norm, self.short = unit_rows(table[row_offset:], normalize)
            self.scores = self.query @ self.unit.T
            sizes = np.abs(query) @ np.abs(self.unit).T
        self.sizes = np.nan_to_num(sizes, nan=0.0, posinf=0.0)

    def check(self, ids, upstream, scores, found):
        """The scores of ids [N, S], and the gradients of query, rows and the rows' numbers."""
        self.check_scores(ids, scores)
        if self.exact:
            at, slots = np.nonzero(ids >= 0)
            self.check_gradients(at, ids[at, slots], upstream[at, slots], found, 2 * ROUNDING)

    def check_scores(self, ids, scores):
        at, slots = np.nonzero(ids >= 0)
        want, sizes = np.zeros(ids.shape), np.zeros(ids.shape)
        for part, every in (want, self.scores), (sizes, self.sizes):
            part[at, slots] = every[at, ids[at, slots]]
        agree(scores, want, ROUNDING * sizes + 1e-30, "scores", not_hidden=self.exact)

    def check_gradients(self, at, classes, slopes, found, rounding):
        """By slopes of the scores of some classes for the queries ``at``."""
        of_scores, sizes = np.zeros(self.scores.shape), np.zeros(self.scores.shape)
        np.add.at(of_scores, (at, classes), slopes)
        np.add.at(sizes, (at, classes), np.abs(slopes))
        unit, touched = self.unit, np.unique(classes)
        tolerance = rounding * (sizes @ np.abs(unit)) + 1e-30
        agree(found[0], of_scores @ unit, tolerance, "gradient of query")
        np.testing.assert_array_equal(found[2], touched + self.row_offset)
        of_rows, sizes = of_scores.T @ self.query, sizes.T @ np.abs(self.query)
        if self.normalize:
            of_rows = of_rows - (of_rows * unit).sum(1, keepdims=True) * unit
            sizes = sizes + (sizes * np.abs(unit)).sum(1, keepdims=True) * np.abs(unit)
            norm = np.where(self.short, np.inf, self.norm)[:, np.newaxis]
            of_rows, sizes = of_rows / norm, sizes / norm
        agree(found[1], of_rows[touched], rounding * sizes[touched] + 1e-30, "gradient of rows")


@fuzz(
    p=st.sampled_from([0, 1, 1, 1, 3, 17]),
    numbers=st.sampled_from([kind for kind in NUMBERS if kind != "large"]),
    **PROBLEM,
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
    ids, attributes = spoiled(arrays, fault, ids, classes, row_offset, normalize, huge)
    both = np.concatenate([labels, ids], 1)
    valid = fault != "offset" and is_valid(both, classes)
    ops = library.load()
    given = variable.handle, *map(arrays.tensor, (query, labels, ids, offsets))
    if fault == "shape":
        for bad in misshapen(given[1:], [(0, 1), (0,), (0, 1), (0, 1)]):
            refused(ops.tfxc_candidate_log_sum_exp, variable.handle, *bad, **attributes)
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
    reference = Reference(table, query, normalize, row_offset)
    reference.check_scores(labels, made.label_scores)
    if reference.exact:
        check_sums(reference, ids, offsets, made)
        if all(np.isfinite(part).all() for part in (*made[:2], made.shares, made.mean)):
            check_gradients(reference, labels, both, upstream, made, found)


def check_sums(reference, ids, offsets, made):
    scores, sizes, unit = reference.scores, reference.sizes, reference.unit
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


def check_gradients(reference, labels, both, upstream, made, found):
    of_labels, of_sums = upstream
    slopes = np.concatenate([of_labels, of_sums * made.shares], 1).astype(np.float64)
    agree(found[1], slopes, 1e-6 * np.abs(slopes) + 1e-30, "gradient of scores")
    agree(found[2], slopes[:, labels.shape[1] :], 1e-6, "gradient of offsets")
    slots = made.slots.numpy()
    filled = np.zeros(both.shape, bool)
    filled.reshape(-1)[(slots & np.uint64(2**32 - 1)).astype(np.int64)] = True
    rows = (slots >> np.uint64(32)).astype(np.int64)
    np.testing.assert_array_equal(np.sort(rows), rows)
    np.testing.assert_array_equal(found[4], np.unique(rows))
    at, slot = np.nonzero(filled)
    of_inputs = found[0], found[3], found[4]
    reference.check_gradients(at, both[at, slot], slopes[at, slot], of_inputs, 8 * ROUNDING)
