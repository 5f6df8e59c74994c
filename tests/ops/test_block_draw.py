import numpy as np
import pytest
import tensorflow as tf
from kernel_checks import EVERY_SIZE, both_ways, check_independent
from sampler_checks import p_value

from tfxc.ops.block_draw import BlockIndex, Kernel, block_draw, block_log_prob

BOTH = pytest.mark.parametrize(("draw", "log_prob_of"), both_ways(block_draw, block_log_prob))
QUADRATIC = Kernel(quadratic=2.0, linear=0.0, constant=1.0, floor=1.0)
CLAMPED = Kernel(quadratic=0.0, linear=1.0, constant=0.0, floor=0.05)


def problem(num_classes, width, block_size, kernel, num_queries=3):
    """Queries, block masses, the index, and Q float64 [N, L] by hand."""
    random = np.random.default_rng(num_classes)
    query = random.normal(size=(num_queries, width)).astype(np.float32)
    rows = random.normal(size=(num_classes, width)).astype(np.float32)
    products = query.astype(np.float64) @ rows.T
    values = (kernel.quadratic * products + kernel.linear) * products + kernel.constant
    starts = np.arange(0, num_classes, block_size)
    sizes = np.diff(np.append(starts, num_classes))
    mass = np.add.reduceat(values - kernel.constant, starts, axis=1)
    weights = np.maximum(values, kernel.floor)
    share = np.maximum(mass + kernel.constant * sizes, kernel.floor * sizes)
    share /= share.sum(1, keepdims=True) * np.add.reduceat(weights, starts, axis=1)
    index = BlockIndex(tf.Variable(rows), block_size, kernel)
    return query, mass.astype(np.float32), index, weights * np.repeat(share, sizes, axis=1)


@BOTH
@pytest.mark.parametrize("kernel", [QUADRATIC, CLAMPED], ids=["quadratic", "clamped"])
@pytest.mark.parametrize(
    ("num_classes", "width", "block_size"),
    [(1, 3, 8), (50, 5, 7), (100, 17, 100), (130, 4, 1)],
)
def test_frequencies_and_log_prob_follow_the_distribution(
    draw, log_prob_of, kernel, num_classes, width, block_size
):
    query, mass, index, probs = problem(num_classes, width, block_size, kernel)
    np.testing.assert_allclose(probs.sum(1), 1, rtol=1e-6)
    ids, log_prob = draw(query, mass, index, 20_000, seed=[7, num_classes])
    assert ids.dtype == tf.int32 and log_prob.dtype == tf.float32
    assert ids.shape == log_prob.shape == (3, 20_000)
    np.testing.assert_allclose(np.exp(log_prob), np.take_along_axis(probs, ids.numpy(), 1), rtol=1e-4)
    every = np.tile(np.arange(num_classes), (3, 1))
    np.testing.assert_allclose(np.exp(log_prob_of(query, mass, index, every)), probs, rtol=1e-4)
    assert min(p_value(found, prob) for found, prob in zip(ids.numpy(), probs, strict=True)) > 1e-3


@pytest.mark.kernels
@EVERY_SIZE
@pytest.mark.parametrize("place", ["num_classes", "width", "block_size", "num_queries"])
def test_log_prob_at_every_size(place, size):
    sizes = {"num_classes": 70, "width": 5, "block_size": 24, "num_queries": 3, place: size}
    for kernel in (QUADRATIC, CLAMPED):
        query, mass, index, probs = problem(kernel=kernel, **sizes)
        ids, log_prob = block_draw(query, mass, index, size, seed=[7, size])
        np.testing.assert_allclose(np.exp(log_prob), np.take_along_axis(probs, ids.numpy(), 1), rtol=2e-4)
        every = np.tile(np.arange(sizes["num_classes"]), (sizes["num_queries"], 1))
        np.testing.assert_allclose(np.exp(block_log_prob(query, mass, index, every)), probs, rtol=2e-4)


@BOTH
def test_hand_worked_case(draw, log_prob_of):
    # Blocks {0, 1} and {2}; weights max(o, 0.5) are 3, 0.5 and 2; the masses say 1 and 3, the first 2 : 6.
    index = BlockIndex(tf.Variable([[3.0], [-1.0], [2.0]]), 2, Kernel(0.0, 1.0, 0.0, 0.5))
    want = [2 / 8 * 3 / 3.5, 2 / 8 * 0.5 / 3.5, 6 / 8]
    found = np.exp(log_prob_of([[1.0]], [[2.0, 6.0]], index, [[0, 1, 2]]))
    np.testing.assert_allclose(found, [want], rtol=1e-6)
    # A mass below floor · |block| counts as that: 1 and 0.5.
    found = np.exp(log_prob_of([[1.0]], [[-4.0, 0.1]], index, [[2, 2, 0]]))
    np.testing.assert_allclose(found, [[1 / 3, 1 / 3, 2 / 3 * 3 / 3.5]], rtol=1e-6)
    assert set(draw([[1.0]], [[2.0, 6.0]], index, 500, seed=[0, 0])[0].numpy().ravel()) == {0, 1, 2}


@BOTH
def test_many_queries_in_one_block_and_each_in_its_own(draw, log_prob_of):
    """Queries are worked on 16 at a time: 40 in a block are three groups, one of them not full."""
    query, mass, index, probs = problem(64, 6, 8, QUADRATIC, num_queries=40)
    for sure in ({}, {0: 3}, {n: n % 8 for n in range(40)}):
        mass = mass.copy()
        for n in range(40):
            if n in sure or sure == {0: 3}:
                mass[n], mass[n, sure.get(n, 3)] = 0.0, 1e9
        ids, log_prob = draw(query, mass, index, 9, seed=[3, 4])
        again = log_prob_of(query, mass, index, ids)
        np.testing.assert_allclose(log_prob, again, rtol=1e-4, atol=1e-5)
        if sure:
            assert (ids.numpy() // 8 == [[sure.get(n, 3)] for n in range(40)]).all()


@BOTH
def test_draws_of_a_query_and_of_its_neighbours_are_independent(draw, log_prob_of):
    index = BlockIndex(tf.Variable(tf.zeros([4, 1])), 2, QUADRATIC)
    ids = draw(np.zeros((200, 1)), np.zeros((200, 2)), index, 100, seed=[3, 4])[0].numpy()
    check_independent(ids, [0.25] * 4)


@BOTH
def test_a_changed_row_is_seen_by_a_traced_function(draw, log_prob_of):
    index = BlockIndex(tf.Variable([[1.0], [1.0]]), 2, QUADRATIC)
    ask = tf.function(lambda: log_prob_of([[1.0]], [[4.0]], index, [[0, 1]]))
    np.testing.assert_allclose(np.exp(ask()), [[0.5, 0.5]], rtol=1e-6)
    index.rows.scatter_update(tf.IndexedSlices(tf.constant([[0.0]]), [1]))
    np.testing.assert_allclose(np.exp(ask()), [[0.75, 0.25]], rtol=1e-6)


@BOTH
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_mass_that_is_not_finite_names_the_query(draw, log_prob_of, bad):
    index, mass = BlockIndex(tf.Variable(tf.zeros([4, 2])), 2, QUADRATIC), np.ones((9, 2))
    mass[7, 1] = bad
    for call in (
        lambda: draw(np.zeros((9, 2)), mass, index, 2, seed=[0, 0]),
        lambda: log_prob_of(np.zeros((9, 2)), mass, index, np.zeros((9, 1), int)),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"block_mass must be finite(.|\n)*7"):
            call()


@BOTH
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_an_error(draw, log_prob_of, bad):
    index = BlockIndex(tf.Variable([[0.0], [bad]]), 2, QUADRATIC)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not finite"):
        draw([[1.0]], [[2.0]], index, 2, seed=[0, 0])


@BOTH
@pytest.mark.parametrize("bad", [-1, 4])
def test_a_class_outside_the_range_is_named(draw, log_prob_of, bad):
    index = BlockIndex(tf.Variable(tf.zeros([4, 2])), 2, QUADRATIC)
    message = rf"class_ids(.|\n)*{bad}.*(ids are 0 to 3|is outside \[0, 4\))"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        log_prob_of(np.zeros((2, 2)), np.ones((2, 2)), index, [[0, 1], [bad, 2]])
    with pytest.raises(tf.errors.InvalidArgumentError, match=str(2**32 + 1)):  # is not cut
        log_prob_of(np.zeros((2, 2)), np.ones((2, 2)), index, np.array([[0, 1], [2**32 + 1, 2]]))


@pytest.mark.long
@BOTH
def test_shapes_that_do_not_fit_are_errors(draw, log_prob_of):
    index = BlockIndex(tf.Variable(tf.zeros([5, 3])), 2, QUADRATIC)
    query = np.zeros((2, 3))
    mass = np.ones((2, 3))
    with pytest.raises(ValueError, match=r"num_samples must be an integer in \[1, 16777216\], but got 0"):
        draw(query, mass, index, 0, seed=[0, 0])
    message = r"must be an integer in \[1, 16777216\], but got 4611686018427387904"
    with pytest.raises(ValueError, match=message):
        draw(query, mass, index, 2**62, seed=[0, 0])
    for bad in (0, 2.5):
        with pytest.raises(ValueError, match=f"block_size must be an integer of at least 1, but got {bad}"):
            draw(query, mass, index._replace(block_size=bad), 1, seed=[0, 0])
    with pytest.raises(ValueError, match="floor must be above 0, but got 0"):
        draw(query, mass, index._replace(kernel=Kernel(1.0, 0.0, 0.0, 0.0)), 1, seed=[0, 0])
    for queries, masses in ((query[:, :2], mass), (query, mass[:, :2]), (query[:1], mass), (query[0], mass)):
        with pytest.raises(ValueError, match=r"query must be \[N, 3\] and block_mass \[N, 3\]"):
            draw(queries, masses, index, 1, seed=[0, 0])
    # What the compiled op says, and what comes of it in the other way.
    wrong = tf.errors.InvalidArgumentError
    with pytest.raises(wrong, match=r"seed must have shape \[2\]"):
        draw(query, mass, index, 1, seed=[0, 0, 0])
    with pytest.raises(wrong, match=r"class_ids.*\[1,1\]|reshape"):
        log_prob_of(query, mass, index, [[1]])
    with pytest.raises(wrong, match=r"class_ids.*\[2\]|slice index 1 of dimension 0"):
        log_prob_of(query, mass, index, [1, 2])
    unknown = tf.TensorSpec([None, None], tf.float32)
    traced = tf.function(
        lambda query, mass: draw(query, mass, index, 1, [0, 0]), input_signature=[unknown] * 2
    )
    with pytest.raises(wrong, match=r"block_mass.*\[2,2\]|Incompatible shapes"):
        traced(tf.zeros([2, 3]), tf.ones([2, 2]))
