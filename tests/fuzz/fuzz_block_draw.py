import numpy as np
import tensorflow as tf
from fuzz_arrays import Arrays, agree, misshapen
from fuzz_targets import HUGE, SEEDS, SIZES, attempt, call, fuzz, in_stock_ops, refused
from hypothesis import strategies as st

from tfxc.ops import library
from tfxc.ops.block_draw import BlockIndex, Kernel, block_draw, block_log_prob

KERNELS = (
    Kernel(1.0, 0.0, 1.0, 1.0),
    Kernel(0.0, 1.0, 2.0, 0.5),
    Kernel(0.0, 0.0, 0.0, 1e-3),
    Kernel(100.0, 0.0, 0.0, 1e-30),
)
MORE_SEEDS = 8  # by one distribution
FAULTS = (*["none"] * 9, "mass", "id", "samples", "block", "kernel", "shape", "rows")


@fuzz(
    n=SIZES,
    classes=SIZES.filter(bool),
    features=SIZES,
    block=SIZES.filter(bool) | HUGE,
    samples=SIZES.filter(bool),
    kernel=st.sampled_from(range(len(KERNELS))),
    fault=st.sampled_from(FAULTS),
    huge=HUGE,
    seed=SEEDS,
)
def block_draws(n, classes, features, block, samples, kernel, fault, huge, seed):
    arrays = Arrays(seed)
    n, samples, kernel = n % 34, samples % 65 + 1, KERNELS[kernel]
    rows, query = arrays.numbers((classes, features)), arrays.numbers((n, features))
    products = query.astype(np.float64) @ rows.T.astype(np.float64)
    blocks = -(-classes // block)
    of_block = np.minimum(np.arange(classes) // block, blocks)
    own = (kernel.quadratic * products + kernel.linear) * products
    mass = np.zeros((n, blocks))
    np.add.at(mass, (slice(None), of_block), own)
    mass = mass.astype(np.float32)
    ids = arrays.ids((n, arrays.random.integers(0, 5)), classes)
    draw = look = True
    if fault == "mass" and n:
        mass[-1, -1], draw, look = arrays.pick([np.nan, np.inf, -np.inf]), False, False
    if fault == "id" and (spoiled := arrays.spoil(ids, 0, classes)) is not None:
        ids, look = spoiled, False
    if fault == "rows" and n and features:
        rows[:], draw, look = np.nan, False, not ids.size
    if fault == "samples":
        samples, draw = arrays.pick([0, -1, huge, -huge]), False
    if fault == "block":
        block, draw, look = arrays.pick([0, -1, -huge]), False, False
    if fault == "kernel":
        kernel = kernel._replace(floor=arrays.pick([0.0, -1.0, float("nan")]))
        draw = look = False
    variable = tf.Variable(rows)
    index = BlockIndex(variable, block, kernel)
    given = arrays.tensor(query), arrays.tensor(mass)
    if fault == "shape":
        check_shapes(given, index, ids, huge)
        return
    ops, attributes, seeds = library.load(), {"kernel": list(kernel), "block_size": block}, arrays.seeds()
    drawn = attempt(draw, block_draw, *given, index, samples, seeds)
    handles = variable.handle, *given
    raw = attempt(draw, ops.tfxc_block_draw, *handles, seeds, num_samples=samples, **attributes)
    looked = attempt(look, block_log_prob, *given, index, ids)
    attempt(look, ops.tfxc_block_log_prob, *handles, ids, **attributes)
    if not (draw or look) or fault == "rows":
        return
    wanted, tolerance = log_q(products, np.sqrt(np.abs(query) ** 2 @ (rows**2).T), mass, of_block, kernel)
    for _ in range(MORE_SEEDS if look and draw else 0):
        more = arrays.ids((n, 7), classes)
        found = call(ops.tfxc_block_log_prob, *handles, more, **attributes)
        want, error = (np.take_along_axis(part, more, 1) for part in (wanted, tolerance))
        agree(found, want, error, "log-probabilities of classes")
    if look:
        want, error = (np.take_along_axis(part, ids, 1) for part in (wanted, tolerance))
        agree(looked, want, error, "log-probabilities of classes")
    if draw:
        for got, again in zip(drawn, raw, strict=True):
            np.testing.assert_array_equal(got, again)
        check_drawn(drawn, wanted, tolerance, (n, samples))
        for _ in range(MORE_SEEDS):
            more = arrays.seeds()
            drawn = call(ops.tfxc_block_draw, *handles, more, num_samples=samples, **attributes)
            check_drawn(drawn, wanted, tolerance, (n, samples))
        if arrays.chance(0.03) and block < 1000:
            stock = call(in_stock_ops(block_draw), *given, index, samples, seeds)
            check_drawn(stock, wanted, tolerance, (n, samples))


def log_q(products, sizes, mass, of_block, kernel):
    """log Q [N, L] and its error, by the masses as given."""
    weights = (kernel.quadratic * products + kernel.linear) * products + kernel.constant
    weights = np.maximum(weights, kernel.floor)
    slope = 2 * kernel.quadratic * np.abs(products) + abs(kernel.linear)
    grown = (kernel.quadratic * np.abs(products) + abs(kernel.linear)) * np.abs(products)
    error = slope * 4e-6 * sizes + kernel.quadratic * (4e-6 * sizes) ** 2
    error += 1e-6 * (grown + kernel.constant + kernel.floor)
    sums, errors = np.zeros(mass.shape), np.zeros(mass.shape)
    np.add.at(sums, (slice(None), of_block), weights)
    np.add.at(errors, (slice(None), of_block), error)
    size = np.bincount(of_block, minlength=mass.shape[1])
    floored = np.maximum(mass.astype(np.float64) + kernel.constant * size, kernel.floor * size)
    mass_error = 1e-6 * (np.abs(mass) + (kernel.constant + kernel.floor) * size)
    of_mass = mass_error / floored + mass_error.sum(1, keepdims=True) / floored.sum(1, keepdims=True)
    share = floored / floored.sum(1, keepdims=True)
    own = error / weights + (errors / sums)[:, of_block] + of_mass[:, of_block]
    # The difference of two nearly equal running sums has an error of its own.
    own += 1e-14 * sums[:, of_block] / weights + 1e-14 / share[:, of_block]
    want = np.log(weights) - np.log(sums)[:, of_block] + np.log(share)[:, of_block]
    return want, np.where(own < 0.3, 2 * own, np.inf) + 1e-5 * (1 + np.abs(want))


def check_drawn(drawn, wanted, tolerance, shape):
    ids, log_prob = (part.numpy() for part in drawn)
    assert ids.shape == log_prob.shape == shape
    assert ((ids >= 0) & (ids < wanted.shape[1])).all()
    want, error = (np.take_along_axis(part, ids, 1) for part in (wanted, tolerance))
    agree(log_prob, want, error, "log-probabilities of draws")


def check_shapes(given, index, ids, huge):
    ops, seeds, (query, mass) = library.load(), tf.constant([1, 2], tf.int64), given
    attributes = {"kernel": list(index.kernel), "block_size": index.block_size}

    def refuse(handle, query, mass, **attributes):
        refused(ops.tfxc_block_draw, handle, query, mass, seeds, num_samples=1, **attributes)
        refused(ops.tfxc_block_log_prob, handle, query, mass, ids, **attributes)

    for bad in misshapen(given, [(0, 1), (0, 1)]):
        refuse(index.rows.handle, *bad, **attributes)
        refused(block_draw, *bad, index, 1, [1, 2])
        refused(block_log_prob, *bad, index, ids)
    for *bad, bad_ids in misshapen((*given, ids), [(), (), (0,)]):
        refused(ops.tfxc_block_log_prob, index.rows.handle, *bad, bad_ids, **attributes)
    for *bad, bad_seeds in misshapen((*given, seeds), [(), (), (0,)]):
        refused(ops.tfxc_block_draw, index.rows.handle, *bad, bad_seeds, num_samples=1, **attributes)
    for kernel in [1.0] * 3, [1.0] * 5, []:
        refuse(index.rows.handle, *given, **{**attributes, "kernel": kernel})
    none = tf.zeros([0, query.shape[1]])
    for rows in tf.zeros([3]), tf.zeros(index.rows.shape, tf.float64), none:
        refuse(tf.Variable(rows).handle, *given, **attributes)
    if huge < 1 << 60:  # one block of all the rows of no width
        wide, of_block = tf.Variable(tf.zeros([huge, 0])), {**attributes, "block_size": huge}
        refuse(wide.handle, query[:, :0], mass[:, :1], **of_block)
