import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import NUM_CLASSES, learnable, make_model
from head_checks import CLOSE, check_logits, check_top_k, queries

from tfxc import losses, optimizers
from tfxc._keras.weights import tf_variable
from tfxc.layers import UniformSparseHead
from tfxc.search import InvertedIndex, faiss_index


def make_head(num_classes=9, fan_in=3, num_inputs=7, use_bias=True, seed=1, group_size=1):
    head = UniformSparseHead(num_classes, fan_in, use_bias=use_bias, seed=seed, group_size=group_size)
    head.build((None, num_inputs))
    if use_bias:
        tf_variable(head.bias).assign(np.random.default_rng(2).normal(size=num_classes))
    return head


def dense_weights(head):
    """The head's weights as a matrix [L, E] of float64."""
    weights = np.zeros((head.num_classes, head.num_inputs))
    inputs = np.repeat(tf_variable(head.indices).numpy(), head.group_size, 0)[: head.num_classes]
    np.put_along_axis(weights, inputs, tf_variable(head.kernel).numpy(), 1)
    return weights


def numpy_logits(head, query):
    bias = tf_variable(head.bias).numpy() if head.use_bias else 0.0
    return np.asarray(query, np.float64) @ dense_weights(head).T + bias


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1), (9, 3, 7), (30, 5, 5)])
@pytest.mark.parametrize(("num_queries", "group_size"), [(1, 1), (4, 1), (4, 4), (50, 7)])
def test_every_way_to_a_logit_agrees_and_top_k(shape, num_queries, group_size, use_bias, tiny_blocks):
    head = make_head(*shape, use_bias=use_bias, group_size=group_size)
    query = queries(num_queries, shape[2])
    logits = numpy_logits(head, query)
    check_logits(head, query, logits)
    check_top_k(head, query, logits, min(4, shape[0]))


def check_equal(head, query, *functions):
    """Two functions of queries give the same losses [N], and gradients of queries, kernel and biases."""
    sources, found = [query, tf_variable(head.kernel), tf_variable(head.bias)], []
    for function in functions:
        with tf.GradientTape() as tape:
            tape.watch(query)
            losses_of = function(query)
        found.append([losses_of, *tape.gradient(losses_of, sources)])
    np.testing.assert_allclose(*(tf.reduce_sum(losses_of) for losses_of, *_ in found), rtol=1e-5)
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(tf.convert_to_tensor(one), tf.convert_to_tensor(other), **CLOSE)
    return found[0]


def test_the_gradient_of_chosen_scores_is_sparse():
    head, query, ids = make_head(), tf.constant(queries(2, 7)), tf.constant([[2, 8], [2, 0]])
    picked = lambda query: tf.gather(head(query), ids, batch_dims=1) ** 2  # noqa: E731
    gradients = check_equal(head, query, lambda query: head.score(query, ids) ** 2, picked)
    assert isinstance(gradients[2], tf.IndexedSlices)


class Unknown(losses.SquaredHinge):
    over_classes = losses.SQUARED_HINGE._replace(kernel=None)


@pytest.mark.parametrize(
    "loss", [losses.SquaredHinge(), losses.BinaryCrossentropy(), losses.SoftmaxCrossentropy(), Unknown()]
)
def test_the_streamed_loss_equals_that_on_all_logits(loss):
    head, query = make_head(), tf.constant(queries(3, 7))
    labels = tf.constant([[2, 5], [0, -1], [-1, -1]])
    streamed = lambda query: loss.combine(*head.reduce(query, labels, loss), labels >= 0)  # noqa: E731
    check_equal(head, query, streamed, lambda query: loss.call(labels, head(query)))


def varied(num_queries, num_inputs=400, seed=0):
    """Queries behind a ReLU layer, which vary in few directions around their mean."""
    random = np.random.default_rng(seed)
    directions = np.random.default_rng(9).normal(size=(6, num_inputs))
    return np.maximum(random.normal(size=(num_queries, 6)) @ directions, 0).astype(np.float32)


def estimates(head, query):
    vectors = tf.concat([head.class_vectors(0, 77), head.class_vectors(77, head.num_classes)], 0)
    assert vectors.shape == (head.num_classes, head.effective_dim)
    np.testing.assert_allclose(head.class_vectors_of([99, 0]), tf.gather(vectors, [99, 0]), **CLOSE)
    return tf.matmul(head.effective_query(query), vectors, transpose_b=True).numpy()


@pytest.mark.parametrize(("use_bias", "group_size"), [(True, 1), (False, 1), (True, 7)])
def test_class_vectors_tell_the_logits_of_queries_like_those_of_the_steps(use_bias, group_size):
    head = make_head(100, 4, 400, use_bias, group_size=group_size)
    for seed in range(17):
        head.observe(tf.constant(varied(128, seed=seed)))
    query = varied(50, seed=77)
    for _ in range(2):
        head.prepare_index()
        want = numpy_logits(head, query)
        error = np.std(estimates(head, query) - want) / np.std(want - want.mean(0))
        assert error < 0.15
        head.rewire(0.5)  # the directions hold for any connections


def test_with_few_inputs_class_vectors_tell_the_logits_exactly():
    head, query = make_head(100, 4, 40), queries(50, 40)
    assert head.indexable
    np.testing.assert_allclose(estimates(head, query), numpy_logits(head, query), **CLOSE)
    head.observe(query)
    head.prepare_index()
    np.testing.assert_allclose(estimates(head, query), numpy_logits(head, query), **CLOSE)


def test_directions_change_with_an_index_only():
    head = make_head(100, 4, 400)
    assert not head.indexable
    head.observe(tf.constant(varied(8)))
    first = head.effective_query(varied(2))
    head.prepare_index()
    assert head.indexable and np.abs(head.effective_query(varied(2)) - first).max() > 0
    before = tf_variable(head.directions).numpy()
    head.prepare_index()
    np.testing.assert_array_equal(tf_variable(head.directions).numpy(), before)


@pytest.mark.parametrize("make_index", [faiss_index, lambda head: InvertedIndex().build_from(head)])
def test_an_index_needs_the_queries_of_a_step(make_index):
    head = make_head(100, 4, 400)
    with pytest.raises(ValueError, match="train it first"):
        make_index(head)
    head.observe(tf.constant(varied(8)))
    make_index(head)


@pytest.mark.parametrize("fraction", [0.0, 0.01, 0.4, 1.0])
def test_rewiring_moves_the_weakest(fraction):
    head = make_head(50, 5, 40)
    before, old = dense_weights(head), tf_variable(head.kernel).numpy()
    logs = head.rewire(fraction)
    num_moved = max(round(5 * fraction), 1 if fraction else 0)
    indices, kernel = tf_variable(head.indices).numpy(), tf_variable(head.kernel).numpy()
    assert logs["moved"] == 50 * num_moved
    assert all(len(set(row)) == 5 for row in indices) and indices.min() >= 0 and indices.max() < 40
    assert ((kernel == 0).sum(1) == num_moved).all()
    after = dense_weights(head)
    kept = np.sort(np.abs(old), 1)[:, num_moved:]
    np.testing.assert_array_equal(np.sort(np.abs(after), 1)[:, -5:][:, num_moved:], kept)
    assert (after[after != 0] == before[after != 0]).all()
    if num_moved:
        np.testing.assert_allclose(logs["dropped_magnitude"], np.sort(np.abs(old), 1)[:, :num_moved].mean())
    assert make_head(6, 7, 7).rewire(fraction)["moved"] == 0  # no input is left to grow


@pytest.mark.parametrize("group_size", [1, 4, 100])
def test_a_group_moves_an_input_for_all_its_classes_and_the_optimizer_forgets_the_dropped(group_size):
    x, y = learnable(64)
    head = UniformSparseHead(NUM_CLASSES, 4, use_bias=True, seed=0, group_size=group_size)
    model = make_model(None, losses.SquaredHinge(), head, optimizer=optimizers.LazyAdam(0.01))
    model.fit(x, y, verbose=0)
    old, read = tf_variable(head.kernel).numpy(), tf_variable(head.indices).numpy()
    logs, slots = head.rewire(0.25, model.optimizer), model.optimizer.slots_of(head.kernel)
    new, reads = tf_variable(head.kernel).numpy(), tf_variable(head.indices).numpy()
    assert logs["moved"] == NUM_CLASSES and all(len(set(row)) == 4 for row in reads)
    for group, (before, after) in enumerate(zip(read, reads, strict=True)):
        classes = slice(group * group_size, (group + 1) * group_size)
        weakest = np.argmin(np.square(old[classes]).sum(0))
        assert np.flatnonzero(before != after).tolist() == [weakest]
        assert (new[classes, weakest] == 0).all()
        kept = np.delete(np.arange(4), weakest)
        np.testing.assert_array_equal(new[classes][:, kept], old[classes][:, kept])
        momentum, squares = (slots[name].numpy()[classes] for name in ("momentum", "velocity"))
        assert (momentum[:, weakest] == 0).all() and (momentum[:, kept] != 0).any()
        np.testing.assert_allclose(squares[:, weakest], squares[:, kept].mean(1), rtol=1e-5)


def test_a_group_has_one_row_of_inputs_and_its_classes_cannot_change():
    assert tf_variable(make_head(20, 3, 9).indices).shape == (20, 3)
    head = make_head(20, 3, 9, group_size=8)
    assert tf_variable(head.indices).shape == (3, 3)
    with pytest.raises(ValueError, match="group_size=8 cannot change"):
        head.config_for(np.arange(20))


def test_every_rewire_is_different_and_the_seed_decides():
    def rewired(seed, times):
        head = make_head(30, 4, 50, seed=seed)
        for _ in range(times):
            head.rewire(0.5)
        return tf_variable(head.indices).numpy()

    np.testing.assert_array_equal(rewired(1, 2), rewired(1, 2))
    assert (rewired(1, 1) != rewired(1, 2)).any() and (rewired(1, 1) != rewired(2, 1)).any()


def test_new_connections_are_not_those_that_neighbours_had():
    head = make_head(3000, 4, 1000, seed=5)
    before = tf_variable(head.indices).numpy()
    head.rewire(0.25)
    after = tf_variable(head.indices).numpy()
    new = after[after != before]
    assert len(new) == len(before)
    for column in before.T:
        same = [np.mean(new[shift:] == column[: len(new) - shift]) for shift in range(50)]
        assert max(same) < 0.05


def test_a_class_of_a_group_whose_weights_are_not_finite_is_named():
    head = make_head(40, 3, 20, group_size=16)
    weights = tf_variable(head.kernel).numpy()
    weights[37, 1] = np.nan
    tf_variable(head.kernel).assign(weights)
    with pytest.raises(ValueError, match="weights of class 37 are not finite"):
        head.rewire(0.5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *((lambda bad=bad: UniformSparseHead(5, bad), "fan_in must be an int") for bad in (0, 2.0, None)),
        *((lambda bad=bad: make_head(group_size=bad), "group_size must be an int") for bad in (0, 2.0)),
        (lambda: make_head(seed=-1), "seed must be an integer of at least 0, but got -1"),
        (lambda: make_head(5, 8, 7), "fan_in is 8, but there are only 7 inputs"),
        (lambda: make_head().rewire(-0.1), r"fraction must be in \[0, 1\], but got -0.1"),
        (lambda: make_head().rewire(1.1), r"fraction must be in \[0, 1\], but got 1.1"),
    ],
)
def test_arguments_are_checked(make, message):
    with pytest.raises(ValueError, match=message):
        make()
