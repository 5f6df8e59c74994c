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
    # A small epsilon: each step would be of one size, whatever the gradient, if it were not summed right.
    optimizer = tfxc.optimizers.LazySGD(0.5)
    model.compile(optimizer, loss=tfxc.losses.SoftmaxCrossentropy(), run_eagerly=eagerly)
    return model


def states_of(encoder):
    """The variables of an encoder's random layers."""
    seeds = [tf_variable(own) for own in encoder.non_trainable_variables if "seed" in own.name]
    return [*random_states(encoder), *seeds]


def outputs_and_gradients(encode, encoder, inputs, weigh):
    """The output, the gradients of weights and floats among the inputs, and the random states afterwards."""
    states, weights = states_of(encoder), list(map(tf_variable, encoder.trainable_weights))
    before = [state.numpy() for state in states]

    @tf.function
    def step(inputs):
        with tf.GradientTape() as tape:
            floats = [part for part in tf.nest.flatten(inputs) if part.dtype.is_floating]
            tape.watch(floats)
            output = encode(inputs)
            loss = tf.reduce_sum(tf.square(output) * weigh(output))
        return output, tape.gradient(loss, [*weights, *floats])

    output, gradients = step(inputs)
    after = [state.numpy() for state in states]
    for state, value in zip(states, before, strict=True):
        state.assign(value)
    return output, gradients, after


def compare(encoder, inputs, chunk_size):
    """Compares a GradCache with the encoder run on each chunk by a tape that keeps everything."""
    num_rows = len(tf.nest.flatten(inputs)[0])

    def plain(inputs):
        chunks = [
            encoder(tf.nest.map_structure(lambda part: part[start : start + chunk_size], inputs), training=True)
            for start in range(0, num_rows, chunk_size)
        ]
        return tf.concat(chunks, 0)

    def weigh(output):
        return tf.reshape(tf.range(tf.size(output, tf.int32)) % 7, tf.shape(output)) / 7

    inputs = tf.nest.map_structure(tf.constant, inputs)
    cached = GradCache(encoder, chunk_size)
    encoder(inputs)
    want, wanted, wanted_after = outputs_and_gradients(plain, encoder, inputs, lambda o: tf.cast(weigh(o), o.dtype))
    got, gradients, after = outputs_and_gradients(
        lambda inputs: cached(inputs, training=True), encoder, inputs, lambda o: tf.cast(weigh(o), o.dtype)
    )
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_equal(after, wanted_after)
    for own, other in zip(gradients, wanted, strict=True):
        assert type(own) is type(other)
        np.testing.assert_allclose(tf.convert_to_tensor(own), tf.convert_to_tensor(other), rtol=1e-5, atol=1e-5)
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
@pytest.mark.parametrize("chunk_size", [5, 13, 100])
def test_both_passes_draw_the_same_masks(chunk_size):
    encoder = tower(keras.layers.Dropout(0.5), keras.layers.GaussianNoise(0.1))
    gradients = compare(encoder, X, chunk_size)
    table = gradients[0]
    assert isinstance(table, tf.IndexedSlices) and table.values.shape == (X.size, 4)
