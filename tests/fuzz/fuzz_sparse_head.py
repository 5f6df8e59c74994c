import numpy as np
import tensorflow as tf
from fuzz_arrays import GRADIENTS, NUMBERS, Arrays, agree, misshapen
from fuzz_targets import SEEDS, SIZES, attempt, call, fuzz, refused
from hypothesis import strategies as st
from kernel_checks import reduced_by_hand
from sparse_head_checks import BY_NAME

from tfxc.ops import library
from tfxc.ops.sparse_head import sparse_head_candidates, sparse_head_logits, sparse_head_reduce

REDUCTIONS = tuple(BY_NAME)
FAULTS = (*["none"] * 6, "index", "id", "block", "shape")
QUERIES = st.one_of(SIZES, st.integers(1, 200))
# A few problems are large enough to be shared out among threads.
CLASSES = st.one_of(*[SIZES] * 15, st.sampled_from([500, 2000]))
GROUPS = st.sampled_from([1, 1, 2, 3, 16, 100])
FAN_INS = st.sampled_from([0, *[1] * 4, *[2, 3, 5, 8] * 2, 17, 32])
# The error of a sum of float32 terms, relative to the sum of their sizes.
ROUNDING = 4e-6
LEAST_SLOPE = np.exp(-69.0)  # of a log-sum-exp: below it the kernels give 0
MORE_GRADIENTS = 8  # of the same head


def finite(errors):
    """Bounds on the errors of finite numbers: what is not finite has none."""
    return np.nan_to_num(errors, nan=0.0, posinf=0.0)


class Head:
    """A sparse head, its queries and ids; all about it in float64, with bounds on rounding errors."""

    def __init__(self, arrays, sizes, use_bias, numbers, group_size):
        n, e, l, k = self.sizes = sizes  # noqa: E741
        self.group_size = group_size
        self.query = arrays.numbers((n, e), numbers)
        self.weights = arrays.numbers((l, k), "grid" if numbers == "grid" else "normal")
        self.indices = arrays.ids((-(-l // group_size), k), e)
        self.bias = arrays.numbers((l if use_bias else 0,), numbers if numbers == "non-finite" else "normal")
        # Most classes far beyond their margin: their gradient is 0 for all queries.
        if use_bias and arrays.chance(0.5):
            self.bias = np.where(arrays.random.random(l) < 0.8, np.float32(-10.0 - k), self.bias)
        self.ids = arrays.ids((n, arrays.random.integers(0, 4)), l, low=-1)

    def check(self):
        n, e, l, _ = self.sizes  # noqa: E741
        indices = np.repeat(self.indices, self.group_size, 0)[:l]
        self.bad = (indices < 0) | (indices >= e)
        self.inputs = np.where(self.bad, 0, indices)
        self.reads, self.size_of_reads = np.zeros((l, e)), np.zeros((l, e))
        if e:
            rows = np.broadcast_to(np.arange(l)[:, np.newaxis], self.inputs.shape)
            np.add.at(self.reads, (rows, self.inputs), self.weights)
            np.add.at(self.size_of_reads, (rows, self.inputs), np.abs(self.weights))
        bias = self.bias.astype(np.float64) if len(self.bias) else np.zeros(l)
        self.query64 = self.query.astype(np.float64)
        with np.errstate(invalid="ignore"):
            self.products = self._product(self.query64, self.reads)
            # Inputs read twice with different signs: infinity or NaN, by the order of the sum.
            self.products[~np.isfinite(self.products)] = np.nan
            self.logits = self.products + bias
            sizes = self._product(np.abs(self.query64), self.size_of_reads)
        self.error = ROUNDING * (finite(sizes) + finite(np.abs(bias))) + 1e-30
        self.exact = not np.isinf(self.query).any()
        self.given = tf.constant(self.query), tf.Variable(self.weights), tf.Variable(self.indices)
        self.handles = self.given[0], *(variable.handle for variable in self.given[1:])

    def _product(self, query, reads):
        """Only what a class reads, for 0 times infinity is NaN."""
        if np.isfinite(query).all():
            return query @ reads.T
        picked = np.where(self.size_of_reads[np.newaxis] != 0, query[:, np.newaxis] * reads[np.newaxis], 0.0)
        return picked.sum(2)

    def any_bad(self, classes):
        return bool(self.bad[classes].any())

    def gradients(self, of_logits, error):
        error = finite(error + ROUNDING * np.abs(of_logits))
        with np.errstate(invalid="ignore"):
            of_rows, row_error = of_logits.T @ self.query64, error.T @ finite(np.abs(self.query64))
            of_query, query_error = of_logits @ self.reads, error @ self.size_of_reads
        of_weights, weight_error = (
            np.take_along_axis(rows, self.inputs, 1) if rows.shape[1] else np.zeros(self.inputs.shape)
            for rows in (of_rows, row_error)
        )
        count = len(self.bias)
        bias = of_logits.sum(0)[:count], error.sum(0)[:count]
        return (of_query, query_error), (of_weights, weight_error), bias

    def of_ids(self, upstream):
        """The gradient of the logits [N, L] of that of the chosen ones."""
        gradient, (rows, slots) = np.zeros(self.logits.shape), np.nonzero(self.ids >= 0)
        np.add.at(gradient, (rows, self.ids[rows, slots]), upstream[rows, slots])
        return gradient

    def chosen(self, values):
        picked = np.zeros(self.ids.shape)
        rows, slots = np.nonzero(self.ids >= 0)
        picked[rows, slots] = values[rows, self.ids[rows, slots]]
        return picked


def reduced(logits, error, reduction):
    """The reduction [N], its gradient to the logits [N, L], and the errors of both."""
    with np.errstate(invalid="ignore", over="ignore"):
        value, slope = reduced_by_hand(logits, reduction)
        if reduction == "squared_hinge":
            return value, slope, (slope * error + error**2).sum(1) + ROUNDING * value, 2 * error
        if reduction == "softplus":
            return value, slope, (slope * error).sum(1) + ROUNDING * value + 1e-30, slope * error + 1e-30
        size, largest = 1 + np.abs(value), error.max(axis=1, initial=0)
        slope[~np.isfinite(value)] = np.nan
        rise = np.expm1(2 * largest[:, np.newaxis] + ROUNDING * size[:, np.newaxis])
        return value, slope, largest + ROUNDING * size, slope * rise + LEAST_SLOPE * (1 + rise)


def spoil(head, arrays, fault):
    if fault == "index":
        spoiled = arrays.spoil(head.indices, 0, head.sizes[1])
        head.indices = head.indices if spoiled is None else spoiled
    if fault == "id":
        spoiled = arrays.spoil(head.ids, -1, head.sizes[2])
        head.ids = head.ids if spoiled is None else spoiled
    head.check()


@fuzz(
    n=QUERIES,
    e=SIZES,
    l=CLASSES,
    k=FAN_INS,
    use_bias=st.booleans(),
    numbers=st.sampled_from(NUMBERS),
    gradients=st.sampled_from(GRADIENTS),
    fault=st.sampled_from(FAULTS),
    seed=SEEDS,
    g=GROUPS,
)
def sparse_head(n, e, l, k, use_bias, numbers, gradients, fault, seed, g=1):  # noqa: E741
    arrays = Arrays(seed)
    if n * l * e > 1 << 22:  # a reference of some milliseconds
        n = 1 + n % 17
    head = Head(arrays, (n, e, l, k), use_bias, numbers, g)
    spoil(head, arrays, fault)
    check_logits(head, arrays, gradients, fault)
    for reduction in REDUCTIONS:
        check_reduce(head, arrays, gradients, reduction)
    check_candidates(head, arrays, gradients)
    if fault == "shape":
        check_shapes(head)


@fuzz(
    n=st.integers(1, 200),
    e=st.sampled_from([1, 2, 3, 9]),
    l=st.sampled_from([1, 2, 3, 16, 17, 40]),
    k=st.sampled_from([1, 2, 3]),
    seed=SEEDS,
    g=GROUPS,
)
def sparse_head_few_gradients(n, e, l, k, seed, g=1):  # noqa: E741
    """Reductions of any batch where hardly a logit has a gradient: what a kernel may skip, and what not."""
    arrays = Arrays(seed)
    head = Head(arrays, (n, e, l, k), True, "normal", g)
    head.check()
    for reduction in REDUCTIONS:
        check_reduce(head, arrays, arrays.pick(("mostly zero", "one")), reduction)
        for _ in range(MORE_GRADIENTS):
            check_reduce_gradients(head, arrays, reduction)


def check_logits(head, arrays, gradients, fault):
    n, _, l, _ = head.sizes  # noqa: E741
    start, stop = sorted(int(x) for x in arrays.ids(2, l + 1))
    bad_block = fault == "block"
    if bad_block:
        start, stop = arrays.pick([(-1, l), (0, l + 1), (1, 0), (l, l + 1), (2**31 - 1, -(2**31))])
    block = slice(max(start, 0), max(stop, 0))
    valid = not bad_block and (n == 0 or not head.any_bad(block))
    bias = arrays.tensor(head.bias)
    inputs, group = (*head.given, bias, start, stop), {"group_size": head.group_size}
    logits = attempt(valid, sparse_head_logits, *inputs, **group)
    upstream = arrays.gradient((n, max(stop - start, 0) if not bad_block else 1), gradients)
    handles, ops = (*head.handles, bias, start, stop), library.load()
    found = attempt(valid, ops.tfxc_sparse_head_logits_grad, *handles, arrays.tensor(upstream), **group)
    if not valid:
        refused(ops.tfxc_sparse_head_logits, *handles, **group)
        return
    agree(logits, head.logits[:, block], head.error[:, block], "logits")
    of_logits = np.zeros(head.logits.shape)
    of_logits[:, block] = upstream
    check_gradients(found, head, of_logits, 0.0, "logits")


def check_gradients(found, head, of_logits, error, what):
    wanted = head.gradients(of_logits, error)
    for name, got, (want, tolerance) in zip(("query", "weights", "bias"), found, wanted, strict=True):
        agree(got, want, tolerance + 1e-30, f"gradient of {name} by {what}", not_hidden=False)


def check_reduce(head, arrays, gradients, reduction):
    n, _, l, _ = head.sizes  # noqa: E741
    valid_ids = bool(((head.ids >= -1) & (head.ids < l)).all())
    valid = valid_ids and (n == 0 or not head.any_bad(slice(None)))
    upstream = arrays.gradient((n,), gradients)
    for_labels = arrays.gradient(head.ids.shape, arrays.pick(GRADIENTS))
    (query, weights, _), labels, bias = head.given, arrays.tensor(head.ids), arrays.tensor(head.bias)
    function = (*head.given, bias, labels, BY_NAME[reduction], head.group_size)
    if not valid:
        refused(sparse_head_reduce, *function)
        given = *head.handles, bias, labels, np.zeros(n, np.float32), upstream, for_labels
        options = {"reduction": reduction, "group_size": head.group_size}
        refused(library.load().tfxc_sparse_head_reduce_grad, *given, **options)
        return
    with tf.GradientTape() as tape:
        tape.watch([query, bias])
        sums, positives = call(sparse_head_reduce, *function)
    upstreams = [tf.constant(upstream), tf.constant(for_labels)]
    targets = tape.gradient([sums, positives], [query, weights, bias], output_gradients=upstreams)
    value, slope, value_error, slope_error = reduced(head.logits, head.error, reduction)
    agree(sums, value, value_error, reduction, head.exact)
    agree(positives, head.chosen(head.logits), head.chosen(head.error), f"positives of {reduction}")
    check_reduced_gradients(targets, head, upstream, for_labels, slope, slope_error, reduction)


def check_reduce_gradients(head, arrays, reduction):
    upstream = arrays.gradient(head.sizes[:1], arrays.pick(("mostly zero", "one", "zero")))
    for_labels = arrays.gradient(head.ids.shape, arrays.pick(("mostly zero", "one")))
    value, slope, _, slope_error = reduced(head.logits, head.error, reduction)
    given = *head.handles, head.bias, head.ids, value.astype(np.float32), upstream, for_labels
    options = {"reduction": reduction, "group_size": head.group_size}
    found = call(library.load().tfxc_sparse_head_reduce_grad, *given, **options)
    check_reduced_gradients(found, head, upstream, for_labels, slope, slope_error, reduction)


def check_reduced_gradients(found, head, upstream, for_labels, slope, slope_error, reduction):
    scale = np.abs(upstream)[:, np.newaxis].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        of_reduction = upstream[:, np.newaxis] * slope
        error = scale * slope_error + ROUNDING * (np.abs(of_reduction) + head.of_ids(np.abs(for_labels)))
    check_gradients(found, head, of_reduction + head.of_ids(for_labels), error, reduction)


def check_candidates(head, arrays, gradients):
    l = head.sizes[2]  # noqa: E741
    inside = bool(((head.ids >= -1) & (head.ids < l)).all())
    touched = np.unique(head.ids[head.ids >= 0])
    valid = inside and not head.any_bad(touched)
    ids = arrays.tensor(head.ids)
    group = {"group_size": head.group_size}
    scores = attempt(valid, sparse_head_candidates, *head.given, ids, **group)
    upstream = arrays.gradient(head.ids.shape, gradients)
    op, handles = library.load().tfxc_sparse_head_candidates_grad, (*head.handles, ids)
    found = attempt(valid, op, *handles, arrays.tensor(upstream), **group)
    if not valid or head.bad.any():
        return
    error = head.chosen(head.error)
    agree(scores, head.chosen(head.products), error, "candidates")
    of_logits, error = head.of_ids(upstream), ROUNDING * head.of_ids(np.abs(upstream))
    of_query, of_weights, _ = head.gradients(of_logits, error)
    agree(found[0], *of_query, "gradient of query by candidates", not_hidden=False)
    np.testing.assert_array_equal(found[2], touched)
    want, tolerance = (part[touched] for part in of_weights)
    agree(found[1], want, tolerance + 1e-30, "gradient of weights by candidates", not_hidden=False)


def check_shapes(head):
    """Ranks and sizes that do not fit, to the raw ops, which have no wrapper before them."""
    ops, (query, weights, indices), group = library.load(), head.handles, {"group_size": head.group_size}
    n, _, l, k = head.sizes  # noqa: E741
    bias, ids, zeros = tf.constant(head.bias), tf.zeros([n, 1], tf.int32) - 1, tf.zeros([n])
    other, flat = tf.Variable(tf.zeros([l + 1, k], tf.int32)), tf.Variable(tf.zeros([l * k]))
    bad_heads = [
        (query, weights, other.handle, bias),
        (query, flat.handle, indices, bias),
        (query, indices, indices, bias),
        (query, weights, weights, bias),
    ]
    for one, its_bias in misshapen((query, bias), [(), (0,) if l > 1 else ()]):  # a bias for the one class
        bad_heads.append((one, weights, indices, its_bias))
    for bad in bad_heads:
        refused(ops.tfxc_sparse_head_logits, *bad, 0, 0, **group)
        refused(ops.tfxc_sparse_head_logits_grad, *bad, 0, 0, tf.zeros([n, 0]), **group)
        for reduction in REDUCTIONS:
            options, upstream = {"reduction": reduction, **group}, (zeros, zeros, tf.zeros([n, 1]))
            refused(ops.tfxc_sparse_head_reduce, *bad, ids, **options)
            refused(ops.tfxc_sparse_head_reduce_grad, *bad, ids, *upstream, **options)
    for (bad,) in misshapen((ids,), [(0,)]):
        refused(ops.tfxc_sparse_head_candidates, *head.handles, bad, **group)
    for (bad,) in misshapen((tf.zeros([n, 1]),), [(0, 1) if n else ()]):
        refused(ops.tfxc_sparse_head_candidates_grad, *head.handles, ids, bad, **group)
    good = *head.handles, bias
    refused(ops.tfxc_sparse_head_logits_grad, *good, 0, l, tf.zeros([n, l + 1]), **group)
    refused(ops.tfxc_sparse_head_logits, *good, [0], l, **group)
    given = *good, ids, zeros, tf.zeros([n + 1]), tf.zeros([n, 1])
    refused(ops.tfxc_sparse_head_reduce_grad, *given, reduction="softplus", **group)
