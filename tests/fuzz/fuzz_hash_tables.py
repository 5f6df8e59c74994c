import numpy as np
import tensorflow as tf
from fuzz_arrays import Arrays, agree, misshapen
from fuzz_targets import HUGE, SEEDS, SIZES, attempt, call, check_if_drawn, fuzz, in_stock_ops, refused
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
        for (bad,) in misshapen([given], [()]) if fault == "shape" else ():
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
        part = getattr(built, fault).numpy()
        broken = built._replace(**{fault: arrays.spoil(part, 0, part.max(initial=0) + 1)})
        check_if_drawn(-1, classes, lsh_draw, queries, broken, scheme, [1, 2])
        op, seeds = library.load().tfxc_lsh_draw, tf.constant([1, 2], tf.int64)
        check_if_drawn(-1, classes, op, queries, *broken, seeds, **scheme._asdict())
        return
    if fault == "shape":
        check_shapes(queries, built, scheme, ids)
        return
    given, asked, seeds = arrays.tensor(queries), arrays.tensor(ids), arrays.seeds()
    ops, attributes = library.load(), scheme._asdict()
    drawn = attempt(draw, lsh_draw, given, built, scheme, seeds)
    raw = attempt(draw, ops.tfxc_lsh_draw, given, *built, seeds, **attributes)
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
        drawn = call(ops.tfxc_lsh_draw, given, *built, arrays.seeds(), **attributes)
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


def check_shapes(queries, built, scheme, ids):
    ops, attributes, seeds = library.load(), scheme._asdict(), tf.constant([1, 2], tf.int64)
    codes, offsets, members = built
    few = [
        (queries, codes[:0], offsets, members[:, :0]),
        (queries, codes, offsets[:, :1], members),
        (queries[..., :0], codes[:, :0], offsets[:0], members[:0]),
    ]
    axes = [(2,), (0, 1), (0,), (0, 1), (0,)]
    for given in [*((*bad, seeds) for bad in few), *misshapen((queries, *built, seeds), axes)]:
        refused(ops.tfxc_lsh_draw, *given, **attributes)
        refused(lsh_draw, given[0], HashTables(*given[1:4]), scheme, given[4])
    for given in [*((*bad, ids) for bad in few), *misshapen((queries, *built, ids), axes)]:
        refused(ops.tfxc_lsh_log_expected_count, *given, **attributes)
