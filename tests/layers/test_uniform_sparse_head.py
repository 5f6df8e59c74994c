import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import NUM_CLASSES, dense_encoder, learnable, make_model
from head_checks import queries, tiny_blocks  # noqa: F401
from long_cases import long_after

from tfxc import losses, optimizers, samplers
from tfxc._keras import keras
from tfxc._keras.weights import tf_variable
from tfxc.layers import UniformSparseHead
from tfxc.search import InvertedIndex, faiss_index

CLOSE = {"rtol": 1e-4, "atol": 1e-5}


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
def test_every_way_to_a_logit_agrees(shape, num_queries, group_size, use_bias):
    head = make_head(*shape, use_bias=use_bias, group_size=group_size)
    query = queries(num_queries, shape[2])
    want = numpy_logits(head, query)
    np.testing.assert_allclose(head(query), want, **CLOSE)
    np.testing.assert_allclose(head.blocks(query)(0, shape[0]), want, **CLOSE)
    ids = np.random.default_rng(0).integers(-1, shape[0], size=(num_queries, 5)).astype(np.int32)
    scored = np.where(ids >= 0, np.take_along_axis(want, np.maximum(ids, 0), 1), 0)
    np.testing.assert_allclose(head.score(query, tf.constant(ids)), scored, **CLOSE)
    shared = np.where(ids[:1] >= 0, want[:, np.maximum(ids[0], 0)], 0)
    np.testing.assert_allclose(head.score(query, tf.constant(ids[0])), shared, **CLOSE)


def test_sequence_queries():
    head, query = make_head(), queries(6, 7)
    np.testing.assert_allclose(
        head(query.reshape(2, 3, 7)), numpy_logits(head, query).reshape(2, 3, 9), **CLOSE
    )


@pytest.mark.parametrize(("num_classes", "num_queries"), [(1, 1), (13, 1), (50, 3)])
def test_top_k_equals_ranking_all_logits(tiny_blocks, num_classes, num_queries):  # noqa: F811
    head, query = make_head(num_classes), queries(num_queries, 7)
    logits, k = numpy_logits(head, query), min(4, num_classes)
    scores, ids = head.top_k(query, k)
    want = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(ids, want)
    np.testing.assert_allclose(scores, np.take_along_axis(logits, want, 1), **CLOSE)


def test_the_gradient_of_chosen_scores_is_sparse():
    head, query, ids = make_head(), tf.constant(queries(2, 7)), tf.constant([[2, 8], [2, 0]])
    sources = [query, tf_variable(head.kernel), tf_variable(head.bias)]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(query)
        chosen = tf.reduce_sum(head.score(query, ids) ** 2)
        picked = tf.reduce_sum(tf.gather(head(query), ids, batch_dims=1) ** 2)
    got, want = tape.gradient(chosen, sources), tape.gradient(picked, sources)
    assert isinstance(got[1], tf.IndexedSlices)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(tf.convert_to_tensor(one), tf.convert_to_tensor(other), **CLOSE)


class Unknown(losses.SquaredHinge):
    over_classes = losses.SQUARED_HINGE._replace(kernel=None)


@pytest.mark.parametrize(
    "loss", [losses.SquaredHinge(), losses.BinaryCrossentropy(), losses.SoftmaxCrossentropy(), Unknown()]
)
def test_the_streamed_loss_equals_that_on_all_logits(loss):
    head, query = make_head(), tf.constant(queries(3, 7))
    labels = tf.constant([[2, 5], [0, -1], [-1, -1]])
    sources = [query, tf_variable(head.kernel), tf_variable(head.bias)]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(query)
        reduced, positives = head.reduce(query, labels, loss)
        streamed = tf.reduce_sum(loss.combine(reduced, positives, labels >= 0))
        plain = tf.reduce_sum(loss.call(labels, head(query)))
    np.testing.assert_allclose(streamed, plain, rtol=1e-5)
    for one, other in zip(tape.gradient(streamed, sources), tape.gradient(plain, sources), strict=True):
        np.testing.assert_allclose(tf.convert_to_tensor(one), tf.convert_to_tensor(other), **CLOSE)


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


@pytest.mark.traced
@pytest.mark.parametrize(
    ("sampler", "loss"),
    long_after(
        1, (samplers.MIDX(10, num_codewords=4), losses.SoftmaxCrossentropy()), (None, losses.SquaredHinge())
    ),
)
def test_it_learns(sampler, loss):
    keras.utils.set_random_seed(0)
    x, y = learnable(400)
    encoder = keras.Sequential([dense_encoder(), keras.layers.Dense(64, activation="relu")])
    head = UniformSparseHead(NUM_CLASSES, 16, use_bias=True, seed=0)
    model = make_model(sampler, loss, head, encoder, optimizer=optimizers.LazyAdam(0.01))
    history = model.fit(x, y, validation_data=(x, y), epochs=8, verbose=0).history
    assert history["val_loss"][-1] < 0.6 * history["val_loss"][0]


@pytest.mark.parametrize("fraction", [0.0, 0.4, 1.0])
def test_rewiring_moves_the_weakest(fraction):
    head = make_head(50, 5, 40)
    before, old = dense_weights(head), tf_variable(head.kernel).numpy()
    logs = head.rewire(fraction)
    num_moved = round(5 * fraction)
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


@pytest.mark.parametrize("group_size", [4, 100])
def test_a_group_moves_an_input_for_all_its_classes(group_size):
    x, y = learnable(64)
    head = UniformSparseHead(NUM_CLASSES, 4, use_bias=True, seed=0, group_size=group_size)
    model = make_model(None, losses.SquaredHinge(), head, optimizer=optimizers.LazyAdam(0.01))
    model.fit(x, y, verbose=0)
    old, read = tf_variable(head.kernel).numpy(), tf_variable(head.indices).numpy()
    logs = head.rewire(0.25, model.optimizer)
    new, reads = tf_variable(head.kernel).numpy(), tf_variable(head.indices).numpy()
    assert logs["moved"] == NUM_CLASSES and all(len(set(row)) == 4 for row in reads)
    for group, (before, after) in enumerate(zip(read, reads, strict=True)):
        classes = slice(group * group_size, (group + 1) * group_size)
        weakest = np.argmin(np.square(old[classes]).sum(0))
        assert np.flatnonzero(before != after).tolist() == [weakest]
        assert (new[classes, weakest] == 0).all()
        kept = np.delete(np.arange(4), weakest)
        np.testing.assert_array_equal(new[classes][:, kept], old[classes][:, kept])
        momentum = model.optimizer.slots_of(head.kernel)["momentum"].numpy()[classes]
        assert (momentum[:, weakest] == 0).all() and (momentum[:, kept] != 0).any()


def test_groups_of_one_are_the_head_without_groups():
    single, head = UniformSparseHead(20, 3, seed=1), make_head(20, 3, 9, use_bias=False, group_size=1)
    query = queries(5, 9)
    np.testing.assert_array_equal(single(query), head(query))
    assert tf_variable(head.indices).shape == (20, 3)
    assert tf_variable(make_head(20, 3, 9, group_size=8).indices).shape == (3, 3)


def test_classes_of_groups_cannot_change():
    with pytest.raises(ValueError, match="group_size=4 cannot change"):
        make_head(group_size=4).config_for(np.arange(9))


@pytest.mark.parametrize("bad", [0, 2.0])
def test_group_size_is_checked(bad):
    with pytest.raises(ValueError, match="group_size must be an integer of at least 1"):
        UniformSparseHead(5, 2, group_size=bad)


@pytest.mark.parametrize("fan_in", [1, 3, 5])
def test_few_connections_move_too(fan_in):
    logs = make_head(20, fan_in, 40).rewire(0.1)
    assert logs["moved"] == 20


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


def test_the_optimizer_forgets_the_dropped():
    x, y = learnable(64)
    head = UniformSparseHead(NUM_CLASSES, 4, use_bias=True, seed=0)
    model = make_model(None, losses.SquaredHinge(), head, optimizer=optimizers.LazyAdam(0.01))
    model.fit(x, y, verbose=0)
    old = tf_variable(head.kernel).numpy()
    head.rewire(0.25, model.optimizer)
    shape = [NUM_CLASSES, 4]
    slots = [tf_variable(v).numpy() for v in model.optimizer.variables if list(v.shape) == shape]
    slots = [slot for slot in slots if (slot != 0).any()]
    assert len(slots) == 2
    moved = tf_variable(head.kernel).numpy() != old
    assert moved.sum() == NUM_CLASSES
    momentum, squares = sorted(slots, key=lambda slot: slot.min())
    assert (momentum[moved] == 0).all() and (momentum[~moved] != 0).any()
    others = squares[~moved].reshape(NUM_CLASSES, 3)
    np.testing.assert_allclose(squares[moved], others.mean(1), rtol=1e-5)


@pytest.mark.parametrize("bad", [-0.1, 1.1])
def test_the_fraction_is_checked(bad):
    with pytest.raises(ValueError, match=rf"fraction must be in \[0, 1\], but got {bad}"):
        make_head().rewire(bad)


def test_a_class_of_a_group_whose_weights_are_not_finite_is_named():
    head = make_head(40, 3, 20, group_size=16)
    weights = tf_variable(head.kernel).numpy()
    weights[37, 1] = np.nan
    tf_variable(head.kernel).assign(weights)
    with pytest.raises(ValueError, match="weights of class 37 are not finite"):
        head.rewire(0.5)


def test_no_input_is_left_to_grow():
    assert make_head(6, 7, 7).rewire(0.5)["moved"] == 0


@pytest.mark.parametrize("bad", [0, 2.0, None])
def test_fan_in_is_checked(bad):
    with pytest.raises(ValueError, match="seed must be an integer of at least 0, but got -1"):
        make_head(seed=-1)
    with pytest.raises(ValueError, match="fan_in must be an integer of at least 1"):
        UniformSparseHead(5, bad)


def test_more_connections_than_inputs():
    with pytest.raises(ValueError, match="fan_in is 8, but there are only 7 inputs"):
        make_head(5, 8, 7)
