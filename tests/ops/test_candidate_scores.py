import numpy as np
import pytest
import tensorflow as tf
from candidate_checks import expected_scores, problem
from kernel_checks import EVERY_SIZE, both_ways

from tfxc.ops import library
from tfxc.ops.candidate_scores import candidate_scores


@pytest.fixture(params=both_ways(candidate_scores))
def score(request):
    return request.param


def _gradients(score, table, query, ids, upstream, **options):
    with tf.GradientTape() as tape:
        tape.watch(query)
        scores = score(table, query, ids, **options)
        loss = tf.reduce_sum(scores * upstream)
    return scores, *tape.gradient(loss, [query, table])


def check(score, values, query, ids, upstream=None, in_graph=False, **options):
    if upstream is None:
        upstream = np.random.default_rng(1).normal(size=ids.shape).astype(np.float32)
    compute = tf.function(_gradients) if in_graph else _gradients
    found = compute(score, tf.Variable(values), tf.constant(query), ids, upstream, **options)
    assert isinstance(found[2], tf.IndexedSlices) and tuple(found[2].dense_shape) == values.shape
    expected = expected_scores(values, query, ids, upstream, **options)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(tf.convert_to_tensor(ours), theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize(
    ("shape", "normalize", "row_offset"),
    [
        ((1, 1, 1, 1), False, 0),
        ((9, 16, 1, 6), False, 2),
        ((11, 17, 4, 5), True, 3),
        ((30, 100, 33, 40), True, 0),
    ],
)
def test_scores_and_gradients(score, in_graph, shape, normalize, row_offset):
    arrays, options = problem(*shape, row_offset=row_offset), {"normalize": normalize}
    check(score, *arrays, in_graph=in_graph, row_offset=row_offset, **options)


@pytest.mark.kernels
@EVERY_SIZE
@pytest.mark.parametrize("place", ["width", "queries", "samples"])
@pytest.mark.parametrize("normalize", [False, True])
def test_one_gradient_at_every_size(place, size, normalize):
    sizes = {"rows": 23, "width": 5, "queries": 4, "samples": 3, place: size}
    values, query, ids = problem(*sizes.values())
    upstream = np.zeros(ids.shape, np.float32)
    upstream.flat[np.flatnonzero(ids >= 0)[-1:]] = 1.5
    check(candidate_scores, values, query, ids, upstream, normalize=normalize)


def test_zero_row_is_finite_and_gets_no_gradient_when_normalized(score):
    table = tf.Variable([[0.0, 0.0], [1e-13, 0.0]])
    found = _gradients(score, table, tf.constant([[2.0, 1.0]]), [[0, 1]], [[1.0, 1.0]], normalize=True)
    scores, query_gradient, table_gradient = found
    np.testing.assert_allclose(scores, [[0.0, 0.2]], rtol=1e-5)
    np.testing.assert_allclose(query_gradient, [[0.1, 0.0]], rtol=1e-5)
    np.testing.assert_array_equal(table_gradient.values, np.zeros((2, 2)))


@pytest.mark.parametrize("queries, samples", [(0, 3), (3, 0), (0, 0)])
def test_empty_batches(score, queries, samples):
    table = tf.Variable(tf.ones([4, 2]))
    ids = np.zeros((queries, samples), np.int32)
    scores, query_gradient, table_gradient = _gradients(score, table, tf.ones([queries, 2]), ids, ids * 1.0)
    assert scores.shape == (queries, samples)
    np.testing.assert_array_equal(query_gradient, np.zeros((queries, 2)))
    assert table_gradient.values.shape == (0, 2)


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("bad, row_offset", [(5, 0), (-2, 0), (4, 1), (-2, 1), (2**31 - 1, 1)])
def test_an_id_out_of_range_names_itself(score, in_graph, bad, row_offset):
    table = tf.Variable(tf.ones([5, 2]))
    compute = tf.function(score) if in_graph else score
    message = rf"class_ids(.|\n)*{bad}(.|\n)*{5 - row_offset}"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        compute(table, tf.ones([2, 2]), [[0, 1], [0, bad]], row_offset=row_offset)


def test_nan_stays_visible(score):
    table = tf.Variable([[np.nan], [1.0]])
    np.testing.assert_array_equal(score(table, [[1.0]], [[0, 1]]), [[np.nan, 1.0]])


def test_bad_arguments_are_refused(score):
    table, query, ids = tf.Variable(tf.ones([5, 2])), tf.ones([3, 2]), tf.zeros([3, 4], tf.int32)
    for given, message in (
        ((table.read_value(), query, ids), r"tf\.Variable.*weight\.value"),
        ((tf.Variable(tf.ones([5])), query, ids), r"\[L, D\].*\(5,\)"),
        ((table, query, tf.cast(ids, tf.int64)), "int64.*cast"),
        ((table, tf.ones([3, 3]), ids), r"\(3, 3\)"),
        ((table, tf.ones([2, 2]), ids), r"\(2, 2\)"),
        ((table, query, tf.zeros([3], tf.int32)), r"\[N, S\]"),
        ((table, query, ids, False, -1), "-1"),
    ):
        with pytest.raises(ValueError, match=message):
            score(*given)


def test_the_query_is_cast_to_the_tables_dtype(score):
    table = tf.Variable(tf.ones([2, 3]))
    assert score(table, tf.ones([1, 3], tf.float16), [[1]]).dtype == tf.float32
    wide = tf.Variable(tf.ones([2, 3], tf.float64))
    assert score(wide, tf.ones([1, 3]), [[1]]).dtype == tf.float64


def test_works_inside_xla():
    table, query = tf.Variable([[1.0, 2.0], [3.0, 4.0]]), tf.constant([[1.0, 1.0]])
    compute = tf.function(lambda: candidate_scores(table, query, tf.constant([[1, -1, 0]])), jit_compile=True)
    np.testing.assert_allclose(compute(), [[7.0, 0.0, 3.0]])


def test_reads_follow_program_order_in_a_graph(score):
    table = tf.Variable([[1.0]])

    @tf.function
    def step():
        before = score(table, [[1.0]], [[0]])
        table.assign([[2.0]])
        return before, score(table, [[1.0]], [[0]])

    before, after = step()
    assert (before.numpy().item(), after.numpy().item()) == (1.0, 2.0)


@pytest.mark.kernels
@pytest.mark.parametrize("normalize", [False, True])
def test_the_table_gradient_has_one_row_for_each_touched_class(normalize):
    ids = [[5, 2, -1], [2, 2, 7]]
    table = tf.Variable(np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32))
    upstream = [[1.0, 0.0, 3.0], [0.0, 0.0, 1.0]]
    given = candidate_scores, table, tf.ones([2, 4]), ids, upstream
    gradient = _gradients(*given, normalize=normalize, row_offset=1)[2]
    # An empty slot touches nothing; a class whose gradient happens to be 0 is still touched.
    assert gradient.indices.numpy().tolist() == [3, 6, 8]
    np.testing.assert_array_equal(gradient.values[0], np.zeros(4))


@pytest.mark.kernels
def test_reading_rows_leaves_dense_reads_free_of_copies():
    table = tf.Variable(tf.ones([5, 4]))
    _gradients(candidate_scores, table, tf.ones([1, 4]), [[0, 3]], [[1.0, 1.0]])
    first, second = (np.from_dlpack(table.read_value()).ctypes.data for _ in range(2))
    assert first == second


@pytest.mark.kernels
def test_the_op_checks_what_the_wrapper_cannot_see():
    ops, table, doubles = (
        library.load(),
        tf.Variable(tf.ones([5, 4])),
        tf.Variable(tf.ones([5, 4], tf.float64)),
    )
    given = {"table": table.handle, "query": tf.ones([1, 4]), "class_ids": [[0]], "normalize": False}
    for change, message in (
        ({"query": tf.ones([1, 3]), "row_offset": 0}, r"\[1,3\]"),
        ({"row_offset": 6}, "row_offset is 6"),
        ({"table": doubles.handle, "row_offset": 0}, "float32 or bfloat16"),
    ):
        with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=message):
            ops.tfxc_candidate_scores(**{**given, **change})
    with pytest.raises(tf.errors.InvalidArgumentError, match="shape of class_ids"):
        ops.tfxc_candidate_scores_grad(**given, gradient=[[1.0, 2.0]], row_offset=0)


@pytest.mark.parametrize("normalize", [False, True])
def test_a_bfloat16_table_gives_what_its_numbers_give_in_float32(score, normalize):
    table, query, ids = problem(30, 37, 20, 11, row_offset=2)
    half = tf.Variable(tf.constant(table, tf.bfloat16))
    wide = tf.Variable(tf.cast(half, tf.float32))
    upstream = np.random.default_rng(1).normal(size=ids.shape).astype(np.float32)
    options = {"normalize": normalize, "row_offset": 2}
    found, want = (
        _gradients(score, one, tf.constant(query), ids, upstream, **options) for one in (half, wide)
    )
    for one, other in zip(found[:2], want[:2], strict=True):
        assert one.dtype == tf.float32
        np.testing.assert_array_equal(one, other)
    assert found[2].values.dtype == tf.float32
    np.testing.assert_array_equal(found[2].indices, want[2].indices)
    np.testing.assert_array_equal(found[2].values, want[2].values)
