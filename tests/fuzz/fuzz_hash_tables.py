import numpy as np
import tensorflow as tf
from fuzz_arrays import Arrays, agree
from fuzz_targets import HUGE, SEEDS, SIZES, attempt, call, fuzz, in_stock_ops, refused
from hypothesis import strategies as st
from lsh_checks import slow_counts

from tfxc.ops import library
from tfxc.ops.hash_tables import HashTables, hash_tables
from tfxc.ops.lsh_draw import Scheme, lsh_draw, lsh_log_expected_count

BUCKETS = st.sampled_from([*[1, 2, 3, 4, 8, 9, 64, 257] * 4, 65535, 65536])
TABLE_FAULTS = (*["none"] * 8, "code", "huge", "shape")
MORE_SEEDS = 10  # by the same tables
DRAW_FAULTS = (*["none"] * 9, "code", "id", "offsets", "members", "slots", "candidates", "fraction", "shape")


@fuzz(
    classes=SIZES, tables=SIZES, buckets=BUCKETS, fault=st.sampled_from(TABLE_FAULTS), huge=HUGE, seed=SEEDS
)
def hash_tables_op(classes, tables, buckets, fault, huge, seed):
    arrays = Arrays(seed)
    if buckets > 1000:
        tables %= 9
    for _ in range(5):
        codes = arrays.ids((classes, tables), buckets).astype(np.uint16)
        valid = True
        if fault == "code" and codes.size and buckets < 1 << 16:
            bad = arrays.random.integers(codes.size)
            codes.reshape(-1)[bad] = arrays.pick([buckets, 65535])
            valid = False
        number = buckets
        if fault == "huge":
            number, valid = arrays.pick([huge, 65537, 0, -1, -huge]), False
        given = arrays.tensor(codes)
        found = attempt(valid, hash_tables, given, number)
        op = library.load().tfxc_hash_tables
        raw = attempt(valid, op, given, num_buckets=number)
        if fault == "huge":
            refused(in_a_graph, op, given, num_buckets=number)
        if fault == "shape":
            bad = arrays.pick([given[tf.newaxis], tf.reshape(given, [-1]), tf.constant(0, tf.uint16)])
            refused(hash_tables, bad, buckets)
            refused(op, bad, num_buckets=buckets)
        if not valid:
            continue
        for got, again in zip(found[1:], raw, strict=True):
            np.testing.assert_array_equal(got, again)
        want = np.sort(codes.T.astype(np.int64), axis=1)
        for table in range(tables):
            ends = np.searchsorted(want[table], np.arange(buckets + 1))
            np.testing.assert_array_equal(found.offsets[table], ends)
            np.testing.assert_array_equal(found.members[table], np.argsort(codes[:, table], kind="stable"))
    if fault == "none" and arrays.chance(0.1):
        for got, again in zip(found, call(in_stock_ops(hash_tables), given, buckets), strict=True):
            np.testing.assert_array_equal(got, again)


def in_a_graph(op, *tensors, **attributes):
    with tf.Graph().as_default():
        return op(*(tf.compat.v1.placeholder(one.dtype, one.shape) for one in tensors), **attributes)


@fuzz(
    classes=SIZES.filter(bool),
    tables=st.sampled_from([1, 2, 3, 7, 8, 9, 15, 16, 17]),
    buckets=st.sampled_from([1, 2, 3, 8, 64]),
    n=SIZES,
    parts=st.sampled_from([0, 1, 1, 2, 3, 5]),
    slots=st.sampled_from([0, 0, 1, 2, 5]),
    uniform=st.sampled_from([1, 2, 7, 33]),
    fraction=st.sampled_from([1e-30, 0.1, 0.5, 1.0]),
    fault=st.sampled_from(DRAW_FAULTS),
    huge=HUGE,
    seed=SEEDS,
)
def lsh_draws(classes, tables, buckets, n, parts, slots, uniform, fraction, fault, huge, seed):
    arrays = Arrays(seed)
    n = n % 34
    codes = arrays.ids((classes, tables), buckets).astype(np.uint16)
    built = library.stock_ops()(hash_tables)(codes, buckets)
    queries = arrays.random.integers(buckets, size=(n, parts, tables)).astype(np.int32)
    queries[arrays.random.random((n, parts)) < 0.3] = -1
    ids = arrays.ids((n, 5), classes)
    scheme = Scheme(slots * tables + uniform, fraction, slots)
    draw, look = True, True  # which is to succeed
    if fault == "code" and (spoiled := arrays.spoil(queries, -1, buckets)) is not None:
        queries, draw, look = spoiled, False, False
    if fault == "id" and (spoiled := arrays.spoil(ids, 0, classes)) is not None:
        ids, look = spoiled, False
    if fault == "slots":
        most = (scheme.num_candidates - 1) // tables
        scheme, draw, look = scheme._replace(bucket_slots=arrays.pick([most + 1, huge, -1])), False, False
    if fault == "candidates":
        scheme = scheme._replace(num_candidates=arrays.pick([0, -1, huge]))
        draw = look = False
    if fault == "fraction":
        scheme = scheme._replace(uniform_fraction=arrays.pick([0.0, -1.0, 1.5, float("nan")]))
        draw = look = False
    if fault in ("offsets", "members"):
        check_broken(arrays, fault, queries, built, scheme, ids)
        return
    if fault == "shape":
        check_shapes(arrays, queries, built, scheme, ids)
        return
    seeds = [int(part) for part in arrays.random.integers(-(2**63), 2**63, size=2)]
    given, asked = arrays.tensor(queries), arrays.tensor(ids)
    ops, attributes = library.load(), scheme._asdict()
    drawn = attempt(draw, lsh_draw, given, built, scheme, seeds)
    raw = attempt(draw, ops.tfxc_lsh_draw, given, *built, tf.constant(seeds, tf.int64), **attributes)
    counts = attempt(look, lsh_log_expected_count, given, asked, built, scheme)
    attempt(look, ops.tfxc_lsh_log_expected_count, given, *built, asked, **attributes)
    expected = slow_counts(queries, built, scheme) if draw else None
    if look:
        want = np.log(np.take_along_axis(expected, ids, 1))
        agree(counts, want, 1e-5 * (1 + np.abs(want)), "log counts")
    if draw:
        np.testing.assert_array_equal(drawn[0], raw[0])
        np.testing.assert_array_equal(drawn[1], raw[1])
        check_drawn(drawn, expected, queries, codes, scheme)
    for _ in range(MORE_SEEDS if draw and look else 0):
        seeds = tf.constant(arrays.random.integers(-(2**63), 2**63, size=2))
        drawn = call(ops.tfxc_lsh_draw, given, *built, seeds, **attributes)
        check_drawn(drawn, expected, queries, codes, scheme, where_from=False)
        ids = arrays.ids((n, 3), classes)
        counts = call(ops.tfxc_lsh_log_expected_count, given, *built, ids, **attributes)
        want = np.log(np.take_along_axis(expected, ids, 1))
        agree(counts, want, 1e-5 * (1 + np.abs(want)), "log counts")


def check_drawn(drawn, expected, queries, codes, scheme, where_from=True):
    ids, log_expected_count = (part.numpy() for part in drawn)
    classes, tables = codes.shape
    assert ids.shape == (len(queries), scheme.num_candidates)
    assert ((ids >= -1) & (ids < classes)).all()
    assert scheme.bucket_slots or (ids >= 0).all()
    want = np.where(ids < 0, 0.0, np.log(np.take_along_axis(expected, np.maximum(ids, 0), 1)))
    agree(log_expected_count, want, 1e-5 * (1 + np.abs(want)), "log counts of draws")
    if scheme.bucket_slots and where_from:
        from_buckets = scheme.bucket_slots * tables
        for n, row in enumerate(ids[:, :from_buckets]):
            taken = row[row >= 0]
            assert len(set(taken)) == len(taken)
            for slot in np.flatnonzero(row >= 0):
                t = slot // scheme.bucket_slots
                assert any(part[t] == codes[row[slot], t] for part in queries[n] if part[0] >= 0)
        assert (ids[:, from_buckets:] >= 0).all()


def check_broken(arrays, fault, queries, built, scheme, ids):
    """Tables that contradict themselves: an error or, where no draw meets it, a result; ids stay in range."""
    part = dict(zip(HashTables._fields, (one.numpy() for one in built), strict=True))[fault]
    part = arrays.spoil(part, 0, part.max(initial=0) + 1)
    broken = built._replace(**{fault: part})
    for function in (lsh_draw, raw_draw):
        try:
            drawn, log_expected_count = call(function, queries, broken, scheme, [1, 2])
        except AssertionError as error:
            assert isinstance(error.__cause__, tf.errors.InvalidArgumentError), error
        else:
            assert ((drawn.numpy() >= -1) & (drawn.numpy() < len(built.codes))).all()
            assert np.isfinite(log_expected_count).all()


def raw_draw(queries, tables, scheme, seeds):
    return library.load().tfxc_lsh_draw(queries, *tables, tf.constant(seeds, tf.int64), **scheme._asdict())


def check_shapes(arrays, queries, built, scheme, ids):
    ops, attributes, seeds = library.load(), scheme._asdict(), tf.constant([1, 2], tf.int64)
    codes, offsets, members = built
    n = len(queries)
    bad = [
        (queries[0] if n else queries[..., :0], *built),
        (queries[..., :-1], *built),
        (queries, codes[:, :-1], offsets, members),
        (queries, codes[:-1], offsets, members),
        (queries, codes[:0], offsets, members[:, :0]),
        (queries, codes, offsets[:-1], members),
        (queries, codes, offsets[:, :1], members),
        (queries, codes, offsets, members[0]),
        (queries[..., :0], codes[:, :0], offsets[:0], members[:0]),
        (tf.constant(0), *built),
        (queries, tf.constant(0, tf.uint16), offsets, members),
        (queries, codes, tf.constant(0), members),
        (queries, codes, offsets, tf.constant(0)),
    ]
    given = arrays.pick(bad)
    refused(ops.tfxc_lsh_draw, *given, seeds, **attributes)
    refused(ops.tfxc_lsh_log_expected_count, *given, ids, **attributes)
    refused(lsh_draw, given[0], HashTables(*given[1:]), scheme, [1, 2])
    refused(ops.tfxc_lsh_draw, queries, *built, arrays.pick([seeds[:1], seeds[0]]), **attributes)
    bad_ids = arrays.pick([tf.zeros([n + 1, 1], tf.int32), tf.zeros([n], tf.int32), tf.constant(0)])
    refused(ops.tfxc_lsh_log_expected_count, queries, *built, bad_ids, **attributes)
