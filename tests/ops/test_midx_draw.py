import numpy as np
import pytest
import tensorflow as tf
from kernel_checks import EVERY_SIZE, both_ways, check_independent
from sampler_checks import p_value
from scipy import stats

from tfxc.ops.midx_draw import CellIndex, midx_draw, midx_log_partition, pack_slots
from tfxc.samplers.alias import alias_table


@pytest.fixture(params=both_ways(midx_draw))
def draw(request):
    return request.param


def _index(cells, num_codewords, weights=None):
    cells = np.asarray(cells)
    order = np.argsort(cells, kind="stable")
    counts = np.bincount(cells, minlength=num_codewords**2)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    weights = np.ones(len(cells)) if weights is None else np.asarray(weights, np.float64)
    mass = np.bincount(cells, weights, num_codewords**2).reshape(num_codewords, num_codewords)
    slots = pack_slots(*alias_table(weights[order], offsets), order, weights[order])
    return CellIndex(*map(tf.constant, (mass.astype(np.float32), offsets, slots)))


def _with(index, column, value):
    slots = index.slots.numpy()
    slots[:, column] = np.float32(value).view(np.int32) if isinstance(value, float) else value
    return {"slots": slots}


def _log_prob(u, v, cells, weights=None):
    """``[N, L]`` log Q of every class, in float64, stable; -inf for a class of weight 0."""
    cells, num_codewords = np.asarray(cells), u.shape[1]
    u, v = (x - x.max(axis=1, keepdims=True) for x in (u.astype(np.float64), v.astype(np.float64)))
    logits = u[:, cells // num_codewords] + v[:, cells % num_codewords]
    if weights is not None:
        with np.errstate(divide="ignore"):
            logits += np.log(np.asarray(weights, np.float64))
    top = logits.max(axis=1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("num_codewords, num_classes", [(1, 1), (1, 7), (3, 40), (17, 300)])
def test_frequencies_and_log_prob_follow_the_distribution(draw, num_codewords, num_classes, weighted):
    random = np.random.default_rng(num_classes)
    cells = random.integers(num_codewords**2, size=num_classes)
    weights = random.exponential(size=num_classes) if weighted else None
    u, v = random.normal(size=(2, 3, num_codewords)).astype(np.float32)
    index = _index(cells, num_codewords, weights)
    ids, log_prob, log_partition = draw(u, v, index, 20_000, seed=[7, num_classes])
    assert (ids.dtype, log_prob.dtype) == (tf.int32, tf.float32)
    assert ids.shape == log_prob.shape == (3, 20_000)
    exact = _log_prob(u, v, cells, weights)
    np.testing.assert_allclose(log_prob, np.take_along_axis(exact, ids.numpy(), axis=1), atol=2e-5)
    np.testing.assert_allclose(log_partition, midx_log_partition(u, v, index.cell_mass), atol=2e-6)
    if num_classes > 1:
        assert min(p_value(ids[n].numpy(), np.exp(exact[n])) for n in range(3)) > 1e-3


@pytest.mark.kernels
@EVERY_SIZE
@pytest.mark.parametrize("weighted", [False, True])
def test_log_prob_at_every_size(size, weighted):
    random = np.random.default_rng(size)
    for num_codewords, num_samples, num_queries in ((size, 40, 2), (3, size, 2), (3, 5, size)):
        cells = random.integers(num_codewords**2, size=50)
        weights = random.exponential(size=50) if weighted else None
        u, v = random.normal(size=(2, num_queries, num_codewords)).astype(np.float32)
        index = _index(cells, num_codewords, weights)
        ids, log_prob, log_partition = midx_draw(u, v, index, num_samples, seed=[7, size])
        np.testing.assert_allclose(log_partition, midx_log_partition(u, v, index.cell_mass), atol=2e-6)
        exact = _log_prob(u, v, cells, weights)
        np.testing.assert_allclose(log_prob, np.take_along_axis(exact, ids.numpy(), axis=1), atol=2e-5)


def test_draws_of_a_query_and_of_its_neighbours_are_independent(draw):
    index = _index(np.arange(4), 2)
    ids, *_ = draw(np.zeros((200, 2)), np.zeros((200, 2)), index, 100, seed=[3, 4])
    check_independent(ids.numpy(), [0.25] * 4)


def test_the_log_probability_of_a_likely_class_is_exact(draw):
    """Beside class 0, class 1 has e^-x of its weight: log(1 + e^-x), small, shows e^-x to every digit."""
    x = np.concatenate([np.linspace(0, 30, 301), [87.3, 100, 700, 709, 745, 1e4]]).astype(np.float32)
    u, v = np.stack([np.zeros_like(x), -x], 1), np.zeros((len(x), 2), np.float32)
    ids, log_prob, _ = draw(u, v, _index([0, 2], 2), 50, seed=[2, 3])
    exact = -np.log1p(np.exp(-x.astype(np.float64)))
    found = np.where(ids == 0, log_prob, np.nan)
    assert (ids.numpy()[5:] == 0).any(1).all()
    precise = x < 15  # beyond, 1 + e^-x has fewer digits of e^-x in float64 than float32 has
    wanted = np.where(ids == 0, exact[:, np.newaxis], np.nan)
    np.testing.assert_allclose(found[precise], wanted[precise], rtol=1e-6)
    np.testing.assert_allclose(found[~precise], wanted[~precise], atol=1e-13)


def test_weights_of_any_size_come_with_their_log(draw):
    weights = np.float32([1.2e-38, 1e-36, 1e-30, 1.0, 1 + 2e-7, 1.4142135, 1.4142137, 3e37]).astype(
        np.float64
    )
    for some in (weights[:3], weights[3:]):
        index = _index(np.arange(len(some)), 3, some)
        ids, log_prob, _ = draw(np.zeros((1, 3)), np.zeros((1, 3)), index, 500, seed=[1, 2])
        want = np.log(some) - np.log(some.sum())
        np.testing.assert_allclose(log_prob, want[ids.numpy()], rtol=1e-6, atol=1e-7)


def test_a_class_of_weight_zero_is_never_drawn(draw):
    weights = [0.0, 1.0, 0.0, 0.0, 2.0, 0.0]
    cells = [0, 0, 0, 3, 3, 1]
    ids, log_prob, _ = draw(np.zeros((1, 2)), np.zeros((1, 2)), _index(cells, 2, weights), 3000, seed=[1, 1])
    assert set(ids.numpy().ravel()) == {1, 4}
    np.testing.assert_allclose(np.exp(log_prob), np.where(ids == 1, 1 / 3, 2 / 3), rtol=1e-5)


def test_logits_far_apart_neither_overflow_nor_vanish(draw):
    cells = [1, 1, 2]  # the best row 0 and the best column 0 meet in the empty cell (0, 0)
    u = np.float32([[900.0, -900.0], [1e30, 1e30], [0.0, 0.0]])
    v = np.float32([[900.0, -900.0], [0.0, 1.0], [0.0, 0.0]])
    exact = _log_prob(u, v, cells)
    ids, log_prob, _ = draw(u, v, _index(cells, 2), 2000, seed=[5, 5])
    np.testing.assert_allclose(log_prob, np.take_along_axis(exact, ids.numpy(), axis=1), atol=1e-5)
    assert np.isfinite(log_prob).all()
    assert min(p_value(ids[n].numpy(), np.exp(exact[n])) for n in range(3)) > 1e-3
    partition = midx_log_partition(u[[0, 2]], v[[0, 2]], _index(cells, 2).cell_mass)
    np.testing.assert_allclose(partition, [np.log(3)] * 2, rtol=1e-6)


@pytest.mark.long
def test_every_class_of_a_large_cell_can_be_drawn(draw):
    num_classes = 20_000_000  # more than a float32 uniform has values
    every, ones = np.arange(num_classes, dtype=np.int32), np.ones(num_classes, np.float32)
    index = CellIndex([[float(num_classes)]], [0, num_classes], pack_slots(ones, every, every, ones))
    ids, log_prob, _ = draw(np.zeros((1, 1)), np.zeros((1, 1)), index, 200_000, seed=[2, 9])
    ids = ids.numpy().ravel()
    np.testing.assert_allclose(log_prob, -np.log(num_classes), rtol=1e-6)
    for modulus in (2, 3, 16):
        assert stats.chisquare(np.bincount(ids % modulus)).pvalue > 1e-3
    assert stats.kstest(ids / num_classes, "uniform").pvalue > 1e-3


@pytest.mark.kernels
def test_compiled_draws_are_those_of_philox():
    index = _index(np.zeros(1000, int), 1)
    ids, *_ = midx_draw(np.zeros((1, 1)), np.zeros((1, 1)), index, 1, seed=[0, 0])
    # Published known answer for counter 0, key 0: 6627e8d5 e169c58d bc57ac4c 9b00dbd8.
    assert ids.numpy().item() == 0x9B00DBD8BC57AC4C * 1000 >> 64


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["row_logits", "column_logits"])
def test_logits_that_are_not_finite_name_the_query(draw, bad, name):
    logits = {"row_logits": np.zeros((9, 3), np.float32), "column_logits": np.zeros((9, 3), np.float32)}
    logits[name][7, 1] = bad
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"{name} must be finite(.|\n)*7"):
        draw(**logits, index=_index([0, 4], 3), num_samples=2, seed=[0, 0])


def _spoiled_indices():
    sound, weighted = _index([0, 0, 3], 2), _index([0, 0, 3], 2, [1.0, 2.0, 3.0])
    aliases = _with(weighted, 0, 0.0)["slots"]
    spoil = {
        "decreasing offsets": (sound, {"cell_offsets": [0, 3, 2, 2, 3]}, "cell_offsets"),
        "first offset": (sound, {"cell_offsets": [1, 2, 2, 2, 3]}, "cell_offsets"),
        "last offset": (sound, {"cell_offsets": [0, 2, 2, 2, 4]}, "cell_offsets"),
        "mass of an empty cell": (sound, {"cell_mass": [[2.0, 1.0], [0.0, 1.0]]}, "cell_mass"),
        "negative mass": (sound, {"cell_mass": [[-2.0, 0.0], [0.0, 1.0]]}, "cell_mass"),
        "NaN mass": (sound, {"cell_mass": [[np.nan, 0.0], [0.0, 1.0]]}, "cell_mass"),
        "class too large": (sound, _with(sound, 2, 3), "slots"),
        "negative class": (sound, _with(sound, 2, -1), "slots"),
        "NaN weight": (weighted, _with(weighted, 3, float("nan")), "slots"),
        "negative weight": (weighted, _with(weighted, 3, -1.0), "slots"),
        "alias too large": (weighted, {"slots": aliases + [0, 2**30, 0, 0]}, "slots|ind"),
        "negative alias": (weighted, {"slots": aliases - [0, 9, 0, 0]}, "slots|ind"),
        "no classes": (_index(np.zeros(0, int), 2), {}, "All of cell_mass is 0"),
        "no weight": (_index([0, 3], 2, [0.0, 0.0]), {}, "All of cell_mass is 0"),
    }
    return [pytest.param(*case, id=name) for name, case in spoil.items()]


@pytest.mark.parametrize("index, parts, message", _spoiled_indices())
def test_a_malformed_index_is_an_error(draw, index, parts, message):
    index = index._replace(**parts)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        draw(np.zeros((1, 2)), np.zeros((1, 2)), index, 50, seed=[0, 0])


def test_shapes_that_do_not_fit_are_errors(draw):
    index, zeros = _index([0, 0, 3], 2), np.zeros((2, 2))
    with pytest.raises(ValueError, match=r"num_samples must be an integer in \[1, 16777216\], but got 0"):
        draw(zeros, zeros, index, 0, seed=[0, 0])
    with pytest.raises(ValueError, match=r"an integer in \[1, 16777216\], but got 4611686018427387904"):
        draw(zeros, zeros, index, 2**62, seed=[0, 0])
    slots, one_seed = index.slots, [0, 0]
    # What the compiled op says, and what comes of it in the other way.
    for arguments, message in [
        ((np.zeros((2, 3)), np.zeros((2, 3)), index), r"cell_mass"),
        ((zeros, np.zeros((3, 2)), index), r"\[3,2\]|Incompatible shapes"),
        ((zeros, zeros, index._replace(cell_offsets=[0, 2, 3])), r"cell_offsets|reshape"),
        ((zeros, zeros, index._replace(slots=slots[:2])), r"cell_offsets must .* end at L = 2"),
        ((zeros, zeros, index._replace(slots=slots[:, :3])), r"slots \[L, 4\].*\[3,3\]|expected 4, got 3"),
        ((zeros, zeros, index._replace(slots=slots[:, 0])), r"slots \[L, 4\].* \[3\]|expected 4, got 1"),
    ]:
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=message):
            draw(*arguments, 1, seed=one_seed)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=r"seed must have shape \[2\]"):
        draw(zeros, zeros, index, 1, seed=[0, 0, 0])


@pytest.mark.parametrize("num_codewords, queries", [(1, 1), (5, 3), (16, 7)])
def test_log_partition(num_codewords, queries):
    random = np.random.default_rng(num_codewords)
    u, v = 5 * random.normal(size=(2, queries, num_codewords)).astype(np.float32)
    mass = random.poisson(1.0, size=(num_codewords, num_codewords)).astype(np.float32)
    mass[0, 0] = 3.0
    expected = np.log(np.einsum("na,ab,nb->n", np.exp(u, dtype=float), mass, np.exp(v, dtype=float)))
    found = midx_log_partition(u, v, mass)
    assert found.dtype == tf.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    shifted = tf.function(midx_log_partition)(u + 300, v - 900, mass)
    np.testing.assert_allclose(shifted, expected - 600, rtol=1e-6)


def test_log_partition_without_mass_is_minus_infinity():
    np.testing.assert_array_equal(midx_log_partition([[1.0]], [[1.0]], [[0.0]]), [-np.inf])
