import numpy as np
import pytest
import tensorflow as tf
from kernel_checks import reduced_by_hand
from long_cases import long_after
from sparse_head_checks import BY_NAME, Problem, check_gradients, check_reduction

from tfxc.losses import LOGSUMEXP, SOFTPLUS, SQUARED_HINGE
from tfxc.ops.sparse_head import sparse_head_candidates, sparse_head_logits, sparse_head_reduce

# N, E, L, K, bias, G: ones everywhere; parts of a tile; several tiles; no query; and in groups that divide L
# or do not, of several runs, of all classes
SHAPES = pytest.mark.parametrize(
    "shape",
    [
        *[(1, 1, 1, 1, True), (3, 7, 19, 3, False), (33, 50, 100, 7, True), (0, 5, 4, 2, True)],
        *[(230, 40, 301, 32, True, 2), (50, 30, 1143, 5, True, 20), (50, 21, 300, 17, True, 1000)],
    ],
)
REDUCTIONS = pytest.mark.parametrize("reduction", ["squared_hinge", "softplus", "logsumexp"])


@SHAPES
@pytest.mark.parametrize(("first", "last"), long_after(1, (0.3, 0.8), (0.0, 1.0), (0.5, 0.5)))
def test_logits(path, shape, first, last):
    problem = Problem(*shape)
    start, stop = (int(round(share * shape[2])) for share in (first, last))
    want = problem.logits[:, start:stop]
    upstream = np.random.default_rng(2).normal(size=want.shape).astype(np.float32)
    of_logits = np.zeros(problem.logits.shape)
    of_logits[:, start:stop] = upstream

    def total(query):
        logits = sparse_head_logits(query, *problem.given, start, stop, problem.group_size)
        np.testing.assert_allclose(logits, want, rtol=1e-4, atol=1e-5)
        return tf.reduce_sum(logits * upstream)

    check_gradients(problem, total, of_logits)


@pytest.mark.long
@pytest.mark.kernels
@pytest.mark.parametrize("size, group_size", [(199_941, 16), (200_016, 16), (199_941, 1)])
def test_logits_that_are_more_than_the_caches_hold(size, group_size):
    """Rows begin at every place of a line of the cache, the last run is short; or all begin at the same."""
    random = np.random.default_rng(0)
    weights = random.standard_normal((size, 2)).astype(np.float32)
    indices = random.integers(0, 9, (-(-size // group_size), 2)).astype(np.int32)
    query, bias = random.standard_normal((35, 9)).astype(np.float32), random.standard_normal(size)
    inputs = query[:, np.repeat(indices, group_size, axis=0)[:size]].astype(np.float64)
    given = tf.Variable(weights), tf.Variable(indices), tf.constant(bias, tf.float32)
    logits = sparse_head_logits(query, *given, 0, size, group_size)
    np.testing.assert_allclose(logits, np.sum(inputs * weights, axis=2) + bias, rtol=1e-4, atol=1e-5)


@SHAPES
@REDUCTIONS
def test_reductions(path, shape, reduction):
    problem, random = Problem(*shape), np.random.default_rng(3)
    sizes = len(problem.query), problem.ids.shape
    upstream, for_labels = (random.normal(size=size).astype(np.float32) for size in sizes)
    check_reduction(problem, reduction, upstream, for_labels)


@pytest.mark.parametrize("num_queries", long_after(3, 16, 17, 33, 8, 24, 32))
@pytest.mark.parametrize("group_size", [1, 2])
def test_a_label_learns_beyond_its_margin_for_all_other_queries(path, num_queries, group_size):
    """Class 0 has no gradient of its own, and one label; it stands in the first or in the last query."""
    weights, bias = tf.Variable([[1.0], [1.0]]), tf.Variable([-10.0, 0.0])
    indices = tf.Variable(tf.zeros([2 // group_size, 1], tf.int32))
    query = tf.constant(np.linspace(1, 2, num_queries, dtype=np.float32)[:, np.newaxis])
    beyond = 2 * (1 + query.numpy()[:, 0])
    for row in (0, num_queries - 1):
        labels = np.full((num_queries, 1), -1, np.int32)
        labels[row] = 0
        with tf.GradientTape() as tape:
            tape.watch(query)
            given = query, weights, indices, tf.convert_to_tensor(bias), labels, SQUARED_HINGE, group_size
            reduced, positives = sparse_head_reduce(*given)
            loss = tf.reduce_sum(reduced) + 3 * tf.reduce_sum(positives)
        of_query, of_weights, of_bias = tape.gradient(loss, [query, weights, bias])
        np.testing.assert_allclose(of_bias, [3, beyond.sum()], rtol=1e-6)
        np.testing.assert_allclose(of_weights[0, 0], 3 * query[row, 0], rtol=1e-6)
        np.testing.assert_allclose(of_query[:, 0], beyond + 3 * (np.arange(num_queries) == row), rtol=1e-5)


@SHAPES
def test_candidates(path, shape):
    problem = Problem(*shape[:4], False, *shape[5:])
    given = problem.weights, problem.indices, problem.ids, problem.group_size
    scores = sparse_head_candidates(problem.query, *given)
    np.testing.assert_allclose(scores, problem.chosen(), rtol=1e-4, atol=1e-5)
    upstream = np.random.default_rng(4).normal(size=problem.ids.shape).astype(np.float32)

    def total(query):
        return tf.reduce_sum(sparse_head_candidates(query, *given) * upstream)

    got = check_gradients(problem, total, problem.of_chosen(upstream))
    assert isinstance(got[1], tf.IndexedSlices)


@REDUCTIONS
@pytest.mark.parametrize("scale", [1e-3, 30.0])
def test_small_and_large_logits(path, reduction, scale):
    problem = Problem(5, 20, 3000, 6, True)
    problem.bias.assign(scale * problem.bias - (15.0 if scale < 1 else 0.0))
    problem.weights.assign(scale * problem.weights)
    logits = problem.query @ problem.dense.T * scale + problem.bias.numpy()
    reduced, _ = sparse_head_reduce(problem.query, *problem.given, problem.ids, BY_NAME[reduction])
    np.testing.assert_allclose(reduced, reduced_by_hand(logits.astype(np.float64), reduction)[0], rtol=2e-5)


def test_labels_beyond_their_margin_leave_no_gradient(path):
    """A positive's two gradients cancel exactly, and a class without gradient is not read."""
    weights, indices = tf.Variable([[3.0], [float("inf")], [-2.0]]), tf.Variable([[0], [1], [0]])
    query, labels = tf.constant([[1.0, -1.0]]), tf.constant([[0]])
    with tf.GradientTape() as tape:
        tape.watch(query)
        reduced, positives = sparse_head_reduce(query, weights, indices, tf.zeros([0]), labels, SQUARED_HINGE)
        loss = tf.reduce_sum(reduced) - tf.reduce_sum(tf.square(1.0 + positives))
    of_query, of_weights = tape.gradient(loss, [query, weights])
    assert float(of_query[0, 0]) == 0 and of_weights[:, 0].numpy()[[0, 2]].tolist() == [0, 0]


def test_classes_of_bias_minus_infinity_are_not_there(path):
    weights, indices = tf.Variable(tf.ones([40, 1])), tf.Variable(tf.zeros([40, 1], tf.int32))
    bias = np.full(40, -np.inf, np.float32)
    for kept in ([], [7], [0, 39]):
        own = bias.copy()
        own[kept] = 1.0
        reduced, _ = sparse_head_reduce([[2.0]], weights, indices, tf.constant(own), [[-1]], LOGSUMEXP)
        np.testing.assert_allclose(reduced, [3.0 + np.log(len(kept)) if kept else -np.inf], rtol=1e-6)


@REDUCTIONS
@pytest.mark.parametrize("num_queries", long_after(1, 33, 5, 16))
@pytest.mark.parametrize("group_size", [1, 16])
def test_a_bias_that_no_exponential_holds_is_a_class_as_others_are(path, reduction, num_queries, group_size):
    """What fills up a tile of queries has no logits but the biases."""
    problem, more = Problem(num_queries, 9, 40, 3, True, group_size), np.linspace(60, 200, 40)
    problem.bias.assign_add(more.astype(np.float32))
    problem.logits += more
    check_reduction(
        problem, reduction, np.ones(num_queries, np.float32), np.zeros_like(problem.ids, np.float32)
    )


@pytest.mark.kernels
def test_a_class_that_reads_nothing_needs_no_inputs():
    weights, indices = tf.Variable(tf.ones([3, 0])), tf.Variable(tf.ones([3, 0], tf.int32))
    bias = tf.constant([1.0, 2.0, 3.0])
    logits = sparse_head_logits(tf.ones([2, 0]), weights, indices, bias, 0, 3)
    np.testing.assert_array_equal(logits, [[1, 2, 3]] * 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="0 inputs"):
        sparse_head_logits(tf.ones([2, 0]), tf.Variable([[1.0]]), tf.Variable([[0]]), tf.zeros([0]), 0, 1)


@pytest.mark.kernels
def test_nan_is_not_hidden():
    weights, indices = tf.Variable([[np.nan], [0.0]]), tf.Variable([[0], [0]])
    for reduction in ("squared_hinge", "softplus", "logsumexp"):
        reduced, _ = sparse_head_reduce([[1.0]], weights, indices, tf.zeros([0]), [[1]], BY_NAME[reduction])
        assert np.isnan(reduced).all()


@pytest.mark.parametrize(
    ("bad", "traced"), long_after(2, (-1, False), (5, True), (-1, True), (5, False), (2**31 - 1, True))
)
@pytest.mark.parametrize("group_size", [1, 2])
def test_an_input_out_of_range(path, bad, traced, group_size):
    weights, indices = tf.Variable(tf.ones([3, 2])), tf.Variable([[0, 1], [2, bad], [3, 4]][: 4 - group_size])
    query, bias, labels = tf.ones([2, 5]), tf.zeros([3]), tf.fill([2, 1], group_size)
    calls = [
        lambda: sparse_head_logits(query, weights, indices, bias, 0, 3, group_size),
        lambda: sparse_head_reduce(query, weights, indices, bias, labels, SOFTPLUS, group_size),
        lambda: sparse_head_candidates(query, weights, indices, labels, group_size),
    ]
    for call in calls:
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"(?s)indices.*{bad}"):
            (tf.function(call) if traced else call)()


@pytest.mark.parametrize("bad", [-2, 3, 5])
def test_a_class_out_of_range(path, bad):
    weights, indices = tf.Variable(tf.ones([3, 1])), tf.Variable([[0], [1], [0]])
    given = tf.ones([1, 2]), weights, indices
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"class_ids.* {bad}\b"):
        sparse_head_candidates(*given, [[0, bad]])
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"(class_ids|labels).* {bad}\b"):
        sparse_head_reduce(*given, tf.zeros([0]), [[0, bad]], LOGSUMEXP)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Classes.* 4\b"):
        sparse_head_logits(*given, tf.zeros([0]), 0, 4)


def test_shapes_are_checked():
    weights, indices = tf.Variable(tf.ones([3, 2])), tf.Variable(tf.zeros([3, 2], tf.int32))
    with pytest.raises(ValueError, match="weights must be a tf.Variable float32"):
        sparse_head_logits(tf.ones([1, 2]), tf.ones([3, 2]), indices, tf.zeros([0]), 0, 1)
    with pytest.raises(ValueError, match="indices must be a tf.Variable int32"):
        sparse_head_logits(tf.ones([1, 2]), weights, weights, tf.zeros([0]), 0, 1)
    with pytest.raises(ValueError, match=r"their shapes are \(2,\)"):
        sparse_head_logits(tf.ones([2]), weights, indices, tf.zeros([0]), 0, 1)
    with pytest.raises(ValueError, match=r"their shapes are.*\(2,\)"):
        sparse_head_logits(tf.ones([1, 2]), weights, indices, tf.zeros([2]), 0, 1)
    with pytest.raises(ValueError, match="Class ids must be int32"):
        sparse_head_candidates(tf.ones([2, 2]), weights, indices, [[0]])
    with pytest.raises(ValueError, match=f"Class ids must fit into int32, but hold {2**32}"):
        sparse_head_candidates(tf.ones([1, 2]), weights, indices, [[2**32]])
    with pytest.raises(ValueError, match=r"indices \[2, K\] for groups of 2"):
        sparse_head_candidates(tf.ones([1, 2]), weights, indices, [[0]], group_size=2)
    with pytest.raises(ValueError, match="group_size must be an integer"):
        sparse_head_candidates(tf.ones([1, 2]), weights, indices, [[0]], group_size=0)
