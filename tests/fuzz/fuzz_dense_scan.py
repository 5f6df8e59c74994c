import numpy as np
import tensorflow as tf
from dense_scan_checks import REDUCTIONS, dense_scan_reference
from fuzz_arrays import GRADIENTS, NUMBERS, Arrays
from fuzz_targets import HUGE, SEEDS, SIZES, attempt, call, fuzz
from hypothesis import strategies as st

from tfxc.ops import library
from tfxc.ops.dense_scan import TILE_CLASSES

ROUNDING = 1e-5  # of sums of float32 terms, relative to the largest there may be
FAULTS = (*["none"] * 8, "offset", "classes", "k", "shape")


PROBLEM = {
    "n": SIZES,
    "d": SIZES,
    "classes": SIZES,
    "row_offset": st.sampled_from([0, 0, 0, 1, 5]),
    "use_bias": st.booleans(),
    "normalize": st.booleans(),
    "numbers": st.sampled_from(NUMBERS),
    "gradients": st.sampled_from(GRADIENTS),
    "seed": SEEDS,
}


@fuzz(reduction=st.sampled_from([*REDUCTIONS, "none"]), fault=st.sampled_from(FAULTS), huge=HUGE, **PROBLEM)
def dense_scan_op(
    n, d, classes, row_offset, use_bias, normalize, reduction, numbers, gradients, fault, huge, seed
):
    arrays, classes = Arrays(seed), max(classes, 1)
    if n * classes * d > 1 << 19:
        n = 1 + n % 17
    num_rows = row_offset + classes + arrays.pick([0, 2])
    table = arrays.numbers((num_rows, d), "normal" if normalize else numbers)
    query, bias = arrays.numbers((n, d), numbers), arrays.numbers((classes if use_bias else 0,))
    exclude = arrays.ids((n, arrays.pick([0, 1, 3])), classes, low=-1)
    k = int(arrays.random.integers(0, classes + 1))
    attributes = {"num_classes": classes, "row_offset": row_offset, "normalize": normalize}
    if fault == "offset":
        attributes["row_offset"] = arrays.pick([len(table) - classes + 1, huge])
    elif fault == "classes":
        attributes["num_classes"] = arrays.pick([len(table) - row_offset + 1, huge])
    elif fault == "k":
        k = arrays.pick([-1, classes + 1, 2**31 - 1, -(2**31)])
    elif fault == "shape":
        bias = arrays.numbers((classes + 1,))
    valid, (variable, table) = fault == "none", arrays.table(table)
    given = arrays.tensor(query), variable.handle, arrays.tensor(bias)
    ops = library.load()
    best = {"k": k, "exclude": arrays.tensor(exclude)}
    found = attempt(valid, ops.tfxc_dense_scan, *given, **best, reduction=reduction, **attributes)
    upstream = arrays.gradient((n,), gradients)
    of_reduced = None
    if reduction != "none":
        reduced = arrays.numbers((n,)) if found is None else found.reduced
        options = {"reduction": reduction, **attributes}
        takes, op = valid or fault == "k", ops.tfxc_dense_scan_grad
        of_reduced = attempt(takes, op, *given, reduced=reduced, reduced_gradient=upstream, **options)
    if valid and numbers != "non-finite":
        rows = table[row_offset : row_offset + classes]
        options = {"normalize": normalize, "reduction": None if reduction == "none" else reduction}
        check(query, rows, bias, exclude, k, options, found, upstream, of_reduced, row_offset)


def check(query, rows, bias, exclude, k, options, found, upstream, of_reduced, row_offset):
    wide = [tf.constant(part, tf.float64) for part in (query, rows, bias)]

    def total_of(rows, options):
        reduced, scores, _ = dense_scan_reference(wide[0], rows, wide[2], k=k, exclude=exclude, **options)
        return tf.reduce_sum(reduced * upstream), reduced, scores

    with tf.GradientTape(persistent=True) as tape:
        tape.watch(wide)
        total, reduced, scores = total_of(wide[1], options)
        # The part that is taken away along a row leaves the rounding errors of all there was.
        along, *_ = total_of(directions(wide[1]), {**options, "normalize": False})
    close(found.reduced, reduced, len(rows))
    close(found.scores, scores, 1)
    if of_reduced is not None:
        zero = tf.UnconnectedGradients.ZERO
        wanted = tape.gradient(total, wide, unconnected_gradients=zero)
        whole = wanted if not options["normalize"] else tape.gradient(along, wide, unconnected_gradients=zero)
        of_rows = of_reduced.table_gradient[row_offset : row_offset + len(rows)]
        num_terms = 10 + (terms_of_reduced(found.reduced) if options["reduction"] == "logsumexp" else 0)
        found = of_reduced.query_gradient, of_rows, of_reduced.bias_gradient
        for got, want, size in zip(found, wanted, whole, strict=True):
            if np.isfinite(want).all():  # a row without a direction
                close(got, want, num_terms, size)


def terms_of_reduced(reduced):
    """The rounding of the log-sum-exp, which a gradient is given in float32, in terms of ``ROUNDING``.

    A probability exp(logit - reduced) is off by so much, and where logits are in the thousands that is most
    of its error.
    """
    return float(np.spacing(np.abs(np.asarray(reduced)).max(initial=1.0))) / ROUNDING


def directions(rows):
    return rows / tf.stop_gradient(tf.maximum(tf.norm(rows, axis=1, keepdims=True), 1e-12))


@fuzz(
    threshold=st.sampled_from([1e-37, 2**-12, 0.02, 0.5, 0.9999]),
    fault=st.sampled_from([*["none"] * 8, "offset", "shape", "maxima", "more", "threshold"]),
    **PROBLEM,
)
def filtered_dense_scan(
    n, d, classes, row_offset, use_bias, normalize, numbers, gradients, threshold, fault, seed
):
    arrays, classes = Arrays(seed), 3 * max(classes, 1)
    if n * classes * d > 1 << 19:
        n = 1 + n % 17
    table = arrays.numbers((row_offset + classes, d), "normal" if normalize else numbers)
    query, bias = arrays.numbers((n, d), numbers), arrays.numbers((classes if use_bias else 0,))
    attributes = {"num_classes": classes, "row_offset": row_offset, "normalize": normalize}
    attributes["reduction"] = "logsumexp"
    ops, (variable, table) = library.load(), arrays.table(table)
    given = arrays.tensor(query), variable.handle, arrays.tensor(bias)
    none = {"k": 0, "exclude": np.zeros((n, 0), np.int32)}
    found = call(ops.tfxc_dense_scan, *given, **none, with_tile_maxima=True, **attributes)
    upstream, maxima = arrays.gradient((n,), gradients), found.tile_maxima.numpy()
    reduced, log_threshold = found.reduced, np.log(np.float32(threshold))
    if fault == "offset":
        attributes["row_offset"] += 1
    elif fault == "shape":
        reduced = tf.zeros([n + 1])
    elif fault == "maxima":
        maxima = np.pad(maxima, arrays.pick([((0, 1), (0, 0)), ((0, 0), (0, 1))]))
    elif fault == "threshold":
        log_threshold = arrays.pick([0.0, 1.0, float("nan"), float("inf")])
    num_more = arrays.pick([0, 1, 5])
    more_rows = arrays.numbers((num_more, d + (fault == "more")))
    attributes |= {"reduced": reduced, "reduced_gradient": upstream, "tile_maxima": arrays.tensor(maxima)}
    more = {
        "more_ids": arrays.ids((num_more,), classes),
        "more_row_gradients": arrays.tensor(more_rows),
        "more_bias_gradients": arrays.numbers((num_more if use_bias else 0,)),
    }
    op = ops.tfxc_dense_scan_filtered_grad
    of_reduced = attempt(fault == "none", op, *given, **more, log_threshold=log_threshold, **attributes)
    if fault == "none" and numbers != "non-finite":
        rows = table[row_offset:]
        left = ~(maxima < reduced.numpy() + log_threshold)
        last = len(of_reduced.ids) - num_more
        np.testing.assert_array_equal(of_reduced.row_gradients[last:], more_rows)
        found = of_reduced.query_gradient, *(part[:last] for part in of_reduced[1:])
        check_filtered(query, rows, bias, normalize, upstream, reduced.numpy(), left, found)


def check_filtered(query, rows, bias, normalize, upstream, reduced, left, found):
    wide = [tf.constant(part, tf.float64) for part in (query, rows, bias)]
    of_classes = np.repeat(left, TILE_CLASSES, axis=0)[: len(rows)]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(wide)
        vectors = tf.math.l2_normalize(wide[1], 1, epsilon=1e-24) if normalize else wide[1]
        logits = tf.matmul(wide[0], vectors, transpose_b=True)
        logits = logits + wide[2] if len(bias) else logits
        slopes = tf.nn.softmax(logits) * of_classes.T * upstream[:, np.newaxis]
        total = tf.reduce_sum(tf.stop_gradient(slopes) * logits)
        products = tf.matmul(wide[0], directions(wide[1]), transpose_b=True)
        along = tf.reduce_sum(tf.stop_gradient(slopes) * products)
    zero = tf.UnconnectedGradients.ZERO
    wanted = tape.gradient(total, wide, unconnected_gradients=zero)
    of_query, of_rows, of_bias = (part.numpy() for part in wanted)
    whole = tape.gradient(along if normalize else total, wide, unconnected_gradients=zero)
    ids = np.flatnonzero(of_classes.any(1))
    wanted = of_query, ids, of_rows[ids], of_bias[ids] if len(bias) else of_bias
    np.testing.assert_array_equal(found[1], ids)
    sizes = whole[0], ids, whole[1], whole[2]
    for got, want, size in zip(found, wanted, sizes, strict=True):
        if np.isfinite(want).all():  # a row without a direction
            close(got, want, 10 + terms_of_reduced(reduced), size)


def close(got, want, num_terms, size=0.0):
    want, size = np.asarray(want), np.asarray(size)
    finite = np.isfinite(want)
    largest = max(np.abs(want[finite]).max(initial=1.0), np.abs(size[np.isfinite(size)]).max(initial=0.0))
    np.testing.assert_array_equal(np.isfinite(got), finite)
    error = ROUNDING * largest * num_terms
    np.testing.assert_allclose(np.asarray(got)[finite], want[finite], rtol=ROUNDING, atol=error)
