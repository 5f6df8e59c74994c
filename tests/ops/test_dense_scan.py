"""The pass over all classes of a dense head against its definition in float64, and what it promises."""

import numpy as np
import pytest
import tensorflow as tf
from kernel_sizes import EVERY_SIZE

from tfxc.ops import library
from tfxc.ops.dense_scan import REDUCTIONS, dense_scan, dense_scan_gradient, dense_scan_reference

pytestmark = pytest.mark.skipif(not library.use_compiled(), reason="needs the compiled ops")
EVERY_REDUCTION = pytest.mark.parametrize("reduction", REDUCTIONS)


class Problem:
    """A table with more rows than classes, queries, and the options of a head."""

    def __init__(self, queries, classes, dim, *, use_bias=False, normalize=False, row_offset=0, scale=1.0):
        random = np.random.default_rng(queries * classes + dim)
        self.rows = random.normal(size=(row_offset + classes + 1, dim)).astype(np.float32)
        self.query = (scale * random.normal(size=(queries, dim))).astype(np.float32)
        self.bias = random.normal(size=classes if use_bias else 0).astype(np.float32)
        self.upstream = random.normal(size=queries).astype(np.float32)
        self.exclude = random.integers(-1, classes, (queries, 3)).astype(np.int32)
        self.options = {"num_classes": classes, "row_offset": row_offset, "normalize": normalize}
        self.table = tf.Variable(self.rows)
        self.given = self.query, self.table.handle, self.bias

    def scan(self, **options):
        return dense_scan(*self.given, **self.options, **options)

    def gradient(self, reduced, reduction):
        return dense_scan_gradient(*self.given, reduced, self.upstream, reduction=reduction, **self.options)

    def expected(self, **options):
        """In float64: the results, and the gradients of the reduction."""
        first, normalize = self.options["row_offset"], self.options["normalize"]
        query, rows, bias = (tf.constant(part, tf.float64) for part in (self.query, self.rows, self.bias))
        with tf.GradientTape() as tape:
            tape.watch([query, rows, bias])
            classes = rows[first : first + self.options["num_classes"]]
            results = dense_scan_reference(query, classes, bias, normalize=normalize, **options)
            total = tf.reduce_sum(results[0] * self.upstream)
        zero = tf.UnconnectedGradients.ZERO
        return results, tape.gradient(total, [query, rows, bias], unconnected_gradients=zero)

    def scores_of(self, ids):
        """In float64: the logits of class ids [N, k], -inf for -1."""
        rows = self.rows[self.options["row_offset"] + ids].astype(np.float64)
        if self.options["normalize"]:
            rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
        bias = self.bias[ids] if len(self.bias) else 0.0
        return np.where(ids < 0, -np.inf, np.einsum("nkd,nd->nk", rows, self.query) + bias)


def close(got, want, rtol=2e-5):
    """Equal up to rounding, relative to the largest number."""
    want = np.asarray(want)
    largest = np.abs(want[np.isfinite(want)]).max(initial=1e-3)
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * largest)


def check(problem, reduction, k=0):
    reduced, scores, ids = problem.scan(reduction=reduction, k=k, exclude=problem.exclude)
    want, gradients = problem.expected(reduction=reduction, k=k, exclude=problem.exclude)
    close(reduced, want[0])
    close(scores, want[1])
    # The very classes, or others that float32 cannot tell from them.
    close(problem.scores_of(ids.numpy()), want[1])
    assert all(len({*row[row >= 0]}) == (row >= 0).sum() for row in ids.numpy())
    if reduction is not None:
        for one, other in zip(problem.gradient(reduced, reduction), gradients, strict=True):
            close(one, other, rtol=1e-4)


@EVERY_REDUCTION
@EVERY_SIZE
def test_every_width(size, reduction):
    check(Problem(5, 30, size), reduction, k=3)


@EVERY_REDUCTION
@EVERY_SIZE
def test_every_number_of_queries_and_classes(size, reduction):
    check(Problem(size, 200 - size, 6, use_bias=True, row_offset=2), reduction, k=1)
    check(Problem(7, size, 6, normalize=True, row_offset=1), reduction, k=1)


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("reduction", [*REDUCTIONS, None])
def test_options(reduction, normalize, use_bias):
    check(Problem(100, 1500, 20, use_bias=use_bias, normalize=normalize, row_offset=3), reduction, k=12)


def test_more_queries_than_one_pass_takes():
    check(Problem(4200, 130, 4, use_bias=True, normalize=True), "logsumexp", k=40)


@EVERY_REDUCTION
def test_huge_logits(reduction):
    problem = Problem(6, 120, 8, scale=1e4)
    reduced, _, _ = problem.scan(reduction=reduction)
    want, gradients = problem.expected(reduction=reduction)
    close(reduced, want[0])
    for one, other in zip(problem.gradient(reduced, reduction), gradients, strict=True):
        close(one, other, rtol=1e-3)


def test_the_lower_id_wins_and_nothing_else_ranks():
    rows = np.array([[1.0], [2.0], [2.0], [np.nan], [2.0], [-np.inf]], np.float32)
    table, options = tf.Variable(rows), {"num_classes": 6, "k": 6}
    _, scores, ids = dense_scan(np.ones([2, 1], np.float32), table.handle, tf.zeros([0]), **options)
    assert ids.numpy().tolist() == 2 * [[1, 2, 4, 0, -1, -1]]
    assert scores.numpy()[0].tolist() == [2, 2, 2, 1, -np.inf, -np.inf]
    exclude = tf.constant([[4, 1], [-1, 99]])
    _, _, ids = dense_scan(
        np.ones([2, 1], np.float32), table.handle, tf.zeros([0]), exclude=exclude, **options
    )
    assert ids.numpy().tolist() == [[2, 0, -1, -1, -1, -1], [1, 2, 4, 0, -1, -1]]


def test_ties_everywhere():
    random = np.random.default_rng(0)
    rows = random.integers(-2, 3, (5000, 3)).astype(np.float32)
    query = random.integers(-2, 3, (60, 3)).astype(np.float32)
    table = tf.Variable(rows)
    for k in (1, 7, 4000):
        _, scores, ids = dense_scan(query, table.handle, tf.zeros([0]), num_classes=5000, k=k)
        want = tf.math.top_k(query @ rows.T, k)
        np.testing.assert_array_equal(scores, want.values)
        np.testing.assert_array_equal(ids, want.indices)


def test_among_many_scores_of_zero_the_lowest_ids_win():
    table = tf.Variable(np.random.default_rng(0).normal(size=(20_000, 64)).astype(np.float32))
    for _ in range(300):  # whichever thread comes first
        _, scores, ids = dense_scan(tf.zeros([49, 64]), table.handle, tf.zeros([0]), num_classes=20_000, k=5)
        assert not scores.numpy().any() and (ids.numpy() == np.arange(5)).all()


def near_ties(random, count, dim):
    """Rows that bfloat16 cannot tell apart: a few directions, each with noise in the last bits of float32."""
    directions = random.normal(size=(7, dim))
    return directions[random.integers(0, 7, count)] * (1 + 1e-6 * random.normal(size=(count, dim)))


def below_float32(random, count, dim):
    """Rows of numbers, and of products with queries, that are too small for a normal float32."""
    return random.normal(size=(count, dim)) * 10.0 ** random.integers(-42, -30, (count, 1))


def of_all_sizes(random, count, dim):
    """Norms from tiny to infinite, some rows with NaN."""
    rows = random.normal(size=(count, dim)) * 10.0 ** random.integers(-20, 39, (count, 1))
    rows[random.integers(0, count, 9), 0] = np.nan
    return rows


def grows(random, count, dim):
    """Every class is better than all before it, so that every threshold comes too late."""
    return np.linspace(0.1, 1, count)[:, np.newaxis] * (1 + 0.01 * random.normal(size=(1, dim)))


@pytest.mark.parametrize(("use_bias", "normalize"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("dim", [7, 64])
@pytest.mark.parametrize("kind", [near_ties, below_float32, of_all_sizes, grows])
def test_many_queries_rank_to_the_bit_as_few_do(kind, dim, use_bias, normalize):
    """Many are ranked by a first look in bfloat16 where the processor has it, sixteen at most never are."""
    random = np.random.default_rng(0)
    with np.errstate(over="ignore"):
        rows = kind(random, 20_000, dim).astype(np.float32)
        queries = np.concatenate([random.normal(size=(30, dim)), rows[:19]]).astype(np.float32)
    bias = 1e-3 * random.normal(size=20_000 * use_bias).astype(np.float32)
    table = tf.Variable(rows)
    options = {"num_classes": 20_000, "normalize": normalize, "k": 10}
    _, scores, ids = dense_scan(queries, table.handle, bias, **options)
    for first in range(0, len(queries), 16):
        part = slice(first, first + 16)
        _, few_scores, few_ids = dense_scan(queries[part], table.handle, bias, **options)
        np.testing.assert_array_equal(ids[part], few_ids)
        np.testing.assert_array_equal(scores[part], few_scores)


@EVERY_REDUCTION
def test_nan_and_infinity_are_not_lost(reduction):
    problem = Problem(3, 50, 4)
    problem.table[20, 1].assign(np.nan)
    reduced, _, _ = problem.scan(reduction=reduction)
    assert np.isnan(reduced).all()
    _, of_rows, _ = problem.gradient(reduced, reduction)
    assert np.isnan(of_rows[20]).all()
    lowest = tf.Variable(tf.fill([9, 1], float("-inf")))
    reduced, _, _ = dense_scan(
        tf.ones([1, 1]), lowest.handle, tf.zeros([0]), num_classes=9, reduction="logsumexp"
    )
    assert float(reduced[0]) == float("-inf")


def test_rows_of_zeros_have_a_norm():
    problem = Problem(4, 40, 8, normalize=True)
    problem.table[7].assign(tf.zeros([8]))
    reduced, _, _ = problem.scan(reduction="logsumexp")
    assert np.isfinite(reduced).all()
    assert all(np.isfinite(part).all() for part in problem.gradient(reduced, "logsumexp"))


def test_no_query():
    problem = Problem(0, 9, 3, use_bias=True)
    reduced, scores, ids = problem.scan(reduction="softplus", k=2)
    assert reduced.shape == (0,) and scores.shape == ids.shape == (0, 2)
    of_query, of_rows, of_bias = problem.gradient(reduced, "softplus")
    assert of_query.shape == (0, 3) and not of_rows.numpy().any() and not of_bias.numpy().any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 10}, r"k must be in \[0, 9\]"),
        ({"k": -1}, r"k must be in \[0, 9\]"),
        ({"num_classes": 11}, "11 classes from row 0 on, but the table has 10 rows"),
        ({"row_offset": 2}, "9 classes from row 2 on"),
        ({"exclude": [[1]]}, r"exclude must be \[N, X\] for 4 queries"),
        ({"query": tf.zeros([4, 2])}, r"query \[N, D\].*\[4,2\]"),
        ({"bias": tf.zeros([5])}, r"bias \[L\] or \[0\].*\[5\]"),
    ],
)
def test_bad_input(change, message):
    problem = Problem(4, 9, 3)
    given = {"query": problem.query, "table": problem.table.handle, "bias": problem.bias, **problem.options}
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=message):
        dense_scan(**{**given, **change})
