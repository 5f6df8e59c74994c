import functools

import numpy as np
import pytest
import tensorflow as tf
from kernel_checks import EVERY_SIZE, both_ways, without_kernel
from long_cases import long_after

from tfxc.hashing.universal import UniversalHash, universal_coefficients
from tfxc.ops.mach_decode import DECODERS, class_scores, mach_top_k, mach_top_k_probed

every_class = functools.partial(mach_top_k, prune=False)
EVERY_WAY = pytest.mark.parametrize(
    "top_k", [*both_ways(mach_top_k), pytest.param(every_class, marks=pytest.mark.kernels, id="every class")]
)


@pytest.fixture(params=DECODERS)
def decoder(request):
    return request.param


def make_family(num_classes, num_buckets, num_repetitions, seed=0):
    coefficients = universal_coefficients(num_classes, range(num_repetitions), seed)
    return UniversalHash(tf.constant(coefficients), num_classes, num_buckets)


def make_tables(family, num_queries, power=1, seed=1):
    """Random scores; the higher the power, the fewer of them are large."""
    shape = (num_queries, family.coefficients.shape[0], family.num_buckets)
    return np.random.default_rng(seed).random(shape).astype(np.float32) ** power


def problem(num_classes, num_buckets, num_repetitions, num_queries, power=1):
    family = make_family(num_classes, num_buckets, num_repetitions)
    return family, make_tables(family, num_queries, power)


NUMPY_DECODERS = {"mean": np.mean, "min": np.min, "median": np.median}


def numpy_scores(tables, family, decoder):
    """Scores of all classes [B, L] in float64."""
    buckets = family.buckets(tf.range(family.num_keys)).numpy()
    values = [tables[:, r, own].astype(np.float64) for r, own in enumerate(buckets)]
    return NUMPY_DECODERS[decoder](values, axis=0)


def check(found, scores, k, exclude=None):
    got_scores, got = (tensor.numpy() for tensor in found)
    scores = np.array(scores)
    for row, ids in enumerate([] if exclude is None else exclude):
        scores[row, ids[ids >= 0]] = -np.inf
    assert got.dtype == np.int32 and got.shape == got_scores.shape == (len(scores), k)
    want = -np.sort(-scores, axis=1)[:, :k]
    np.testing.assert_allclose(got_scores, want, rtol=2e-6)
    np.testing.assert_array_equal(got >= 0, np.isfinite(want))
    own = np.take_along_axis(scores, np.maximum(got, 0), 1)
    np.testing.assert_allclose(np.where(got >= 0, own, -np.inf), want, rtol=2e-6)
    for row in got:
        assert len(set(row[row >= 0])) == (row >= 0).sum()


def test_class_scores(decoder):
    family, tables = problem(40, 6, 3, 4)
    ids = np.random.default_rng(0).integers(40, size=(4, 5))
    want = numpy_scores(tables, family, decoder)
    found = class_scores(tf.constant(tables), family, ids, decoder)
    np.testing.assert_allclose(found, np.take_along_axis(want, ids, 1), rtol=1e-6)
    np.testing.assert_allclose(class_scores(tables, family, ids[0], decoder), want[:, ids[0]], rtol=1e-6)


@EVERY_WAY
@pytest.mark.parametrize(
    ("num_classes", "num_buckets", "num_repetitions", "num_queries"),
    [(1, 1, 1, 1), (7, 20, 2, 5), (40, 6, 4, 3), (1000, 64, 3, 33)],
)
def test_the_best_of_all(top_k, decoder, num_classes, num_buckets, num_repetitions, num_queries):
    family, tables = problem(num_classes, num_buckets, num_repetitions, num_queries)
    scores = numpy_scores(tables, family, decoder)
    for k in {1, min(5, num_classes), num_classes}:
        check(top_k(tf.constant(tables), family, k, decoder=decoder), scores, k)


@pytest.mark.kernels
@EVERY_SIZE
@pytest.mark.parametrize("place", ["classes", "buckets", "repetitions", "queries"])
def test_the_best_at_every_size(place, size):
    sizes = {"classes": 70, "buckets": 9, "repetitions": 3, "queries": 2, place: size}
    family, tables = problem(*sizes.values(), 9)
    k = min(size, sizes["classes"])
    for decoder in DECODERS:
        want = numpy_scores(tables, family, decoder)
        for prune in (True, False):
            check(mach_top_k(tf.constant(tables), family, k, decoder=decoder, prune=prune), want, k)


@pytest.mark.kernels
@pytest.mark.parametrize(("power", "num_queries"), long_after(3, (1, 5), (20, 1), (80, 5), (1, 1), (80, 1)))
def test_many_classes_with_flat_and_peaked_scores(decoder, power, num_queries):
    """More classes than a thread takes at a time. Peaked, the best buckets decide; flat, they do not."""
    family, tables = problem(150_001, 3000, 6, num_queries, power)
    found = mach_top_k(tf.constant(tables), family, 4, decoder=decoder)
    check(found, numpy_scores(tables, family, decoder), 4)
    every = every_class(tables, family, 4, decoder=decoder)
    tf.nest.map_structure(np.testing.assert_array_equal, found, every)


@pytest.mark.kernels
def test_a_query_is_ranked_alike_in_any_company():
    family, tables = problem(80_000, 500, 4, 40, 3)
    scores, ids = mach_top_k(tables, family, 7)
    for row in (0, 15, 16, 39):
        alone = mach_top_k(tables[row : row + 1], family, 7)
        np.testing.assert_array_equal(alone[0][0], scores[row])
        np.testing.assert_array_equal(alone[1][0], ids[row])


@EVERY_WAY
@pytest.mark.parametrize("k", [1, 9, 60])
def test_equal_scores_go_to_the_lower_id(top_k, k):
    family = make_family(60, 4, 2)
    tables = np.round(make_tables(family, 6) * 2) / 2
    scores = numpy_scores(tables, family, "mean")
    want = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(top_k(tf.constant(tables), family, k)[1], want)


@EVERY_WAY
@pytest.mark.parametrize("num_queries", [2, 6])
def test_excluded_classes(top_k, decoder, num_queries):
    family, tables = problem(30, 8, 3, num_queries)
    exclude = np.random.default_rng(2).integers(-1, 30, size=(num_queries, 12)).astype(np.int32)
    found = top_k(tf.constant(tables), family, 25, tf.constant(exclude), decoder)
    check(found, numpy_scores(tables, family, decoder), 25, exclude)
    assert not any(set(row) & set(own[own >= 0]) for row, own in zip(found[1].numpy(), exclude, strict=True))
    everything = tf.tile(tf.range(30)[tf.newaxis], [num_queries, 1])
    scores, ids = top_k(tf.constant(tables), family, 3, everything, decoder)
    assert (ids.numpy() == -1).all() and np.isneginf(scores).all()


@pytest.mark.kernels
def test_excluded_classes_are_passed_over_where_the_best_buckets_decide():
    family, tables = problem(100_000, 4000, 6, 2, 60)
    first = mach_top_k(tables, family, 8)[1]
    found = mach_top_k(tables, family, 6, first[:, :5])
    check(found, numpy_scores(tables, family, "mean"), 6, first[:, :5].numpy())


@EVERY_WAY
def test_no_query(top_k):
    scores, ids = top_k(tf.zeros([0, 2, 4]), make_family(9, 4, 2), 3)
    assert scores.shape == ids.shape == (0, 3)


@EVERY_WAY
def test_in_a_graph_of_unknown_batch_with_k_as_a_tensor(top_k):
    family, tables = problem(50, 8, 3, 4)

    @tf.function(input_signature=[tf.TensorSpec([None, 3, 8]), tf.TensorSpec([], tf.int32)])
    def ranked(tables, k):
        return top_k(tables, family, k)

    for k in (1, 6):
        check(ranked(tables, tf.constant(k)), numpy_scores(tables, family, "mean"), k)


@EVERY_WAY
def test_no_gradient(top_k):
    tables = tf.Variable(make_tables(make_family(9, 4, 2), 2))
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(top_k(tables + 0.0, make_family(9, 4, 2), 3)[0])
    assert tape.gradient(total, tables) is None


@pytest.mark.parametrize("num_probes", [1, 4, 40])
def test_probed_buckets_are_exact_where_the_worst_of_them_is_low(decoder, num_probes):
    family, tables = problem(2000, 40, 5, 50, 25)
    want = numpy_scores(tables, family, decoder)
    probed = without_kernel(mach_top_k_probed)
    scores, ids = probed(tf.constant(tables), family, 3, num_probes, decoder=decoder)
    worst = -np.sort(-tables, axis=2)[:, :, num_probes - 1].mean(1) * (2 if decoder == "median" else 1)
    sure = scores[:, -1].numpy() > worst * 1.001
    if num_probes == 40:
        sure[:] = True
    assert sure.any() or (decoder, num_probes) in (("min", 1), ("min", 4), ("median", 1), ("mean", 1))
    check((scores[sure], ids[sure]), want[sure], 3)
    # Elsewhere too scores belong to their classes, which differ.
    found = np.take_along_axis(want, np.maximum(ids, 0), 1)
    np.testing.assert_allclose(np.where(ids >= 0, found, -np.inf), scores, rtol=1e-5)


def test_probed_buckets_with_excluded_classes_and_too_few_left():
    family = make_family(12, 4, 2)
    tables, exclude = make_tables(family, 3), np.int32([[0, 5, 7], [-1, -1, 3], [2, 2, 2]])
    found = without_kernel(mach_top_k_probed)(tf.constant(tables), family, 12, 4, tf.constant(exclude))
    check(found, numpy_scores(tables, family, "mean"), 12, exclude)
    few = without_kernel(mach_top_k_probed)(tf.constant(tables), family, 12, 1)[1].numpy()
    listed = np.array([[(row == best).sum() for best in np.arange(12)] for row in few])
    assert (listed <= 1).all() and (few == -1).any(1).all()


EVERY_PROBED = pytest.mark.parametrize("top_k", both_ways(mach_top_k_probed))


@EVERY_PROBED
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 20, 2), (60, 6, 4)])
def test_all_buckets_probed_is_exact_where_classes_are_few(top_k, decoder, shape):
    family, k = make_family(*shape), min(4, shape[0])
    tables = make_tables(family, 3)
    found = top_k(tf.constant(tables), family, k, shape[1], decoder=decoder)
    check(found, numpy_scores(tables, family, decoder), k)
    assert (top_k(tf.fill(tables.shape, np.nan), family, k, 1)[1].numpy() == -1).all()
    assert (top_k(tf.zeros(tables.shape), family, k, shape[1])[1].numpy() >= 0).all()


@EVERY_PROBED
def test_buckets_of_nan_take_no_probe(top_k, decoder):
    family, tables = problem(5000, 50, 3, 2, power=8)
    tables[:, :, :4] = np.nan
    scores = numpy_scores(tables, family, decoder)
    scores[np.isnan(scores)] = -np.inf
    check(top_k(tf.constant(tables), family, 5, 50, decoder=decoder), scores, 5)
    found = top_k(tf.constant(tables), family, 5, 4, decoder=decoder)
    assert (found[1].numpy() >= 0).all() and np.isfinite(found[0]).all()


@EVERY_WAY
@pytest.mark.parametrize("num_queries", [1, 5])
def test_a_class_with_nan_in_any_bucket_or_in_all_is_passed_over(top_k, decoder, num_queries):
    family, tables = problem(50, 10, 3, num_queries)
    tables[:, 1, 4] = tables[4:] = np.nan
    scores = numpy_scores(tables, family, decoder)
    assert np.isnan(scores).any()
    scores[np.isnan(scores)] = -np.inf
    check(top_k(tf.constant(tables), family, 50, decoder=decoder), scores, 50)


@pytest.mark.parametrize("top_k", both_ways(mach_top_k))
def test_excluded_ids_that_are_none_are_refused(top_k):
    family = make_family(9, 4, 2)
    for bad in (-2, 9):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"exclude.* is {bad}\\b"):
            top_k(tf.constant(make_tables(family, 1)), family, 2, exclude=tf.constant([[3, bad]]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=str(2**32 + 1)):
        top_k(tf.constant(make_tables(family, 1)), family, 2, exclude=np.array([[3, 2**32 + 1]]))


@pytest.mark.kernels
def test_bad_input_is_an_error():
    family = make_family(9, 4, 2)
    tables = tf.constant(make_tables(family, 3))
    for k in (10, -1, 2**32, 2**62, np.int64(2**32 + 1)):
        with pytest.raises(ValueError, match=rf"k must be in \[0, 9\].* is {k}"):
            mach_top_k(tables, family, k)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"k must be in \[0, 9\].* is 10"):
        mach_top_k(tables, family, tf.constant(10))
    with pytest.raises(ValueError, match=r"tables must be \[B, R, 5\]"):
        mach_top_k(tables, family._replace(num_buckets=5), 2)
    for num_probes in (0, 5):
        with pytest.raises(ValueError, match=rf"num_probes must be in \[1, 4\] \(M\), but is {num_probes}"):
            mach_top_k_probed(tables, family, 2, num_probes)
    message = r"exclude\[1, 1\] is 9, but there are 9 classes"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        mach_top_k(tables, family, 2, tf.constant([[0, 1], [2, 9], [-1, 3]]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="exclude|Dimension"):
        mach_top_k(tables, family, 2, tf.constant([[0, 1]]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="coefficients"):
        mach_top_k(tables[:, :1], family, 2)
    broken = family._replace(coefficients=family.coefficients + 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="inverse of the first modulo 11"):
        mach_top_k(tables, broken, 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"prime must be in"):
        mach_top_k(tables, family._replace(num_keys=2**31), 2)


def test_other_dtypes_take_the_stock_path():
    family, tables = problem(30, 8, 3, 2)
    scores, ids = mach_top_k(tf.constant(tables, tf.float64), family, 4)
    assert scores.dtype == tf.float64
    np.testing.assert_array_equal(ids, without_kernel(mach_top_k)(tf.constant(tables), family, 4)[1])


def test_probes_may_be_a_tensor():
    family = UniversalHash(universal_coefficients(60, range(3), 1), 60, 8)
    tables = tf.constant(np.random.default_rng(0).random((4, 3, 8)), tf.float32)
    for num_probes, same in ((2, 2), (99, 8), (0, 1)):
        got = mach_top_k_probed(tables, family, 5, tf.constant(num_probes))
        want = without_kernel(mach_top_k_probed)(tables, family, 5, same)
        tf.nest.map_structure(np.testing.assert_array_equal, got, want)


@pytest.mark.long
def test_more_probes_find_more_of_many_classes(decoder):
    """Classes that share a place of the sketch came before the best ones, of 400,000 nearly all of them."""
    family, k = make_family(400_000, 300, 3), 50
    for power, numbers in ((4, (20, 24, 40)), (1, (90, 300))):  # peaked tables, and flat ones
        tables = make_tables(family, 2, power)
        worst = mach_top_k(tables, family, k, decoder=decoder)[0].numpy()[:, -1:]
        for num_probes in numbers:
            recall, possible = (
                np.mean(top_k(tables, family, k, num_probes, decoder=decoder)[0].numpy() >= worst)
                for top_k in (mach_top_k_probed, without_kernel(mach_top_k_probed))
            )
            assert recall > possible - 0.05, num_probes


@pytest.mark.kernels
@pytest.mark.parametrize("score", ["min", "median"])
def test_by_a_score_that_is_no_mean_the_op_finds_what_an_export_finds(score):
    family = make_family(20_000, 500, 6)
    tables = tf.constant(make_tables(family, 8, power=4))
    scores, ids = mach_top_k_probed(tables, family, 10, 8, decoder=score)
    wanted, wanted_ids = without_kernel(mach_top_k_probed)(tables, family, 10, 8, decoder=score)
    np.testing.assert_allclose(scores, wanted, rtol=2e-6)
    np.testing.assert_array_equal(ids, wanted_ids)
