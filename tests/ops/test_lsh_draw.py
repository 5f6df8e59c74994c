import numpy as np
import pytest
import tensorflow as tf
from kernel_checks import EVERY_SIZE, both_ways, check_independent
from lsh_checks import SCHEMES, random_queries, random_tables, slow_counts
from scipy import stats

from tfxc.ops.hash_tables import hash_tables
from tfxc.ops.lsh_draw import Scheme, lsh_draw, lsh_log_expected_count


@pytest.fixture(params=both_ways(lsh_draw))
def draw(request):
    return request.param


@pytest.fixture(params=both_ways(lsh_log_expected_count))
def log_expected_count_of(request):
    return request.param


def _every_class(num_queries, num_classes):
    return np.tile(np.arange(num_classes, dtype=np.int32), (num_queries, 1))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize(
    ("num_classes", "num_tables", "num_buckets"),
    # Tables by ones and by eights: the compiled sum goes through them in vectors and a rest.
    [*((50, size, 4) for size in (7, 8, 9)), (1, 1, 1), (60, 17, 8)],
)
def test_counts(log_expected_count_of, scheme, num_parts, num_classes, num_tables, num_buckets):
    tables, scheme = random_tables(num_classes, num_tables, num_buckets), SCHEMES[scheme]
    query = random_queries(5, num_parts, num_tables, num_buckets)
    got = np.exp(log_expected_count_of(query, _every_class(5, num_classes), tables, scheme))
    np.testing.assert_allclose(got, slow_counts(query, tables, scheme), rtol=1e-5)
    ids = np.random.default_rng(0).integers(num_classes, size=(5, 3)).astype(np.int32)
    of_some = np.exp(log_expected_count_of(query, ids, tables, scheme))
    np.testing.assert_array_equal(of_some, np.take_along_axis(got, ids, axis=1))


@pytest.mark.kernels
@pytest.mark.parametrize("num_parts", [1, 3])
@EVERY_SIZE
def test_counts_of_draws_at_every_size(num_parts, size):
    for num_tables, num_candidates in ((size, 3 * size + 2), (3, size + 7)):
        for scheme in (Scheme(num_candidates, 0.2), Scheme(num_candidates, 0.2, bucket_slots=2)):
            tables, query = random_tables(60, num_tables, 4), random_queries(4, num_parts, num_tables, 4)
            ids, log_expected_count = (
                tensor.numpy() for tensor in lsh_draw(query, tables, scheme, [3, size])
            )
            want = np.take_along_axis(slow_counts(query, tables, scheme), np.maximum(ids, 0), axis=1)
            np.testing.assert_allclose(np.exp(log_expected_count)[ids >= 0], want[ids >= 0], rtol=1e-5)


@pytest.mark.parametrize("num_classes", [1, 30, 500])
@pytest.mark.parametrize("num_parts", [1, 3])
def test_draws_follow_their_counts(draw, num_classes, num_parts):
    num_tables, scheme = 6, Scheme(30_000, 0.1)
    tables, query = random_tables(num_classes, num_tables, 8), random_queries(3, num_parts, num_tables, 8)
    ids, log_expected_count = draw(query, tables, scheme, [5, num_classes])
    assert (ids.dtype, log_expected_count.dtype) == (tf.int32, tf.float32)
    assert ids.shape == log_expected_count.shape == (3, 30_000)
    expected = slow_counts(query, tables, scheme)
    wanted = np.take_along_axis(expected, ids.numpy(), axis=1)
    np.testing.assert_allclose(np.exp(log_expected_count), wanted, rtol=1e-5)
    for row, counts in zip(ids.numpy(), expected, strict=True):
        if num_classes > 1:
            assert stats.chisquare(np.bincount(row, minlength=num_classes), counts).pvalue > 1e-3


@pytest.mark.parametrize(("num_parts", "bucket_slots"), [(3, 1), (3, 4), (1, 25)])
def test_a_union_takes_each_class_as_often_as_it_says(draw, num_parts, bucket_slots):
    num_classes, num_tables, repeats = 60, 5, 5_000
    scheme = Scheme(num_tables * bucket_slots + 3, 0.01, bucket_slots)
    tables = random_tables(num_classes, num_tables, 6)
    query = random_queries(2, num_parts, num_tables, 6)[:1]
    ids, log_expected_count = draw(np.repeat(query, repeats, axis=0), tables, scheme, [1, bucket_slots])
    ids, from_buckets = ids.numpy(), num_tables * bucket_slots
    expected = slow_counts(query, tables, scheme)[0]
    np.testing.assert_allclose(np.exp(log_expected_count)[ids >= 0], expected[ids[ids >= 0]], rtol=1e-5)
    assert (np.asarray(log_expected_count)[ids < 0] == 0).all() and (ids[:, from_buckets:] >= 0).all()
    ordered = np.sort(ids[:, :from_buckets], axis=1)
    assert not ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any()
    counts = np.bincount(ids[ids >= 0], minlength=num_classes)
    taken = expected - 3 / num_classes
    spread = np.sqrt(repeats * (taken * (1 - taken) + 3 / num_classes) + 1e-9)
    assert np.abs((counts - repeats * expected) / spread).max() < 4.5
    if bucket_slots == 25 and num_parts == 1:  # every bucket fits: the union of them all, each time
        inside = (tables.codes.numpy() == query[0, 0]).any(axis=1)
        np.testing.assert_allclose(taken, inside, atol=1e-6)
        assert all(set(row[row >= 0]) == set(np.flatnonzero(inside)) for row in ids[:50, :from_buckets])


def test_empty_buckets_pass_their_draws_on_to_all_classes(draw, log_expected_count_of):
    tables = hash_tables(np.zeros((10, 2), np.uint16), 4)
    query = np.int32([[[3, 3]]])
    for scheme in (Scheme(5000, 0.1), Scheme(5000, 0.1, 1)):
        ids, log_expected_count = draw(query, tables, scheme, [0, 1])
        ids = ids.numpy()[0]
        uniform = 5000 - 2 * scheme.bucket_slots
        assert (ids < 0).sum() == 5000 - uniform
        assert stats.chisquare(np.bincount(ids[ids >= 0], minlength=10)).pvalue > 1e-3
        found = log_expected_count_of(query, _every_class(1, 10), tables, scheme)
        np.testing.assert_allclose(found, np.log(uniform / 10), rtol=1e-6)


def test_neighbouring_draws_are_independent(draw):
    tables = hash_tables(np.repeat([[0], [1]], 2, axis=0).astype(np.uint16), 2)
    ids, _ = draw(np.zeros((300, 1, 1), np.int32), tables, Scheme(100, 0.5), [3, 4])
    check_independent(ids.numpy(), [0.375, 0.375, 0.125, 0.125])


@pytest.mark.parametrize("bad", [-2, -1, 4, 2**30])  # -1: absent in one table only
@pytest.mark.parametrize("table", [0, 1])
def test_a_query_code_out_of_range_is_an_error(draw, log_expected_count_of, bad, table):
    tables, query = random_tables(9, 2, 4), random_queries(5, 1, 2, 4)
    query[3, 0, table] = bad
    for scheme in SCHEMES.values():
        with pytest.raises(tf.errors.InvalidArgumentError, match="query_codes"):
            draw(query, tables, scheme, [0, 0])
        with pytest.raises(tf.errors.InvalidArgumentError, match="query_codes"):
            log_expected_count_of(query, np.zeros((5, 1), np.int32), tables, scheme)


def _spoiled(tables):
    offsets, members = tables.offsets.numpy(), tables.members.numpy()
    return {
        "descending": (tables._replace(offsets=offsets[:, ::-1].copy()), "offsets"),
        "past the end": (tables._replace(offsets=offsets + 1), "offsets"),
        "negative": (tables._replace(offsets=offsets - 1), "offsets"),
        "member too large": (tables._replace(members=members + 9), "members"),
        "negative member": (tables._replace(members=members - 9), "members"),
        "members of another bucket": (tables._replace(members=members[:, ::-1].copy()), "members"),
    }


@pytest.mark.parametrize("name", list(_spoiled(random_tables(9, 2, 2))))
def test_malformed_tables_are_an_error(draw, name):
    tables, message = _spoiled(random_tables(9, 2, 2))[name]
    tables = type(tables)(*(tf.constant(part) for part in tables))
    for scheme in (SCHEMES["draws"], SCHEMES["union"]):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            draw(np.int32([[[0, 0]], [[1, 1]]]), tables, scheme, [0, 0])


@pytest.mark.parametrize("bad", [-1, 9])
def test_a_class_out_of_range_is_an_error(log_expected_count_of, bad):
    ids = np.int32([[0, 1], [2, bad]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="class_ids"):
        log_expected_count_of(random_queries(2, 1, 2, 4), ids, random_tables(9, 2, 4), SCHEMES["draws"])
    wide = np.where(ids == bad, 2**32 + 1, ids.astype(np.int64))
    for given in wide, tf.constant(wide):
        with pytest.raises(tf.errors.InvalidArgumentError, match=str(2**32 + 1)):
            lsh_log_expected_count(
                random_queries(2, 1, 2, 4), given, random_tables(9, 2, 4), SCHEMES["draws"]
            )


@pytest.mark.parametrize(
    "scheme", [Scheme(4, 0.0), Scheme(4, 1.5), Scheme(4, float("nan")), Scheme(4, 0.1, 2)]
)
def test_a_scheme_without_uniform_draws_is_refused(scheme):
    with pytest.raises(ValueError, match="leaves no uniform draw"):
        lsh_draw(np.zeros((1, 1, 2), np.int32), random_tables(9, 2, 4), scheme, [0, 0])


def test_shapes_that_do_not_fit_are_errors(draw):
    tables = random_tables(9, 2, 4)
    # What the compiled op says, and what comes of it in the other way.
    for query, message in [
        (np.zeros((1, 1, 3), np.int32), r"query_codes.*\[1,1,3\]|indices\[0,0,2\]"),
        (np.zeros((1, 2), np.int32), r"query_codes.*\[1,2\]|input has only 2 dims"),
    ]:
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            draw(query, tables, SCHEMES["draws"], [0, 0])
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=r"seed must have shape \[2\]"):
        draw(np.zeros((1, 1, 2), np.int32), tables, SCHEMES["draws"], [0, 0, 0])


def test_by_hand(draw, log_expected_count_of):
    # Class 0 in bucket 0, classes 1 and 2 in bucket 1 of table 0; all in bucket 1 of table 1, 0 being empty.
    tables = random_tables(3, 2, 2)._replace(
        codes=tf.constant([[0, 1], [1, 1], [1, 1]], tf.uint16),
        offsets=tf.constant([[0, 1, 3], [0, 0, 3]]),
        members=tf.constant([[0, 1, 2], [0, 1, 2]]),
    )
    query = tf.constant([[[0, 1]], [[1, 0]]])
    draws = np.exp(log_expected_count_of(query, _every_class(2, 3), tables, Scheme(12, 0.5)))
    # 12 draws: 6 from all, 3 from either bucket.
    want = [[2 + 3 + 1, 2 + 1, 2 + 1], [2 + 1, 2 + 1.5 + 1, 2 + 1.5 + 1]]
    np.testing.assert_allclose(draws, want, rtol=1e-6)
    union = np.exp(log_expected_count_of(query, _every_class(2, 3), tables, Scheme(5, 0.5, bucket_slots=1)))
    # 3 uniform; the first query takes 0 for sure, the second 1 or 2, each with probability 1/2.
    np.testing.assert_allclose(union, [[2, 1 + 1 / 3, 1 + 1 / 3], [1, 1.5, 1.5]], rtol=1e-6)
    ids, log_expected_count = draw(query, tables, Scheme(5, 0.5, 1), tf.constant([1, 2], tf.int64))
    first, second = ids.numpy()
    assert first[0] == 0 and second[0] in (1, 2) and second[1] == -1 and log_expected_count[1, 1] == 0


def test_a_union_of_a_query_without_parts_has_only_uniform_draws(draw):
    tables, query = random_tables(9, 2, 4), tf.fill([1, 3, 2], -1)
    ids, log_expected_count = draw(query, tables, SCHEMES["union"], tf.constant([0, 0], tf.int64))
    np.testing.assert_array_equal(ids[0, :4], -1)
    assert ids.numpy()[0, 4:].min() >= 0
    np.testing.assert_allclose(log_expected_count[0, 4:], np.log(36 / 9), rtol=1e-6)
