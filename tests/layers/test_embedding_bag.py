import numpy as np
import pytest
import tensorflow as tf
from long_cases import long_after
from tensorflow.python.distribute.sharded_variable import ShardedVariable

from tfxc import losses, optimizers
from tfxc._keras import IS_KERAS_3, keras
from tfxc._keras.weights import tf_variable
from tfxc.layers import DenseHead, EmbeddingBag
from tfxc.model.classifier import ExtremeClassifier

IDS = np.array([[3, 0, 3], [5, -1, -1], [-1, -1, -1]], np.int32)
VALUES = np.array([[0.5, -1.0, 2.0], [3.0, 9.0, 0.0], [1.0, 0.0, 0.0]], np.float32)


def built(combiner="sum"):
    layer = EmbeddingBag(6, 4, combiner)
    layer({"ids": IDS, "values": VALUES})
    return layer


EACH_COMBINER = pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])


@EACH_COMBINER
def test_values_and_the_sparse_gradient(combiner):
    layer = built(combiner)
    sizes = {"sum": [1, 1, 1], "mean": [3.5, 3, 1], "sqrtn": [5.25**0.5, 3, 1]}[combiner]
    weights = np.zeros([3, 6])  # of each feature in each point
    weights[[0, 0, 1], [3, 0, 5]] = [2.5, -1.0, 3.0]
    weights /= np.array(sizes)[:, np.newaxis]
    upstream = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    with tf.GradientTape() as tape:
        bags = layer({"ids": IDS, "values": VALUES})
    gradient = tape.gradient(bags, tf_variable(layer.embeddings), tf.constant(upstream))
    assert isinstance(gradient, tf.IndexedSlices)
    np.testing.assert_allclose(bags, weights @ layer.embeddings.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tf.convert_to_tensor(gradient), weights.T @ upstream, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(IS_KERAS_3, reason="Keras 3 has no parameter servers")
@pytest.mark.parametrize("ids", [IDS, np.full_like(IDS, -1)], ids=["some", "padding"])
def test_a_table_in_shards(ids):
    layer = built()
    with tf.GradientTape() as tape:
        bags = layer({"ids": ids, "values": VALUES})
    table = tf_variable(layer.embeddings)
    wanted = tf.convert_to_tensor(tape.gradient(bags, table))
    parts = [tf.Variable(part, name=f"table/part_{i}") for i, part in enumerate(tf.split(table, [4, 2]))]
    layer.embeddings = ShardedVariable(parts)
    with tf.GradientTape() as tape:
        found = layer({"ids": ids, "values": VALUES})
    gradients = tape.gradient(found, parts)
    np.testing.assert_allclose(found, bags, rtol=1e-6)
    assert all(isinstance(gradient, tf.IndexedSlices) for gradient in gradients)
    np.testing.assert_allclose(tf.concat(list(map(tf.convert_to_tensor, gradients)), 0), wanted)


def test_padding_moves_no_row():
    """Momentum would move row 0 in every step if padding read it."""
    layer, optimizer = built(), optimizers.LazyAdam(0.1)
    for ids in ([[0, 1]], [[3, -1]], [[-1, -1]]):
        before = tf_variable(layer.embeddings).numpy()
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer({"ids": np.array(ids), "values": np.ones((1, 2), np.float32)}))
        table = tf_variable(layer.embeddings)
        optimizer.apply_gradients([(tape.gradient(loss, table), layer.trainable_variables[0])])
        moved = np.flatnonzero((layer.embeddings.numpy() != before).any(1))
        assert moved.tolist() == [i for i in ids[0] if i >= 0]


@pytest.mark.parametrize("shape", [(1, 1), (2, 0), (0, 3)])
def test_odd_shapes(shape):
    layer = built("mean")
    values = np.full(shape, np.nan, np.float32)
    out = layer({"ids": np.full(shape, -1, np.int32), "values": values, "title": None})
    np.testing.assert_array_equal(out, np.zeros((shape[0], 4)))


def test_in_a_sequential_model():
    model = keras.Sequential([EmbeddingBag(6, 4), keras.layers.Dense(2)])
    x = {"ids": IDS, "values": VALUES}
    model.compile("sgd", "mse")
    model.fit(x, np.ones((3, 2)), verbose=0)
    assert model.predict(x, verbose=0).shape == (3, 2)


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.both_keras
def test_in_a_model_saved_and_exported(reloaded, served_by):
    kinds = {"ids": "int32", "values": "float32"}
    inputs = {name: keras.Input((None,), dtype=dtype, name=name) for name, dtype in kinds.items()}
    encoder = keras.Model(inputs, keras.layers.Dense(3)(EmbeddingBag(6, 4, "sqrtn", "he_normal")(inputs)))
    model = ExtremeClassifier(encoder, DenseHead(9), k=2)
    model.compile(optimizers.LazyAdam(0.1), loss=losses.BinaryCrossentropy())
    x = {"ids": IDS, "values": VALUES}
    model.fit(x, np.array([[1, 8], [0, -1], [-1, -1]]), verbose=0)
    want = model.predict(x, verbose=0)
    loaded = served_by(model)
    served = loaded.serve(ids=tf.constant(IDS), values=tf.constant(VALUES))
    for got in (reloaded(model).predict(x, verbose=0), served):
        np.testing.assert_array_equal(got["ids"], want["ids"])


@EACH_COMBINER
def test_plain_ids_padded_with_0_weigh_1(combiner):
    layer = built(combiner)
    got = layer(np.array([[3, 5, 3], [2, 0, 0], [0, 0, 0]]))
    ids, values = np.array([[3, 5, 3], [2, -1, -1], [-1, -1, -1]]), np.ones((3, 3), np.float32)
    np.testing.assert_allclose(got, layer({"ids": ids, "values": values}))
    np.testing.assert_array_equal(got[2], np.zeros(4))
    np.testing.assert_array_equal(layer(np.uint16([[3, 5, 3], [2, 0, 0], [0, 0, 0]])), got)


@EACH_COMBINER
def test_sparse_weights_against_the_dense_product(combiner):
    layer = built(combiner)
    dense = np.array([[0.5, 0, 0, 2, 0, -1], [0, 0, 0, 0, 0, 0], [0, 3, 0, 0, 0, 0]], np.float32)
    sizes = {"sum": [1, 1, 1], "mean": [3.5, 1, 3], "sqrtn": [5.25**0.5, 1, 3]}[combiner]
    want = dense @ layer.embeddings.numpy() / np.array(sizes)[:, np.newaxis]
    np.testing.assert_allclose(layer(tf.sparse.from_dense(dense)), want, rtol=1e-5, atol=1e-6)
    order, given = np.random.default_rng(0).permutation(4), tf.sparse.from_dense(dense)
    shuffled = tf.SparseTensor(given.indices.numpy()[order], given.values.numpy()[order], (3, 6))
    np.testing.assert_allclose(layer(shuffled), want, rtol=1e-5, atol=1e-6)
    counts = tf.cast(tf.sparse.from_dense(np.abs(dense)), tf.int64)
    assert np.isfinite(layer(counts)).all()


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.parametrize("mode", long_after(1, "int", "count"))
def test_text_to_a_trained_model(mode):
    texts, labels = np.array(["green tea", "milk", "black tea with milk", ""]), np.array([0, 1, 2, 3])
    vectorize = keras.layers.TextVectorization(output_mode=mode, sparse=mode != "int")
    vectorize.adapt(texts)
    size = vectorize.vocabulary_size()
    features = tf.data.Dataset.from_tensor_slices((texts, labels)).batch(2)
    features = features.map(lambda text, label: (vectorize(text), label))
    if mode == "int":
        inputs = keras.Input((None,), dtype="int64")
    else:
        inputs = keras.Input((size,), dtype="int64", sparse=True)
    encoder = keras.Model(inputs, keras.layers.Dense(4)(EmbeddingBag(size, 4, "mean")(inputs)))
    model = ExtremeClassifier(encoder, DenseHead(4), k=1)
    model.compile(optimizers.LazyAdam(0.1), loss=losses.SoftmaxCrossentropy())
    model.fit(features.repeat(40), verbose=0)
    assert model.predict(features, verbose=0)["ids"][:3, 0].tolist() == [0, 1, 2]


def test_weights_keep_their_digits_in_mixed_precision():
    bag, plain = EmbeddingBag(5, 3, dtype="mixed_bfloat16"), EmbeddingBag(5, 3)
    inputs = {"ids": tf.constant([[1, 2]]), "values": tf.constant([[257.0, 0.3]])}
    for layer in (bag, plain):
        layer.build(None)
    bag.set_weights(plain.get_weights())
    np.testing.assert_array_equal(tf.cast(bag(inputs), tf.float32), plain(inputs))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (VALUES, r"integers \[B, N\], but got float32 \(3, 3\)"),
        (IDS[0], r"int32 \(3,\)"),
        (np.eye(6, dtype=np.int64), r"int64 \(6, 6\).*keras.Input\(\(6,\), sparse=True\)"),
        (tf.sparse.from_dense(VALUES), r"must be \[B, 6\], but is \(3, 3\)"),
        (tf.ragged.constant([[1, 2], [3]]), r"takes no RaggedTensor: .*ids.to_tensor\(-1\)"),
        ({"ids": tf.ragged.constant([[1], []]), "values": VALUES}, "takes no RaggedTensor"),
        ({"ids": IDS}, r"takes ids and values of one shape .*, but got \{'ids': .*3, 3"),
        ({"ids": IDS, "values": VALUES[:, :2]}, "of one shape"),
        ({"ids": IDS[0], "values": VALUES[0]}, "of one shape"),
        *(({"ids": IDS + bad, "values": VALUES}, r"feature id is outside \[0, 6\)") for bad in (1, -1)),
    ],
)
def test_inputs_are_checked(inputs, message):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=message):
        built()(inputs)


@pytest.mark.parametrize(
    "options", [{"combiner": "max"}, {"num_features": 0}, {"num_features": 2.5}, {"dim": 0}, {"dim": 2.5}]
)
def test_arguments_are_checked(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        EmbeddingBag(**{"num_features": 3, "dim": 2, **options})
