import numpy as np
import tensorflow as tf
from fuzz_arrays import Arrays, agree, misshapen
from fuzz_targets import HUGE, SEEDS, SIZES, attempt, call, check_if_drawn, fuzz, in_stock_ops, refused
from hypothesis import strategies as st

from tfxc.ops import library
from tfxc.ops.midx_draw import CellIndex, midx_draw, midx_log_partition, pack_slots
from tfxc.samplers.alias import alias_table

FAULTS = (*["none"] * 10, "logits", "offsets", "slots", "mass", "samples", "shape", "empty")
MORE_SEEDS = 16  # by one distribution
LOGITS = ("normal", "large", "small", "grid", "enormous")


def make_index(arrays, codewords, classes, weighted):
    cells = np.sort(arrays.ids(classes, codewords**2))
    offsets = np.searchsorted(cells, np.arange(codewords**2 + 1)).astype(np.int32)
    order = arrays.random.permutation(classes).astype(np.int32)
    weights = np.ones(classes)
    if weighted:
        weights = arrays.random.random(classes) * (arrays.random.random(classes) < 0.7)
    mass = np.bincount(cells, weights, codewords**2).reshape(codewords, codewords)
    slots = pack_slots(*alias_table(weights, offsets), order, weights)
    return CellIndex(mass.astype(np.float32), offsets, slots)


def log_q(rows, columns, index):
    """log Q [N, L] of the class at each position, float64; -inf where there is no mass."""
    codewords = len(index.cell_mass)
    with np.errstate(divide="ignore"):
        mass = np.log(index.cell_mass.astype(np.float64))
        weights = np.log(index.slots[:, 3].copy().view(np.float32).astype(np.float64))
    logits = rows.astype(np.float64)[:, :, np.newaxis] + columns.astype(np.float64)[:, np.newaxis]
    # Relative to the largest with mass first: beside 1e30 the log of a mass would be lost.
    shift = np.where(np.isfinite(mass), logits, -np.inf).max(axis=(1, 2), keepdims=True)
    logits = logits - shift
    total = (logits + mass).reshape(len(rows), codewords**2)
    log_z = np.log(np.exp(total).sum(1, keepdims=True))
    cells = np.repeat(np.arange(codewords**2), np.diff(index.cell_offsets))
    return logits.reshape(len(rows), codewords**2)[:, cells] - log_z + weights, log_z[:, 0] + shift[:, 0, 0]


@fuzz(
    n=SIZES,
    codewords=st.sampled_from([1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33]),
    classes=SIZES,
    samples=SIZES.filter(bool),
    weighted=st.booleans(),
    logits=st.sampled_from(LOGITS),
    fault=st.sampled_from(FAULTS),
    huge=HUGE,
    seed=SEEDS,
)
def midx_draws(n, codewords, classes, samples, weighted, logits, fault, huge, seed):
    arrays = Arrays(seed)
    n = n % 34
    index = make_index(arrays, codewords, classes, weighted)
    rows, columns = (
        arrays.numbers((n, codewords), "large" if logits == "enormous" else logits) for _ in range(2)
    )
    if logits == "enormous":
        rows, columns = rows * np.float32(1e30), columns * np.float32(1e30)
    valid = bool(index.cell_mass.any())
    if fault == "logits" and n:
        arrays.pick([rows, columns])[arrays.random.integers(n), -1] = arrays.pick([np.nan, np.inf, -np.inf])
        valid = False
    if fault == "samples":
        samples, valid = arrays.pick([0, -1, huge, -huge]), False
    if fault == "mass":
        index.cell_mass[-1, -1] += arrays.pick([-1e9, np.nan, np.inf])
        valid = False
    if fault == "offsets":
        spoiled = arrays.spoil(index.cell_offsets, 0, classes + 1)
        index, valid = index._replace(cell_offsets=spoiled), False
    if fault == "empty":
        index.cell_mass[:] = 0
        index, valid = CellIndex(index.cell_mass, index.cell_offsets * 0, index.slots[:0]), False
    given, seeds = (arrays.tensor(rows), arrays.tensor(columns)), arrays.seeds()
    op = library.load().tfxc_midx_draw
    if fault == "shape":
        for bad in misshapen((*given, *index, seeds), [(0, 1), (0, 1), (0, 1), (0,), (0, 1), (0,)]):
            refused(op, *bad, num_samples=1)
            refused(midx_draw, *bad[:2], CellIndex(*bad[2:5]), 1, bad[5])
        return
    if fault == "slots" and classes:
        check_broken(arrays, given, index, samples, seeds)
        return
    drawn = attempt(valid, midx_draw, *given, index, samples, seeds)
    raw = attempt(valid, op, *given, *index, seeds, num_samples=samples)
    if not valid:
        return
    tensors = [tf.constant(part) for part in index]
    for got, again in zip(drawn, raw, strict=True):
        np.testing.assert_array_equal(got, again)
    wanted, log_z = log_q(rows, columns, index)
    position = np.argsort(index.slots[:, 2])
    check_drawn(drawn, wanted, log_z, position, (n, samples))
    for _ in range(MORE_SEEDS):
        drawn = call(op, *given, *tensors, arrays.seeds(), num_samples=samples)
        check_drawn(drawn, wanted, log_z, position, (n, samples))
    if not arrays.chance(0.2):
        return
    partition = call(midx_log_partition, *given, index.cell_mass)
    agree(partition, log_z, 1e-5 * (1 + np.abs(log_z)), "log partition")
    if arrays.chance(0.03):
        stock = call(in_stock_ops(midx_draw), *given, index, samples, seeds)
        check_drawn(stock, wanted, log_z, position, (n, samples))


def check_drawn(drawn, wanted, log_z, position, shape):
    ids, log_prob, log_partition = (part.numpy() for part in drawn)
    assert ids.shape == log_prob.shape == shape
    assert ((ids >= 0) & (ids < len(position))).all()
    agree(log_partition, log_z, 1e-5 * (1 + np.abs(log_z)), "log partition of the draw")
    want = np.take_along_axis(wanted, position[ids], 1) if ids.size else np.zeros(shape)
    assert (want > -50).all(), f"a class of probability exp({want.min()}) was drawn"
    agree(log_prob, want, 2e-5 * (1 + np.abs(want)), "log-probabilities")


def check_broken(arrays, given, index, samples, seeds):
    """Slots with wrong numbers: an error, unless no draw meets them; ids stay in range."""
    slots = index.slots.copy()
    column = arrays.random.integers(4)
    if column in (1, 2):
        slots[:, column] = arrays.spoil(slots[:, column], 0, len(slots))
    else:
        wrong = np.float32(arrays.pick([np.nan, np.inf, -np.inf, -1.0, 2.0]))
        slots[arrays.random.integers(len(slots)), column] = wrong.view(np.int32)
    index, num_classes = index._replace(slots=slots), len(slots)
    check_if_drawn(0, num_classes, midx_draw, *given, index, samples, seeds)
    op = library.load().tfxc_midx_draw
    check_if_drawn(0, num_classes, op, *given, *index, seeds, num_samples=samples)
