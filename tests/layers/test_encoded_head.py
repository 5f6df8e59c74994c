from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import Subclassed, learnable, log_softmax
from encoded_checks import DIM, FEATURES, NUM_CLASSES, check_cache, head_of, model_of, tower, vectors_of
from long_cases import long_after
from memory_checks import with_peak

import tfxc
from tfxc import samplers
from tfxc._keras import keras, register
from tfxc._keras.weights import tf_variable
from tfxc.encoders import GradCache
from tfxc.layers import EncodedHead
from tfxc.losses import GBCE, BinaryCrossentropy, SoftmaxCrossentropy, SquaredHinge


class Counting(keras.layers.Layer):
    def build(self, input_shape=None):
        self.rows = tf.Variable(0, trainable=False)
        self.built = True

    def call(self, inputs):
        self.rows.assign_add(tf.shape(inputs)[0])
        return inputs


@pytest.mark.parametrize("free_vectors", [False, True])
@pytest.mark.parametrize("ids", [[3, 9, -1, 3], [[1, 2], [24, 9], [-1, -1]]])
def test_a_step_encodes_each_distinct_class_once_and_gradients_reach_all_that_is_learnt(free_vectors, ids):
    counting = Counting()
    item_encoder = keras.Sequential([keras.Input((3,)), counting, keras.layers.Dense(DIM)])
    head = head_of(item_encoder, free_vectors=free_vectors)
    labels, ids = tf.constant([[9, -1], [0, 3], [9, 0]]), tf.constant(ids)
    query = tf.Variable(tf.random.normal([3, DIM]))
    counting.rows.assign(0)
    with tf.GradientTape() as tape:
        of_labels, of_ids = head._score_both(query, labels, ids)
        total = tf.reduce_sum(of_labels) + tf.reduce_sum(tf.square(of_ids))
    distinct = set(np.concatenate([labels.numpy().ravel(), ids.numpy().ravel()])) - {-1}
    assert counting.rows.numpy() == len(distinct)
    wanted = np.append(query.numpy() @ vectors_of(head).T, np.zeros([3, 1]), 1)  # -1: nothing
    np.testing.assert_allclose(of_labels, np.take_along_axis(wanted, labels.numpy(), 1), rtol=1e-4, atol=1e-5)
    columns = np.broadcast_to(ids, (3, ids.shape[-1]))
    np.testing.assert_allclose(of_ids, np.take_along_axis(wanted, columns, 1), rtol=1e-4, atol=1e-5)
    variables = [query, *map(tf_variable, head.trainable_variables)]
    gradients = tape.gradient(total, variables)
    assert all(gradient is not None for gradient in gradients) and len(gradients) == 3 + free_vectors
    if free_vectors:
        free = next(g for g in gradients if isinstance(g, tf.IndexedSlices))
        assert set(free.indices.numpy()) == distinct


@pytest.mark.both_keras
@pytest.mark.parametrize("free_vectors", [False, True])
def test_a_bias_is_added_to_the_logits_of_all_classes_wherever_they_are_scored(free_vectors, reloaded):
    bias = {"use_bias": True, "bias_initializer": keras.initializers.Constant(-2.0)}
    head = EncodedHead(tower(), FEATURES, free_vectors, **bias)
    model = model_of(head, samplers.Uniform(9, shared=True), loss=BinaryCrossentropy())
    x, y = learnable(16)
    model.fit(x, y, batch_size=8, verbose=0)
    head, query = model.head, model.encoder(x)
    (start,) = tf_variable(head.bias).numpy()
    assert start != -2
    wanted = query.numpy() @ vectors_of(head).T + start
    np.testing.assert_allclose(head(query), wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(head.score(query, tf.range(NUM_CLASSES)), wanted, rtol=1e-4, atol=1e-5)
    exact = tfxc.head_loss(head, BinaryCrossentropy(), query, y)
    want = tf.nn.sigmoid_cross_entropy_with_logits(tf.one_hot(y, NUM_CLASSES), wanted)
    np.testing.assert_allclose(exact, tf.reduce_mean(tf.reduce_sum(want, 1)), rtol=1e-4)
    of_labels, of_ids = head._score_both(query, y[:, None], tf.constant([3, -1, 24]))
    np.testing.assert_allclose(of_labels[:, 0], np.take_along_axis(wanted, y[:, None], 1)[:, 0], rtol=1e-4)
    np.testing.assert_allclose(of_ids.numpy()[:, [0, 2]], wanted[:, [3, 24]], rtol=1e-4, atol=1e-5)
    best = model.predict(x, verbose=0)
    np.testing.assert_allclose(best["scores"], np.sort(wanted, 1)[:, :-4:-1], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(reloaded(model).predict(x, verbose=0)["scores"], best["scores"])


def losses_and_gradients(head, loss, labels, sampler):
    """Weighted losses [N] of as many queries, and the gradients of queries and weights of the encoder."""
    sampler.build((NUM_CLASSES, DIM))
    query = tf.random.stateless_normal([len(labels), DIM], [1, 2])
    weights = [query, *map(tf_variable, head.trainable_variables)]
    sample_weight = tf.range(1.0, len(labels) + 1)
    with tf.GradientTape() as tape:
        tape.watch(query)
        values = tfxc.head_loss(head, loss, query, tf.constant(labels), sampler, sample_weight)
    return [values, *tape.gradient(values, weights)]


ONE_LABEL, SEVERAL = [[3], [9], [3], [-1], [0], [12], [9]], [[3, -1], [9, 24], [-1, -1], [3, 0], [0, -1]]
shared_draws = partial(samplers.Uniform, 6, shared=True, seed=1)


@pytest.mark.both_keras
@pytest.mark.parametrize(
    ("loss", "labels", "sampler"),
    long_after(
        2,
        (SoftmaxCrossentropy, ONE_LABEL, samplers.InBatch),
        (BinaryCrossentropy, SEVERAL, lambda: samplers.InBatch(11, seed=1)),
        (partial(BinaryCrossentropy, 0.1), SEVERAL, samplers.InBatch),
        (SquaredHinge, SEVERAL, shared_draws),
        (partial(SoftmaxCrossentropy, "nce"), SEVERAL, samplers.InBatch),
        (partial(SoftmaxCrossentropy, "partition", True), SEVERAL, samplers.InBatch),
        (SoftmaxCrossentropy, SEVERAL, lambda: samplers.Mixture([samplers.InBatch(), shared_draws()])),
        (SoftmaxCrossentropy, SEVERAL, lambda: samplers.Uniform(6, seed=1)),
        (GBCE, ONE_LABEL, samplers.InBatch),
        (SoftmaxCrossentropy, [[-1], [-1]], samplers.InBatch),
        (SoftmaxCrossentropy, [[3]], samplers.InBatch),
    ),
)
def test_queries_in_chunks_have_the_losses_and_gradients_of_all_at_once(loss, labels, sampler):
    plain, loss = head_of(), loss(reduction="none")
    cached = head_of(GradCache(plain.item_encoder, chunk_size=3))
    found = (losses_and_gradients(head, loss, labels, sampler()) for head in (plain, cached))
    for want, got in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.traced
@pytest.mark.parametrize(
    "loss", long_after(1, SoftmaxCrossentropy(), SoftmaxCrossentropy("nce"), SquaredHinge())
)
def test_a_large_pool_takes_no_matrix(loss):
    size = 4096
    head = head_of(GradCache(tower(), chunk_size=64), np.ones([size, 3], np.float32))
    sampler = samplers.InBatch()
    sampler.build((size, DIM))

    @tf.function
    def gradient(query):
        with tf.GradientTape() as tape:
            tape.watch(query)
            value = tfxc.head_loss(head, loss, query, tf.range(size), sampler)
        return tape.gradient(value, [query, *map(tf_variable, head.trainable_variables)])

    gradient(tf.ones([size, DIM]))
    assert with_peak(lambda: gradient(tf.ones([size, DIM])))[1] < 4 * size**2  # bytes: one matrix


def test_nothing_to_score_is_nothing_to_encode():
    normalized = keras.layers.BatchNormalization()
    item_encoder = keras.Sequential([keras.Input((3,)), normalized, keras.layers.Dense(DIM)])
    head = head_of(item_encoder, free_vectors=True)
    with tf.GradientTape() as tape:
        of_labels, of_ids = head._score_both(tf.ones([2, DIM]), tf.fill([2, 1], -1), tf.fill([3], -1))
        total = tf.reduce_sum(of_labels)
    assert not np.any(of_labels) and not np.any(of_ids) and of_ids.shape == (2, 3)
    assert np.isfinite(normalized.moving_mean.numpy()).all()
    assert tf.size(tape.gradient(total, tf_variable(head.free)).indices) == 0  # class 0 does not move
    for bad in (25, 27):  # the first comes to the number that the range names
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"{bad}"):
            head._score_both(tf.ones([1, DIM]), tf.constant([[bad]]), tf.constant([0]))


@pytest.mark.long
def test_the_cache_is_refreshed_where_it_is_out_of_date(monkeypatch):
    monkeypatch.setattr("tfxc.layers.class_cache._BLOCK_ROWS", 4)
    model = model_of(sampler=samplers.MIDX(6, num_codewords=3, shared=True))
    assert model.head.class_cache.age == 1
    x, y = learnable(32)
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0).history
    assert history["head/cache_age"] == [4, 8] and "sampler/index_age" in history
    loss = model.evaluate(x, y, verbose=0)
    assert model.head.class_cache.age == 0
    check_cache(model.head)
    logits = model.encoder(x).numpy() @ vectors_of(model.head).T
    np.testing.assert_allclose(loss, -np.mean(log_softmax(logits)[np.arange(32), y]), rtol=1e-4)
    found = model.predict(x, verbose=0)["ids"]
    np.testing.assert_array_equal(found[:, 0], logits.argmax(1))
    assert history["loss"][1] < history["loss"][0]


def test_without_a_sampler_all_classes_are_encoded():
    head, query, labels = head_of(), tf.random.normal([2, DIM]), tf.constant([[3, -1], [1, 2]])
    with tf.GradientTape() as tape:
        losses = head.losses(query, labels, SoftmaxCrossentropy())
    head.freshen(force=True)
    want, _ = head.losses_and_best(query, labels, SoftmaxCrossentropy(), k=1)
    np.testing.assert_allclose(losses, want, rtol=1e-5)
    variables = [tf_variable(weight) for weight in head.trainable_variables]
    assert all(gradient is not None for gradient in tape.gradient(losses, variables))


@pytest.mark.long
def test_a_plain_model_trains_the_item_encoder():
    head = EncodedHead(tower(), FEATURES)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(DIM), head])
    model.compile(tfxc.optimizers.LazyAdam(0.05), loss=SoftmaxCrossentropy())
    x, y = tf.random.normal([16, 4]), tf.range(16)
    before = head.item_encoder.get_weights()
    head.freshen(force=True)
    losses = model.fit(x, y, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0] and head.class_cache.age
    assert all(np.any(old != new) for old, new in zip(before, head.item_encoder.get_weights(), strict=True))
    wanted = model.layers[0](x).numpy() @ vectors_of(head).T
    np.testing.assert_allclose(head.top_k(model.layers[0](x), 1).scores[:, 0], wanted.max(1), rtol=1e-4)
    np.testing.assert_allclose(model.predict(x, verbose=0), wanted, rtol=1e-4, atol=1e-5)


EVERY_CLASS = tf.tile(tf.range(NUM_CLASSES)[tf.newaxis], [2, 1])


@pytest.mark.parametrize(
    "best",
    [
        lambda head, query: head.top_k(query, 1).ids,
        lambda head, query: head.top_k(query, 1, allow=EVERY_CLASS).ids,
        lambda head, query: tf.argmax(head.score(query, EVERY_CLASS), 1)[:, tf.newaxis],
        lambda head, query: tf.math.top_k(query @ tf.transpose(head.class_vectors(0, NUM_CLASSES)), 1)[1],
    ],
)
def test_what_is_asked_outside_of_a_model_is_of_the_weights_as_they_are(best):
    head, query = head_of(), tf.random.normal([2, DIM])

    def check():
        wanted = np.argmax(query.numpy() @ vectors_of(head).T, 1)
        np.testing.assert_array_equal(best(head, query)[:, 0], wanted)

    check()  # the cache was never made
    with tf.GradientTape() as tape:
        loss = tfxc.head_loss(head, SoftmaxCrossentropy(), query, tf.constant([3, 9]), samplers.InBatch())
    variables = head.trainable_variables
    keras.optimizers.SGD(5.0).apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
    check()


def text_tower(texts):
    vectorize = keras.layers.TextVectorization(output_mode="int", output_sequence_length=3)
    vectorize.adapt(texts)
    text, price = keras.Input((), dtype="string", name="text"), keras.Input((1,), name="price")
    words = keras.layers.Embedding(vectorize.vocabulary_size(), DIM)(vectorize(text))
    both = keras.layers.Concatenate()([keras.layers.GlobalAveragePooling1D()(words), price])
    return keras.Model({"text": text, "price": price}, keras.layers.Dense(DIM)(both))


@pytest.mark.both_keras
def test_texts_and_numbers_train_are_saved_exported_and_changed(tmp_path, reloaded):
    texts = np.array([f"word{i % 5} ä{i}" for i in range(NUM_CLASSES)])
    features = {"price": np.ones([NUM_CLASSES, 1], np.float32), "text": texts}
    of_rows = EncodedHead(text_tower(texts), tf.data.Dataset.from_tensor_slices(features)).features
    assert of_rows.keys() == features.keys()
    for name, values in features.items():
        np.testing.assert_array_equal(of_rows[name], tf.constant(values))
    names = [f"item {i}" for i in range(NUM_CLASSES)]
    model = model_of(EncodedHead(text_tower(texts), features, free_vectors=True), class_names=names)
    x, y = learnable(16)
    model.fit(x, y, batch_size=8, verbose=0)
    want = model.predict(x, verbose=0)
    loaded = reloaded(model)
    np.testing.assert_array_equal(loaded.head.features["text"].numpy(), model.head.features["text"].numpy())
    np.testing.assert_array_equal(loaded.predict(x, verbose=0)["ids"], want["ids"])
    model.export_item_encoder(tmp_path / "items" / "1")
    served = tf.saved_model.load(str(tmp_path / "items" / "1"))
    new = {"text": tf.constant(["word3 new"]), "price": tf.ones([1, 1])}
    vector = served.serve(**new)["vectors"]
    np.testing.assert_allclose(vector, model.head.item_encoder(new), rtol=1e-5)

    model.fit(x, y, batch_size=8, verbose=0)
    model.head.freshen(force=True)
    cache, vector = tf_variable(model.head.cache).numpy(), model.head.item_encoder(new).numpy()
    rows = {"text": np.array(["word3 new"]), "price": np.ones([1, 1])}
    changed = tfxc.change_classes(model, ["new", *names[:0:-1]], new_rows=lambda names: rows)
    assert changed.head.features["text"].numpy()[0] == b"word3 new" and changed.head.class_cache.age == 0
    np.testing.assert_array_equal(tf_variable(changed.head.cache).numpy()[1:], cache[:0:-1])
    np.testing.assert_allclose(changed.head.class_vectors(0, 1), vector, rtol=1e-5)
    changed.fit(x, y, batch_size=8, verbose=0)
    with pytest.raises(ValueError, match="nested like {'price': 0, 'text': 1}"):
        tfxc.change_classes(changed, [*names, "x"], new_rows=lambda names: np.ones([1, 1]))
    with pytest.raises(ValueError, match="new_rows=, a function of a list of names to their features"):
        tfxc.change_classes(changed, [*names, "x"])


def test_errors_say_the_remedy():
    with pytest.raises(ValueError, match="one row for each class"):
        EncodedHead(tower(), {"a": np.ones([3, 1]), "b": np.ones([4, 1])})
    with pytest.raises(ValueError, match="dataset of features needs an element for each class.* is empty"):
        EncodedHead(tower(), tf.data.Dataset.range(0))
    with pytest.raises(ValueError, match="vectors of width 6, but the queries are of width 5"):
        EncodedHead(tower(), FEATURES).build((None, 5))
    bare = head_of(features=np.int64(NUM_CLASSES))
    with pytest.raises(ValueError, match="set head.features"):
        bare.freshen(force=True)
    with pytest.raises(ValueError, match="features of 3 classes for 25"):
        bare.features = FEATURES[:3]
    bare.features = FEATURES
    bare.freshen(force=True)
    brands = keras.Input((), dtype="int32", name="brand")
    of_brands = keras.Model({"brand": brands}, keras.layers.Embedding(9, DIM)(brands))
    for ids in ([3, 2**32 + 7], [3, 7.5]):
        head = head_of(of_brands, {"brand": np.array(ids)})
        with pytest.raises(tf.errors.InvalidArgumentError, match="'brand' as int32, which does not hold"):
            head.encode(tf.range(2))
    with pytest.raises(ValueError, match="DenseHead are learnt class by class"):
        model_of(tfxc.layers.DenseHead(3), False).export_item_encoder("unused")


@pytest.mark.long
@pytest.mark.both_keras
def test_towers_that_share_a_layer(reloaded):
    words = keras.layers.Embedding(12, DIM, name="words")
    asked, named = (keras.Input((2,), dtype="int32", name=name) for name in ("asked", "named"))
    mean = lambda part: keras.layers.GlobalAveragePooling1D()(words(part))  # noqa: E731
    encoder, item_encoder = keras.Model(asked, mean(asked)), keras.Model(named, mean(named))
    names = np.random.default_rng(1).integers(12, size=[NUM_CLASSES, 2])
    head = EncodedHead(item_encoder, names)
    draws, rule = samplers.Uniform(10, shared=True, seed=1), tfxc.optimizers.LazySGD(3.0)
    model = model_of(head, draws, encoder, rule, run_eagerly=True)
    assert len(model.trainable_weights) == 1
    query, labels = tf.constant(names[:8]), tf.range(8)
    table = tf_variable(words.trainable_weights[0])
    with tf.GradientTape() as tape:
        of_query, rows = (tf.reduce_mean(tf.gather(table, words), 1) for words in (query, names))
        logits = tf.matmul(of_query, rows, transpose_b=True)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
    want = table - tf.convert_to_tensor(tape.gradient(loss, table))
    exact = model_of(head, False, encoder, tfxc.optimizers.LazySGD(1.0), run_eagerly=True)
    exact.fit(query, labels, batch_size=8, verbose=0)
    np.testing.assert_allclose(table, want, rtol=1e-5, atol=1e-6)
    losses = model.fit(query, labels, batch_size=4, epochs=8, verbose=0).history["loss"]
    assert losses[-1] < 0.7 * losses[0]
    loaded = reloaded(model)
    assert len(loaded.trainable_weights) == 1
    np.testing.assert_array_equal(loaded.encoder(query), model.encoder(query))
    np.testing.assert_array_equal(loaded.head.encode([1, 2]), model.head.encode([1, 2]))
    for either in (loaded, model):
        either.fit(query, labels, batch_size=4, verbose=0)
    np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])


@pytest.mark.both_keras
def test_towers_of_texts_may_share_the_layer_that_splits_them(tmp_path, reloaded):
    texts = tf.constant(["red car", "blue car", "rose"])
    words = keras.layers.TextVectorization(output_sequence_length=2, vocabulary=["car", "red", "rose"])
    asked, named = (keras.Input((1,), dtype="string", name=name) for name in ("asked", "named"))
    towers = [
        keras.Model(text, tfxc.layers.EmbeddingBag(words.vocabulary_size(), DIM)(words(text)))
        for text in (asked, named)
    ]
    model = tfxc.ExtremeClassifier(towers[0], EncodedHead(towers[1], texts[:, None]), samplers.InBatch(), k=3)
    want = model.predict(texts[:, None], verbose=0)
    loaded = reloaded(model)
    np.testing.assert_array_equal(loaded.predict(texts[:, None], verbose=0)["scores"], want["scores"])
    wrapped = EncodedHead(tfxc.encoders.GradCache(towers[1], 2), texts[:, None])
    with pytest.raises(ValueError, match="shares .*text_vectorization.* in no GradCache"):
        tfxc.ExtremeClassifier(towers[0], wrapped).save(tmp_path / "other.keras")


def test_what_a_file_cannot_keep_shared_is_refused_before_it_is_written(tmp_path):
    dense = keras.layers.Dense(DIM, name="both")
    encoder = keras.Sequential([keras.Input((3,)), dense])
    deeper = keras.Sequential([keras.Input((3,)), keras.Sequential([keras.Input((3,)), dense])])
    twin = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3, name="both")])
    twins = keras.Sequential([keras.Input((3,)), twin, dense])
    shallow = keras.Sequential([keras.Input((3,)), dense])
    pairs = (encoder, dense), (encoder, Subclassed(None, dense)), (encoder, deeper), (twins, shallow)
    for query, item in pairs:
        model = tfxc.ExtremeClassifier(query, EncodedHead(item, FEATURES), samplers.InBatch())
        with pytest.raises(ValueError, match="shares .*both.* functional or Sequential .* save weights"):
            model.save(tmp_path / "model.keras")
    assert not list(tmp_path.iterdir())


def test_one_model_may_encode_queries_and_items(reloaded):
    both = tower()
    model = model_of(EncodedHead(both, FEATURES), encoder=both, run_eagerly=True)
    model.fit(FEATURES, np.arange(NUM_CLASSES), verbose=0)
    loaded = reloaded(model)
    assert len(loaded.trainable_weights) == 2
    want = model.predict(FEATURES, verbose=0)["ids"]
    np.testing.assert_array_equal(loaded.predict(FEATURES, verbose=0)["ids"], want)


def test_a_mere_layer_may_be_the_item_encoder():
    model = model_of(EncodedHead(keras.layers.Dense(DIM), FEATURES))
    again = type(model).from_config(model.get_config())
    again.head.features = FEATURES
    assert again.head.encode([1, 2]).shape == (2, DIM)


@register
class Kinds(keras.layers.Layer):
    """An item encoder without ``build``, of integers."""

    def __init__(self, **options):
        super().__init__(**options)
        self.dense = keras.layers.Dense(DIM)

    def call(self, kinds):
        return self.dense(tf.one_hot(kinds, 3))


@pytest.mark.both_keras
@pytest.mark.filterwarnings("ignore:`build..` was called on layer")
@pytest.mark.parametrize("item_encoder", [Kinds, lambda: keras.Sequential([keras.layers.Dense(DIM)])])
def test_an_item_encoder_that_its_first_call_builds_comes_back(reloaded, item_encoder):
    features = np.arange(NUM_CLASSES) % 3 if item_encoder is Kinds else FEATURES
    model = model_of(EncodedHead(item_encoder(), features))
    np.testing.assert_array_equal(
        *(own.head.class_vectors(0, NUM_CLASSES) for own in (model, reloaded(model)))
    )


def test_training_over_all_classes_runs_layers_as_in_training_and_leaves_no_old_cache():
    normalized = keras.layers.BatchNormalization()
    item_encoder = keras.Sequential([keras.Input((3,)), normalized, keras.layers.Dense(DIM)])
    model = model_of(EncodedHead(item_encoder, FEATURES + 5), False, run_eagerly=True)
    x, y = learnable(16)
    for _ in range(2):
        model.fit(x, y, verbose=0)
        model.evaluate(x, y, verbose=0)
        check_cache(model.head)
    moved = normalized.moving_mean.numpy()
    assert np.all(moved > 0)
    # Asked for a loss, not for a step of training, it is exact.
    model.compute_loss(x, y, training=False)
    tfxc.head_loss(model.head, SoftmaxCrossentropy(), model.encoder(x), y)
    np.testing.assert_array_equal(normalized.moving_mean.numpy(), moved)
    tfxc.head_loss(model.head, SoftmaxCrossentropy(), model.encoder(x), y, training=True)
    assert np.all(normalized.moving_mean.numpy() > moved)


@pytest.mark.long
def test_a_model_that_its_first_batch_builds_reads_no_empty_cache():
    def unbuilt():
        return model_of(encoder=Subclassed(None, keras.layers.Dense(DIM)), run_eagerly=True)

    x, y = learnable(8)
    model = unbuilt()
    first = model.predict(x, verbose=0)["scores"]
    np.testing.assert_array_equal(model.predict(x, verbose=0)["scores"], first)
    assert np.abs(first).max() > 0
    model = unbuilt()
    assert model.evaluate(x, y, verbose=0) == model.evaluate(x, y, verbose=0)
    model = unbuilt()
    np.testing.assert_allclose(model.rank(x, 3)["scores"], model.predict(x, verbose=0)["scores"], rtol=1e-5)
    with pytest.raises(ValueError, match="a generator is not read to build it: call the model on one"):
        unbuilt().predict(iter([x]), verbose=0)
