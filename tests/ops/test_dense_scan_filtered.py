import numpy as np
import pytest
import tensorflow as tf
from dense_scan_checks import Problem, close
from kernel_checks import EVERY_SIZE

from tfxc.ops import library
from tfxc.ops.dense_scan import TILE_CLASSES, dense_scan_filtered_gradient

pytestmark = pytest.mark.kernels


def check_filtered(problem, threshold):
    found, want = problem.filtered(threshold), problem.expected_filtered(threshold)
    np.testing.assert_array_equal(found[1], want[1])
    for one, other in zip(found, want, strict=True):
        close(one, other, rtol=1e-4)
    return want[1]


@EVERY_SIZE
def test_every_size(size):
    check_filtered(Problem(5, 300, size), 0.02)
    check_filtered(Problem(size, 500 - size, 6, use_bias=True, row_offset=2, scale=3), 0.1)
    check_filtered(Problem(7, size, 6, normalize=True, row_offset=1), 0.05)


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("threshold", [2**-12, 0.02, 0.3])
def test_options(threshold, normalize, use_bias):
    options = {"use_bias": use_bias, "normalize": normalize, "scale": (12 if normalize else 2) / np.sqrt(20)}
    assert len(check_filtered(Problem(100, 1500, 20, row_offset=3, **options), threshold)) > 0


def test_leaves_out_tiles_and_queries_of_tiles():
    problem = Problem(60, 3000, 32)
    near = np.repeat([5, 100, 2999], 20)
    problem.query[:] = 3 * problem.rows[near]
    ids = check_filtered(problem, 0.2)
    assert {*(ids // TILE_CLASSES)} == {*(near // TILE_CLASSES)}


def test_by_more_queries_than_one_pass_takes():
    problem = Problem(4200, 330, 4, use_bias=True, normalize=True, scale=3)
    problem.query[4080:] = 0.0
    problem.query[4100] = 9 * problem.rows[300]
    check_filtered(problem, 0.15)


def test_by_next_to_nothing_is_exact():
    problem = Problem(70, 1000, 20, use_bias=True, row_offset=2)
    reduced, _, _ = problem.scan(reduction="logsumexp")
    of_query, of_table, of_bias = problem.gradient(reduced, "logsumexp")
    found = problem.filtered(1e-40)
    np.testing.assert_array_equal(found[1], np.arange(1000))
    # The queries of a tile are summed in the same order; so are those of the whole pass.
    for one, other in zip(found[::2], (of_query, of_table[2:1002]), strict=True):
        close(one, other, rtol=1e-6)
    close(found[3], of_bias, rtol=1e-6)


def test_by_nearly_1_leaves_nothing():
    problem = Problem(20, 1000, 8, use_bias=True)
    of_query, ids, of_rows, of_bias = problem.filtered(0.999999)
    assert not of_query.numpy().any() and ids.shape == of_bias.shape == (0,) and of_rows.shape == (0, 8)


def test_nan_stays():
    problem = Problem(3, 500, 4)
    problem.table[120, 1].assign(np.nan)
    of_query, ids, of_rows, _ = problem.filtered(0.5)
    assert np.isnan(of_query).all() and len(ids) == 500 and np.isnan(of_rows[120]).all()
    alone = Problem(3, 500, 4)
    alone.query[1] = np.nan
    of_query, ids, _, _ = alone.filtered(0.5)
    assert np.isnan(of_query[1]).all() and np.isfinite(of_query[::2]).all() and len(ids) == 500


def test_without_queries():
    of_query, ids, of_rows, of_bias = Problem(0, 200, 3, use_bias=True).filtered(0.5)
    assert of_query.shape == of_rows.shape == (0, 3) and ids.shape == of_bias.shape == (0,)


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("threshold", [0.1, 0.999999])
def test_with_more_behind(threshold, use_bias):
    problem = Problem(20, 300, 8, use_bias=use_bias, scale=2)
    alone, found = problem.filtered(threshold), problem.filtered(threshold, num_more=5)
    np.testing.assert_array_equal(found[0], alone[0])
    for one, other, more in zip(found[1:], alone[1:], problem.more(5), strict=True):
        np.testing.assert_array_equal(one, tf.concat([other, more], 0))


def test_bad_input():
    problem = Problem(4, 200, 3)

    def gradient(maxima, more, threshold):
        given = *problem.given, tf.zeros([4]), problem.upstream, maxima, more
        return dense_scan_filtered_gradient(*given, threshold=threshold, **problem.options)

    none, two = problem.more(0), (problem.more(2)[0], tf.zeros([2, 4]), tf.zeros([0]))
    for maxima, more, threshold, message in (
        (tf.zeros([2, 4]), none, 0.5, r"tile_maxima must be \[3, 4\]"),
        (tf.zeros([3, 4]), none, 1.0, "a probability below 1, negative, but is 0"),
        (tf.zeros([3, 4]), two, 0.5, r"2 more classes must be \[2,3\] and \[0\]"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            gradient(maxima, more, threshold)
    options = {"exclude": tf.zeros([4, 0], tf.int32), "reduction": "none", "with_tile_maxima": True}
    with pytest.raises(tf.errors.InvalidArgumentError, match="with_tile_maxima needs a reduction"):
        library.load().tfxc_dense_scan(*problem.given, k=0, num_classes=200, **options)


@pytest.mark.parametrize("queries", [5, 16, 49])
def test_a_bias_that_no_exponential_holds_is_a_class_as_others_are(queries):
    problem = Problem(queries, 300, 6, use_bias=True)
    problem.bias[::7] = np.linspace(80, 200, 43)
    check_filtered(problem, 2**-12)
