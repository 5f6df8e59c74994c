"""A head in shards against the head that holds all classes; here all lie on this machine."""

import numpy as np
import pytest
import tensorflow as tf
from long_cases import long_after
from shards import in_shards

import tfxc
from tfxc._keras import IS_KERAS_3, keras
from tfxc._keras.weights import tf_variable

pytestmark = pytest.mark.both_keras

if IS_KERAS_3:
    pytest.skip("Keras 3 has no parameter servers", allow_module_level=True)

SIZES = (3, 1, 4)
NUM_CLASSES, DIM, BATCH = sum(SIZES), 5, 3
STARTS = [0, 3, 4]
HEADS = {
    "dense": lambda size: tfxc.layers.DenseHead(size),
    "cosine": lambda size: tfxc.layers.DenseHead(size, use_bias=True, normalize=True, temperature=0.2),
    "sparse": lambda size: tfxc.layers.UniformSparseHead(size, fan_in=2, use_bias=True, seed=1),
}
ROWS = {"dense": ["table"], "cosine": ["table", "bias"], "sparse": ["kernel", "indices", "bias"]}
SMOOTHED = tfxc.losses.SoftmaxCrossentropy(label_smoothing=0.2, name="smoothed")
LOSSES = [tfxc.losses.SoftmaxCrossentropy(), SMOOTHED]
LOSSES += [tfxc.losses.BinaryCrossentropy(), tfxc.losses.SquaredHinge()]


# A cosine head is a dense one, with more.
EACH_WAY = pytest.mark.parametrize(
    ("both", "compiled"),
    long_after(3, ("cosine", False), ("sparse", False), ("cosine", True), ("sparse", True)),
    indirect=["both"],
)


@pytest.fixture(params=HEADS)
def both(request):
    random = np.random.default_rng(1)
    whole, cut = (HEADS[request.param](NUM_CLASSES) for _ in range(2))
    for head in (whole, cut):
        head.build((None, DIM))
    for name in ROWS[request.param]:
        values = tf_variable(getattr(whole, name))
        if name != "indices":
            values.assign(random.normal(size=values.shape))
        tf_variable(getattr(cut, name)).assign(values)
    return whole, in_shards(cut, ROWS[request.param], STARTS)


def queries(number=BATCH):
    return tf.constant(np.random.default_rng(0).normal(size=(number, DIM)), tf.float32)


def gradients(head, shards, function):
    parts = list(map(variables_of, shards.parts))
    wanted, found = [], []
    for answers, asked, variables in ((wanted, head, variables_of(head)), (found, shards, parts)):
        query = queries()
        with tf.GradientTape() as tape:
            tape.watch(query)
            outputs = function(asked, query)
            total = tf.add_n([tf.reduce_sum(tf.sin(part / 10)) for part in outputs])
        of_query, of_weights = tape.gradient(total, [query, variables])
        answers += [*outputs, of_query]
        if asked is shards:
            of_weights = [tf.concat(list(map(dense, rows)), 0) for rows in zip(*of_weights, strict=True)]
        answers += map(dense, of_weights)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def variables_of(head):
    return list(map(tf_variable, head.trainable_variables))


def dense(gradient):
    return tf.convert_to_tensor(gradient)


@pytest.mark.traced
@EACH_WAY
def test_scores_of_own_and_of_shared_classes(both, compiled):
    ids, labels = tf.constant([[0, 7, -1], [3, 3, 2], [4, 5, 6]]), tf.constant([[1], [-1], [3]])
    asked = [
        lambda head, query: [head.score(query, ids)],
        lambda head, query: [head.score(query, np.array([5, -1, 0, 3]))],
        lambda head, query: list(head._score_both(query, labels, ids)),
        lambda head, query: list(head._score_both(query, labels, tf.constant([2, 7, 7]))),
    ]
    for function in asked:
        gradients(*both, tf.function(function, autograph=False) if compiled else function)


@pytest.mark.traced
@pytest.mark.parametrize("class_ids", [[2, 7, 7], np.zeros([0, 3], np.int32)], ids=["shared", "own"])
@EACH_WAY
def test_a_batch_without_a_query(both, class_ids, compiled):
    _, shards = both

    def step(query):
        with tf.GradientTape() as tape:
            tape.watch(query)
            labels = tf.zeros([0, 1], tf.int32)
            positives, candidates = shards._score_both(query, labels, tf.constant(class_ids))
            total = tf.reduce_sum(positives) + tf.reduce_sum(candidates)
        weights = [own for head in shards.parts for own in variables_of(head)]
        of_query, *of_weights = tape.gradient(total, [query, *weights])
        return positives, candidates, of_query, *map(dense, of_weights)

    step = tf.function(step, autograph=False) if compiled else step
    positives, candidates, of_query, *of_weights = step(queries(0))
    assert positives.shape == (0, 1) and candidates.shape == (0, 3) and of_query.shape == (0, DIM)
    assert not any(np.any(gradient) for gradient in of_weights)


def test_the_gradient_of_a_weight_is_of_the_scored_rows_alone(both):
    _, shards = both
    labels, ids = tf.constant([[1], [1], [0]]), tf.constant([0, 6])
    with tf.GradientTape() as tape:
        positives, candidates = shards._score_both(queries(), labels, ids)
        total = tf.reduce_sum(positives) + tf.reduce_sum(candidates)
    first, _, last = tape.gradient(total, [variables_of(head)[0] for head in shards.parts])
    assert set(first.indices.numpy()) == {0, 1} and set(last.indices.numpy()) == {2}


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_a_loss_over_all_classes(both, loss):
    labels = tf.constant([[0, 7], [3, -1], [-1, -1]])
    gradients(*both, lambda head, query: list(head.reduce(query, labels, loss)))
    head, shards = both
    for exclude in (None, tf.constant([[0], [7], [-1]])):
        for k in (1, NUM_CLASSES):
            wanted = head.losses_and_best(queries(), labels, loss, k, exclude)
            found = shards.losses_and_best(queries(), labels, loss, k, exclude)
            np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
            np.testing.assert_array_equal(found[1].ids, wanted[1].ids)


def test_a_fold_of_all_classes(both):
    def fold(carry, logits, start):
        ids = tf.cast(start + tf.range(tf.shape(logits)[1]), tf.float32)
        return carry + tf.reduce_sum(logits * (1 + ids), 1)

    wanted, found = (head.scan(queries(), fold, tf.zeros([BATCH])) for head in both)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("k", [1, 2, NUM_CLASSES])
def test_the_best_classes(both, k):
    head, shards = both
    exclude = tf.constant([[0, 3], [7, -1], [-1, -1]])
    for out in (None, exclude):
        wanted, found = head.best(queries(), k, out), shards.best(queries(), k, out)
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
        np.testing.assert_array_equal(found[1], wanted[1])


def test_all_logits_and_class_vectors(both):
    head, shards = both
    np.testing.assert_allclose(shards.call(queries()), head(queries()), rtol=1e-5, atol=1e-6)
    ids = tf.constant([7, 0, 3, 3])
    np.testing.assert_array_equal(shards.class_vectors_of(ids), head.class_vectors_of(ids))


def test_an_id_outside_is_named(both):
    with pytest.raises(tf.errors.InvalidArgumentError, match="outside"):
        both[1].score(queries(), tf.fill([BATCH, 1], NUM_CLASSES))


def test_losses_that_cannot_be_merged_are_refused(both):
    shards, filtered = both[1], tfxc.losses.SoftmaxCrossentropy(filter_below=0.1)
    with pytest.raises(ValueError, match="filter_below"):
        shards.check(loss=filtered)
    with pytest.raises(ValueError, match="filter_below"):  # compiled before there were shards
        shards.reduce(queries(), tf.zeros([BATCH, 1], tf.int32), filtered)
    shards.check(loss=tfxc.losses.SoftmaxCrossentropy())


@pytest.mark.filterwarnings("ignore:The initializer GlorotUniform is unseeded")  # each head has its own
def test_a_config_is_that_of_the_head(both):
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(both[1]))
    assert type(again) is type(both[0]) and again.num_classes == NUM_CLASSES


def test_weights_are_those_of_the_head(both):
    head, shards = both
    assert shards.describe() == head.describe()
    assert len(shards.trainable_variables) == len(SIZES) * len(head.trainable_variables)
