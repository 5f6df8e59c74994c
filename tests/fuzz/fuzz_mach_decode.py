import numpy as np
import tensorflow as tf
from fuzz_arrays import Arrays, misshapen
from fuzz_targets import HUGE, SEEDS, SIZES, attempt, call, fuzz, in_stock_ops, refused
from hypothesis import strategies as st

from tfxc.hashing import UniversalHash, universal_coefficients
from tfxc.ops import library
from tfxc.ops.mach_decode import DECODERS, mach_top_k, mach_top_k_probed

FAULTS = (*["none"] * 9, "k", "exclude", "probes", "prime", "coefficients", "shape")
KINDS = ("uniform", "steep", "grid", "NaN", "infinite", "zero")


@fuzz(
    n=st.sampled_from([0, *[1] * 4, 2, 3, 4, 5, 15, 16, 17, 20, 21, 33]),
    classes=SIZES.filter(bool) | st.sampled_from([1000, 3000]),
    buckets=SIZES.filter(bool),
    repetitions=st.sampled_from([1, 2, 3, 4, 5, 7, 8, 17, 33]),
    k=st.sampled_from([0, *[1] * 3, 2, 5, 10, 33, 10_000]),
    excluded=st.sampled_from([0, 0, 1, 3, 9]),
    decoder=st.sampled_from(DECODERS),
    kind=st.sampled_from(KINDS),
    fault=st.sampled_from(FAULTS),
    huge=HUGE,
    seed=SEEDS,
)
def mach_top(n, classes, buckets, repetitions, k, excluded, decoder, kind, fault, huge, seed):
    arrays = Arrays(seed)
    k = min(k, classes)
    coefficients = universal_coefficients(classes, range(repetitions), seed % 1000)
    family = UniversalHash(tf.constant(coefficients), classes, buckets)
    tables = make_tables(arrays, (n, repetitions, buckets), kind)
    exclude = arrays.ids((n, excluded), classes, low=-1)
    probes, valid = int(arrays.random.integers(1, buckets + 1)), True
    if fault == "k":
        k, valid = arrays.pick([-1, classes + 1, huge, -huge]), False
    if fault == "exclude" and (spoiled := arrays.spoil(exclude, -1, classes)) is not None:
        exclude, valid = spoiled, False
    given = arrays.tensor(tables)
    passed_over = None if not excluded and arrays.chance(0.5) else arrays.tensor(exclude)
    if fault == "probes":
        bad = arrays.pick([0, -1, buckets + 1, huge])
        refused(mach_top_k_probed, given, family, k, bad, passed_over, decoder)
    how = {"exclude": passed_over, "decoder": decoder}
    prune = arrays.chance(0.7)
    found = attempt(valid, mach_top_k, given, family, k, prune=prune, **how)
    probed = attempt(valid, mach_top_k_probed, given, family, k, probes, **how)
    check_raw(arrays, fault, given, family, k, exclude, decoder, found if valid else None, huge, prune)
    if not valid:
        return
    scores = scores_of(tables, family, decoder, exclude)
    check_best(found, scores, k, exact=True)
    check_best(probed, scores, k, exact=False)
    op = library.load().tfxc_mach_top_k
    how = {"num_classes": classes, "prime": family.prime, "decoder": decoder}
    for more in (1, min(3, classes), min(17, classes)):
        inputs = given, family.coefficients, more, exclude
        found = call(op, *inputs, prune=arrays.chance(0.5), num_probes=0, **how)
        check_best(found, scores, more, exact=True)
        num_probes = int(arrays.random.integers(1, buckets + 1))
        found = call(op, *inputs, prune=True, num_probes=num_probes, **how)
        check_best(found, scores, more, exact=False)
    how = {"exclude": passed_over, "decoder": decoder}
    if arrays.chance(0.03) and classes < 200:
        check_best(call(in_stock_ops(mach_top_k), given, family, k, **how), scores, k, exact=True)


def make_tables(arrays, shape, kind):
    tables = arrays.random.random(shape).astype(np.float32)
    if kind == "steep":
        tables **= 20
        tables[tables < 1e-30] = 0.0  # TensorFlow computes with denormal numbers as with 0
    elif kind == "grid":
        tables = np.round(tables * 3)
    elif kind == "zero":
        tables[:] = 0
    elif kind in ("NaN", "infinite") and tables.size:
        where = arrays.random.integers(tables.size, size=2)
        tables.reshape(-1)[where] = np.nan if kind == "NaN" else np.inf
    return tables


def scores_of(tables, family, decoder, exclude):
    """Scores of all classes [B, L] in float64; -inf for those that are passed over and for NaN."""
    buckets = family.buckets(tf.range(family.num_keys)).numpy()
    values = np.stack([tables[:, r, own].astype(np.float64) for r, own in enumerate(buckets)])
    with np.errstate(invalid="ignore"):
        scores = {"mean": np.mean, "min": np.min, "median": np.median}[decoder](values, axis=0)
    scores = np.where(np.isnan(scores), -np.inf, scores)
    for row, ids in enumerate(exclude):
        scores[row, ids[ids >= 0]] = -np.inf
    return scores


def check_best(found, scores, k, exact):
    """The k best, up to the order of what float32 cannot tell apart; a probe may miss classes."""
    got, ids = (part.numpy() for part in found)
    assert got.shape == ids.shape == (len(scores), k) and ids.dtype == np.int32
    assert ((ids >= -1) & (ids < scores.shape[1])).all()
    assert not np.isnan(got).any() and (got[:, 1:] <= got[:, :-1]).all()
    assert (np.isneginf(got) == (ids < 0)).all()
    own = np.take_along_axis(scores, np.maximum(ids, 0), 1) if k else got
    np.testing.assert_allclose(np.where(ids >= 0, own, -np.inf), got, rtol=4e-6, atol=1e-30)
    if exact and k:
        want = -np.sort(-scores, axis=1)[:, :k]
        np.testing.assert_allclose(got, want, rtol=4e-6, atol=1e-30)
    for row in ids:
        row = row[row >= 0]
        assert len(set(row)) == len(row), "a class comes twice"


def check_raw(arrays, fault, tables, family, k, exclude, decoder, found, huge, prune):
    op = library.load().tfxc_mach_top_k
    # As the op gets it: Python's larger numbers lose their upper bits on the way to an int32.
    k = k if abs(k) < 1 << 31 else -1
    inputs = [tables, family.coefficients, k, exclude]
    how = {"num_classes": family.num_keys, "prime": family.prime, "decoder": decoder}
    how |= {"prune": prune, "num_probes": 0}
    if found is not None and fault == "none":
        for got, again in zip(call(op, *inputs, **how), found, strict=True):
            np.testing.assert_array_equal(got, again)
        if k and arrays.chance(0.2):
            probed = call(op, *inputs, **dict(how, num_probes=huge))
            check_best(probed, scores_of(tables.numpy(), family, decoder, exclude), k, exact=False)
        return
    how["num_probes"] = arrays.pick([0, 1, huge])
    _, r, m = tables.shape
    if fault in ("k", "exclude") and found is None:
        refused(op, *inputs, **how)
    if fault == "prime":
        primes = [family.num_keys - 1, 2 * family.num_keys + 1, 2**31, huge, 0, -huge]
        refused(op, *inputs, **dict(how, prime=arrays.pick(primes)))
        refused(op, *inputs, **dict(how, num_classes=arrays.pick([0, -1, family.prime + 1, huge])))
    if fault == "coefficients":
        bad = np.array(family.coefficients)
        place = arrays.random.integers(r), arrays.random.integers(3)
        bad[place] = arrays.pick([-1, family.prime, huge, -huge])
        refused(op, tables, bad, k, exclude, **how)
    if fault == "shape":
        bad = [
            (tables[:, :0], family.coefficients[:0], exclude),
            (tables[:, :, :0], family.coefficients, exclude),
            *misshapen((tables, family.coefficients, exclude), [(0, 1), (0, 1), (0,)]),
        ]
        for tables, coefficients, exclude in bad:
            refused(op, tables, coefficients, k, exclude, **how)
        tables, coefficients, _, exclude = inputs
        refused(op, tables, coefficients, [k], exclude, **how)
        wrong = family._replace(num_buckets=m + 1)
        refused(mach_top_k, tables, wrong, k, decoder=decoder)
        refused(in_stock_ops(mach_top_k), tables, wrong, k, decoder=decoder)
