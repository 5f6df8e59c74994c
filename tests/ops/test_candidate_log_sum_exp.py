import numpy as np
import pytest
import tensorflow as tf
from candidate_checks import expected_scores
from candidate_checks import problem as candidate_problem
from kernel_checks import EVERY_SIZE, both_ways, without_kernel

from tfxc.ops import library
from tfxc.ops.candidate_log_sum_exp import candidate_log_sum_exp


@pytest.fixture(params=both_ways(candidate_log_sum_exp))
def fold(request):
    return request.param


def problem(*shape, **sizes):
    *arrays, ids = candidate_problem(*shape, **sizes)
    random = np.random.default_rng(ids.size)
    offsets = random.normal(size=ids.shape).astype(np.float32)
    offsets[random.random(offsets.shape) < 0.1] = -np.inf
    return *arrays, ids, offsets


def expected(table, query, label_ids, class_ids, offsets, upstream, *options):
    ids = np.concatenate([label_ids, class_ids], 1)
    scores, *_ = expected_scores(table, query, ids, np.zeros(ids.shape), *options)
    label_scores, logits = np.split(scores, [label_ids.shape[1]], 1)
    logits = np.where(class_ids >= 0, logits + offsets, -np.inf)
    log_sum = np.maximum(np.logaddexp.reduce(logits, 1, keepdims=True), -1e30)
    of_offsets = np.exp(logits - log_sum) * upstream[1]
    of_scores = np.concatenate([upstream[0], of_offsets], 1)
    _, of_query, of_table = expected_scores(table, query, ids, of_scores, *options)
    return label_scores, log_sum, of_query, of_offsets, of_table


def upstream_of(label_ids):
    random = np.random.default_rng(1)
    shapes = label_ids.shape, (len(label_ids), 1)
    return [random.normal(size=shape).astype(np.float32) for shape in shapes]


def results(fold, table, query, label_ids, class_ids, offsets, upstream, **options):
    query, offsets = tf.constant(query), tf.constant(offsets)
    with tf.GradientTape() as tape:
        tape.watch([query, offsets])
        made = fold(table, query, label_ids, class_ids, offsets, **options)
    return *made, *tape.gradient(made, [query, offsets, table], upstream)


def check(fold, arrays, upstream=None, normalize=False, row_offset=0, tolerance=2e-5, wrap=lambda f: f):
    upstream = upstream_of(arrays[2]) if upstream is None else upstream
    table = tf.Variable(arrays[0])
    options = {"normalize": normalize, "row_offset": row_offset}
    found = wrap(lambda: results(fold, table, *arrays[1:], upstream, **options))()
    assert isinstance(found[-1], tf.IndexedSlices)
    wanted = expected(*arrays, upstream, normalize, row_offset)
    for ours, theirs in zip((*found[:-1], tf.convert_to_tensor(found[-1])), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
@pytest.mark.parametrize(
    ("shape", "normalize", "row_offset"),
    [
        ((1, 1, 1, 1, 1), False, 0),
        ((9, 16, 1, 3, 6), False, 2),
        ((11, 17, 4, 2, 5), True, 3),
        ((30, 100, 33, 1, 140), True, 0),
    ],
)
def test_values_and_gradients(fold, wrap, shape, normalize, row_offset):
    check(fold, problem(*shape, row_offset=row_offset), normalize=normalize, row_offset=row_offset, wrap=wrap)


@pytest.mark.kernels
@EVERY_SIZE
@pytest.mark.parametrize("place", ["width", "queries", "labels", "candidates"])
def test_one_gradient_at_every_size(place, size):
    sizes = {"rows": 23, "width": 5, "queries": 4, "labels": 2, "candidates": 3, place: size}
    arrays = problem(*sizes.values())
    of_scores, of_sums = (np.zeros_like(one) for one in upstream_of(arrays[2]))
    of_sums.flat[-1:] = 1.5
    check(candidate_log_sum_exp, arrays, (of_scores, of_sums))
    of_scores.flat[-1:], of_sums[:] = 2.0, 0.0
    check(candidate_log_sum_exp, arrays, (of_scores, of_sums))


@pytest.mark.parametrize(("queries", "labels", "candidates"), [(0, 2, 3), (3, 2, 0), (3, 0, 3), (3, 0, 0)])
def test_nothing_to_score(fold, queries, labels, candidates):
    check(fold, problem(5, 4, queries, labels, candidates))


def test_empty_slots_touch_no_class(fold):
    table = tf.Variable(tf.ones([6, 2]))
    labels, ids, offsets = [[1], [-1]], [[2, -1, 3], [-1, -1, 4]], np.float32([[0.0, 0.0, -np.inf]] * 2)
    found = results(fold, table, tf.ones([2, 2]), labels, ids, offsets, [tf.ones([2, 1])] * 2)
    np.testing.assert_allclose(found[1], [[2.0], [-1e30]])
    np.testing.assert_allclose(found[2], [[2.0, 2.0], [0.0, 0.0]])
    assert sorted(set(found[-1].indices.numpy().tolist())) == [1, 2]


@pytest.mark.parametrize("shift", [-1e4, 1e4])
def test_large_scores_do_not_overflow(fold, shift):
    arrays = problem(9, 4, 3, 1, 7)
    arrays[-1][...] += shift
    check(fold, arrays, tolerance=1e-3)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_stays_in_its_query(fold, value):
    arrays = problem(9, 4, 3, 1, 7)
    arrays[3][...], arrays[-1][...] = 2, 0.0
    arrays[-1][1, 5] = value
    found = results(fold, tf.Variable(arrays[0]), *arrays[1:], upstream_of(arrays[2]))
    assert not np.isfinite(found[1][1])
    assert np.isfinite(np.delete(found[1].numpy(), 1)).all()
    assert np.isfinite(np.delete(found[2].numpy(), 1, axis=0)).all()


@pytest.mark.kernels
def test_a_lone_nan_is_not_taken_for_nothing():
    log_sum = candidate_log_sum_exp(tf.Variable([[1.0]]), [[1.0]], [[0]], [[0]], [[np.nan]])[1]
    assert np.isnan(log_sum[0, 0])


@pytest.mark.kernels
def test_a_bfloat16_table_is_read_as_it_is():
    arrays = problem(30, 24, 9, 2, 20)
    half = tf.cast(arrays[0], tf.bfloat16)
    upstream = upstream_of(arrays[2])
    wide = tf.Variable(tf.cast(half, tf.float32))
    found = results(candidate_log_sum_exp, tf.Variable(half), *arrays[1:], upstream)
    wanted = results(candidate_log_sum_exp, wide, *arrays[1:], upstream)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(tf.convert_to_tensor(ours), tf.convert_to_tensor(theirs))


@pytest.mark.long
@pytest.mark.kernels
def test_skewed_classes_at_full_size_over_several_threads():
    random = np.random.default_rng(0)
    ids = np.minimum(random.zipf(1.2, size=(512, 101)) - 1, 399_999).astype(np.int32)
    table = tf.Variable(random.normal(size=(400_000, 16)).astype(np.float32) / 4)
    given = random.normal(size=(512, 16)).astype(np.float32), ids[:, :1], ids[:, 1:], ids[:, 1:] * -1e-6
    upstream = upstream_of(ids[:, :1])
    ours, theirs = (
        results(fold, table, *given[:3], given[3].astype(np.float32), upstream)
        for fold in (candidate_log_sum_exp, without_kernel(candidate_log_sum_exp))
    )
    for one, other in zip(ours[:-1], theirs[:-1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    one, other = (tf.convert_to_tensor(gradient) for gradient in (ours[-1], theirs[-1]))
    np.testing.assert_allclose(one, other, rtol=1e-3, atol=2e-4)  # hundreds of terms in the first rows


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_a_table_that_changed_meanwhile_changes_no_gradient(fold, wrap):
    arrays = problem(30, 8, 6, 2, 5)
    upstream = upstream_of(arrays[2])
    table, query, offsets = tf.Variable(arrays[0]), tf.constant(arrays[1]), tf.constant(arrays[4])

    def gradients():
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([query, offsets])
            made = fold(table, query, *arrays[2:4], offsets)
        of_table = tf.convert_to_tensor(tape.gradient(made, table, upstream))
        table.assign_sub(of_table)
        return *tape.gradient(made, [query, offsets], upstream), of_table

    wanted = expected(*arrays, upstream)[2:]
    for ours, theirs in zip(wrap(gradients)(), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("shape", [(), (6, 1), (1, 5)])
@pytest.mark.parametrize("is_known", [True, False])
def test_offsets_broadcast(fold, shape, is_known):
    table, query, label_ids, class_ids, _ = problem(30, 8, 6, 2, 5)
    offsets = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    variable = tf.Variable(table)

    @tf.function(input_signature=[tf.TensorSpec(shape if is_known else None)])
    def folded(offsets):
        return fold(variable, query, label_ids, class_ids, offsets)

    every = np.broadcast_to(offsets, class_ids.shape)
    wanted = expected(table, query, label_ids, class_ids, every, upstream_of(label_ids))[:2]
    for ours, theirs in zip(folded(offsets), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


def test_bad_input_is_named(fold):
    table, query, ids = tf.Variable(tf.ones([5, 2])), tf.ones([2, 2]), tf.zeros([2, 3], tf.int32)
    for bad_labels, bad_ids, by_op, bad in (ids, ids - 2, "class_ids", -2), (ids + 5, ids, "label_ids", 5):
        message = rf"{by_op}\[0, 0\] is {bad}, but there are 5 classes|class_ids: the id {bad} at"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            fold(table, query, bad_labels, bad_ids, tf.zeros([2, 3]))
    floats = tf.zeros([2, 3])
    for name, given in {"label_ids": (floats, ids), "class_ids": (ids, floats)}.items():
        with pytest.raises(ValueError, match=f"{name} must be int32"):
            fold(table, query, *given, floats)
    wide = np.full((2, 3), 2**32 + 1)
    for name, given in {"label_ids": (wide, ids), "class_ids": (ids, wide)}.items():
        with pytest.raises(ValueError, match=f"{name} must fit into int32, but hold {2**32 + 1}"):
            fold(table, query, *given, floats)
    with pytest.raises(ValueError, match="label_ids"):
        fold(table, query, ids[:1], ids, tf.zeros([2, 3]))
    with pytest.raises(ValueError, match=r"offsets must have the shape of class_ids.*\(2, 2\) and \(2, 3\)"):
        fold(table, query, ids, ids, tf.zeros([2, 2]))
    with pytest.raises(ValueError, match="query must be"):
        fold(table, tf.ones([2, 3]), ids, ids, tf.zeros([2, 3]))


@pytest.mark.kernels
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("label_vectors", tf.zeros([2, 1, 3]), r"label_vectors must have shape \[2,1,2\]"),
        ("shares", tf.zeros([2, 4]), "at most 3 columns"),
        ("shares", tf.zeros([1, 2]), "a row for each of 2 queries"),
        ("mean", tf.zeros([2, 3]), r"mean must have shape \[2,2\]"),
        ("label_gradient", tf.zeros([2, 2]), r"label_gradient must have shape \[2,1\]"),
        ("sum_gradient", tf.zeros([1, 1]), r"sum_gradient must have shape \[2,1\]"),
        ("slots", tf.constant([2 << 32], tf.uint64), r"slots\[0\] is slot 0 of row 2"),
        ("slots", tf.constant([1 << 32 | 99], tf.uint64), r"slots\[0\] is slot 99 of row 1"),
        ("slots", tf.constant([1 << 32, 1 << 32], tf.uint64), r"slots\[1\].*ascending"),
        # An empty slot has no row, not the one before class 0.
        ("slots", tf.constant([5], tf.uint64), r"slots\[0\] is slot 5 of row 0"),
    ],
)
def test_the_gradient_checks_what_it_is_given(name, value, message):
    given = {
        "query": tf.ones([2, 2]),
        "class_ids": tf.constant([[0, 0, 0], [0, 0, -1]]),
        "label_vectors": tf.zeros([2, 1, 2]),
        "shares": tf.zeros([2, 2]),
        "mean": tf.zeros([2, 2]),
        "slots": tf.constant([1 << 32, 1 << 32 | 1], tf.uint64),
        "label_gradient": tf.zeros([2, 1]),
        "sum_gradient": tf.zeros([2, 1]),
        name: value,
    }
    grad = library.load().tfxc_candidate_log_sum_exp_grad
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        grad(tf.Variable(tf.ones([5, 2])).handle, **given, normalize=False, row_offset=1)
