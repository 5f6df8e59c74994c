import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import Subclassed
from long_cases import long_after

import tfxc
from tfxc._keras import keras
from tfxc._keras.layers import mask_of
from tfxc._keras.training import random_states
from tfxc._keras.weights import tf_variable
from tfxc.encoders import GradCache, sasrec

NUM_ITEMS, NUM_WORDS, DIM = 40, 30, 6
RANDOM = np.random.default_rng(0)
WORDS = RANDOM.integers(0, NUM_WORDS, (NUM_ITEMS, 3))
X, Y = RANDOM.integers(0, NUM_WORDS, (13, 3)), RANDOM.integers(0, NUM_ITEMS, 13)


def tower(*layers, dtype=None):
    """Words [B, 3] to vectors by a table and a dense layer whose activation has a custom gradient."""
    words = keras.Input((3,), dtype="int32", name="words")
    hidden = keras.layers.Flatten()(keras.layers.Embedding(NUM_WORDS, 4, dtype=dtype)(words))
    hidden = keras.layers.Dense(8, activation="swish", dtype=dtype)(hidden)
    for layer in layers:
        hidden = layer(hidden)
    return keras.Model(words, keras.layers.Dense(DIM, dtype=dtype)(hidden))


def two_towers(chunk_size, dtype=None, eagerly=False):
    keras.utils.set_random_seed(0)
    encoder, items = tower(dtype=dtype), tower(dtype=dtype)
    if chunk_size:
        encoder, items = GradCache(encoder, chunk_size), GradCache(items, chunk_size)
    model = tfxc.ExtremeClassifier(
        encoder, tfxc.layers.EncodedHead(items, WORDS), tfxc.samplers.InBatch(counts=np.ones(NUM_ITEMS))
    )
    model.compile(tfxc.optimizers.LazySGD(0.5), loss=tfxc.losses.SoftmaxCrossentropy(), run_eagerly=eagerly)
    return model


def states_of(encoder):
    """The variables of an encoder's random layers."""
    seeds = [tf_variable(own) for own in encoder.non_trainable_variables if "seed" in own.name]
    return [*random_states(encoder), *seeds]


def outputs_and_gradients(encode, encoder, inputs, run=lambda function: function):
    """The output, the gradients of weights and floats among the inputs, and the random states afterwards."""
    states, weights = states_of(encoder), list(map(tf_variable, encoder.trainable_weights))
    before = [state.numpy() for state in states]

    def step(inputs):
        floats = [part for part in tf.nest.flatten(inputs) if part.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(floats)
            output = encode(inputs)
            signs = tf.cast(tf.range(tf.size(output)) % 7 - 3, output.dtype)
            loss = tf.reduce_sum(output * tf.reshape(signs, tf.shape(output)))
        return output, tape.gradient(loss, [*weights, *floats])

    output, gradients = run(step)(inputs)
    after = [state.numpy() for state in states]
    for state, value in zip(states, before, strict=True):
        state.assign(value)
    return output, gradients, after


def compare(encoder, inputs, chunk_size, run=lambda function: function):
    """Compares a GradCache with the encoder run on each chunk by a tape that keeps everything."""
    inputs = tf.nest.map_structure(tf.constant, inputs)
    num_rows = len(tf.nest.flatten(inputs)[0])

    def plain(inputs):
        outputs = []
        for start in range(0, num_rows, chunk_size):
            rows = slice(start, start + chunk_size)
            chunk = [part[rows] for part in tf.nest.flatten(inputs)]
            outputs.append(encoder(tf.nest.pack_sequence_as(inputs, chunk), training=True))
        return tf.concat(outputs, 0)

    def cached(inputs):
        return GradCache(encoder, chunk_size)(inputs, training=True)

    encoder(inputs)
    want, wanted, wanted_after = outputs_and_gradients(plain, encoder, inputs)
    got, gradients, after = outputs_and_gradients(cached, encoder, inputs, run)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_equal(after, wanted_after)
    for own, other in zip(gradients, wanted, strict=True):
        assert type(own) is type(other)
        one_rounding = 2**-7 if own.dtype == tf.bfloat16 else 1e-5  # sums in another order round apart
        both = (tf.cast(tf.convert_to_tensor(part), tf.float32) for part in (own, other))
        np.testing.assert_allclose(*both, rtol=one_rounding, atol=1e-5)
    return gradients


@pytest.mark.both_keras
@pytest.mark.parametrize("eagerly", long_after(1, False, True))
def test_two_towers_learn_what_they_learn_without(eagerly):
    plain, cached = two_towers(None), two_towers(5, eagerly=eagerly)
    for model in (plain, cached):
        model.fit(X, Y, batch_size=13, epochs=2, shuffle=False, verbose=0)
    for own, other in zip(cached.weights, plain.weights, strict=True):
        np.testing.assert_allclose(tf_variable(own), tf_variable(other), rtol=1e-5, atol=1e-6)


@pytest.mark.both_keras
@pytest.mark.traced
@pytest.mark.parametrize("chunk_size", long_after(1, 5, 13, 100))
def test_both_passes_draw_the_same_masks(chunk_size):
    encoder = tower(keras.layers.Dropout(0.5), keras.layers.GaussianNoise(0.1))
    gradients = compare(encoder, X, chunk_size, tf.function)
    table = gradients[0]
    assert isinstance(table, tf.IndexedSlices) and len(table.values) == len(np.unique(X))


@pytest.mark.both_keras
def test_floats_among_nested_inputs_have_gradients():
    words, prices = keras.Input((3,), dtype="int64"), keras.Input((2,))
    hidden = keras.layers.Flatten()(keras.layers.Embedding(NUM_WORDS, 4)(words))
    vector = keras.layers.Dense(DIM, activation="gelu")(keras.layers.Concatenate()([hidden, prices]))
    encoder = keras.Model({"words": words, "prices": prices}, vector)
    inputs = {"prices": RANDOM.normal(size=(13, 2)).astype("float32"), "words": X}
    assert compare(encoder, inputs, 5)[-1].shape == (13, 2)


@pytest.mark.long
def test_sequences_keep_their_masks():
    keras.utils.set_random_seed(0)
    encoder = sasrec(NUM_WORDS, max_length=3, dim=DIM, dropout=0.3, table_dtype="bfloat16")
    compare(encoder, X, 5)
    for training in (False, True):
        output = GradCache(encoder, 5)(tf.constant(X), training=training)
        np.testing.assert_array_equal(mask_of(output), X > 0)


@pytest.mark.both_keras
@pytest.mark.filterwarnings("ignore:.*does not support masking")  # the output of a mean has no mask
def test_masks_and_none_reach_the_encoder():
    class MeanOfCounted(keras.layers.Layer):
        def call(self, inputs):
            vectors, nothing = inputs
            assert nothing is None
            return keras.layers.GlobalAveragePooling1D()(vectors, mask_of(vectors))

    embedding, cached = keras.layers.Embedding(NUM_WORDS, DIM, mask_zero=True), GradCache(MeanOfCounted(), 5)
    inputs = embedding(tf.constant(X % 3)), None
    want, got = (cached(inputs, training=training) for training in (False, True))
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_no_example_and_a_layer_that_was_never_called():
    cached = GradCache(Subclassed(), 5)
    with tf.GradientTape() as tape:
        output = cached(tf.zeros([0, 4]), training=True)
    assert output.shape == (0, DIM)
    assert not np.any(tape.gradient(output, tf_variable(cached.trainable_weights[0])))


@pytest.mark.both_keras
def test_mixed_precision_adds_chunks_in_the_precision_of_weights():
    encoder = tower(dtype="mixed_bfloat16")
    cached = GradCache(encoder, 5, dtype="mixed_bfloat16")  # as a global policy makes it
    run = lambda inputs: cached(inputs, training=True)  # noqa: E731
    output, gradients, _ = outputs_and_gradients(run, encoder, tf.constant(X))
    assert output.dtype == tf.bfloat16 and {own.dtype for own in gradients} == {tf.float32}
    _, wanted, _ = outputs_and_gradients(encoder, encoder, tf.constant(X))
    for own, other in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(*map(tf.convert_to_tensor, (own, other)), rtol=0.05, atol=0.05)


class Unseeded(keras.layers.Layer):
    def call(self, inputs):
        return inputs + tf.random.uniform(tf.shape(inputs))


@pytest.mark.both_keras
@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda: keras.layers.BatchNormalization(name="own"), "changes own/moving_mean.*take LayerN"),
        (lambda: keras.layers.ActivityRegularization(0.1, name="own"), "adds the loss .*own.*, by add_lo"),
        (lambda: Unseeded(name="noise"), "noise.* draws by RandomUniform, which keeps no state"),
    ],
)
def test_what_cannot_run_in_chunks_is_refused(layer, message):
    with pytest.raises(ValueError, match=message):
        GradCache(tower(layer()), 5)(X, training=True)


@pytest.mark.both_keras
def test_bad_arguments():
    with pytest.raises(ValueError, match="chunk_size must be an integer of at least 1, but got 0"):
        GradCache(tower(), 0)
    with pytest.raises(ValueError, match="encoder must be a Keras model, but got None"):
        GradCache(None, 5)
    with pytest.raises(ValueError, match="got a RaggedTensor: pass ragged.to_tensor"):
        GradCache(tower(), 5)(tf.ragged.constant([[1, 2], [3]]), training=True)
    with pytest.raises(ValueError, match="must give one tensor"):
        GradCache(keras.layers.Lambda(lambda x: (x, x)), 5)(X, training=True)


@pytest.mark.both_keras
def test_files_and_exports_answer_alike(tmp_path, served_by, reloaded):
    model = two_towers(5)
    model.fit(X, Y, batch_size=13, verbose=0)
    want = model.predict(X, verbose=0)
    loaded = reloaded(model)
    assert loaded.encoder.chunk_size == loaded.head.item_encoder.chunk_size == 5
    np.testing.assert_allclose(loaded.predict(X, verbose=0)["scores"], want["scores"], rtol=1e-6)
    loaded.fit(X, Y, verbose=0)
    served = served_by(model)
    scores = served.serve(words=tf.constant(X, tf.int32))["scores"]
    np.testing.assert_allclose(scores, want["scores"], rtol=1e-5)
    model.export_item_encoder(tmp_path / "items")
    served = tf.saved_model.load(tmp_path / "items")
    vectors = served.serve(words=tf.constant(WORDS, tf.int32))["vectors"]
    np.testing.assert_allclose(vectors, model.head.class_vectors(0, NUM_ITEMS), rtol=1e-5, atol=1e-6)
    assert tfxc.memory_report(model, batch_size=13) == tfxc.memory_report(two_towers(None), batch_size=13)


def test_a_file_that_could_not_tell_shared_layers_is_refused():
    shared, features = keras.layers.Dense(DIM), np.ones([NUM_ITEMS, 4], "float32")
    encoder, items = (keras.Sequential([keras.Input((4,)), shared]) for _ in range(2))
    head = tfxc.layers.EncodedHead(GradCache(items, 5), features)
    model = tfxc.ExtremeClassifier(encoder, head, tfxc.samplers.Uniform(4))
    with pytest.raises(ValueError, match=f"shares .'{shared.name}'.* item encoder that is in no GradCache"):
        model.get_config()
