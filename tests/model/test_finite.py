"""A number that is none stops training, and no weight has seen it."""

import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import DIM, dense_encoder, features, make_model, weights_of

import tfxc
from tfxc._keras import keras
from tfxc.model.finite import require_finite


@pytest.mark.both_keras
@pytest.mark.parametrize("eager", [False, True])
def test_training_stops_before_the_weights_are_touched(eager):
    x, y = features(20), np.arange(20)
    model = make_model(run_eagerly=eager)
    model.fit(x, y, batch_size=10, verbose=0)
    before = weights_of(model)
    bad = np.where(np.arange(20)[:, np.newaxis] == 3, np.nan, x)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="The query of training step 3 is nan at row 3 of the batch"
    ):
        model.fit(bad, y, batch_size=20, shuffle=False, verbose=0)
    weight = np.full(20, np.inf, np.float32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="^The loss of training step 3 is .*clipnorm"):
        model.fit(x, y, batch_size=20, sample_weight=weight, verbose=0)
    for value, wanted in zip(weights_of(model), before, strict=True):
        np.testing.assert_array_equal(value, wanted)
    model.fit(x, y, verbose=0)


def test_moving_averages_do_not_see_what_is_not_finite():
    layers = [keras.Input((2, DIM)), keras.layers.BatchNormalization(), keras.layers.Flatten()]
    model = make_model(encoder=keras.Sequential([*layers, keras.layers.Dense(DIM)]))
    x, y = np.ones([4, 2, DIM], np.float32), np.arange(4)
    x[2, 1, 0] = np.nan
    before = weights_of(model)
    with pytest.raises(tf.errors.InvalidArgumentError, match="The input of training step 1 is nan at row 2"):
        model.fit(x, y, verbose=0)
    for was, now in zip(before, weights_of(model), strict=True):
        np.testing.assert_array_equal(was, now)


@keras.saving.register_keras_serializable(package="tests")
class SignedRoot(keras.layers.Layer):
    """Finite everywhere, but its slope at 0 is not."""

    def call(self, inputs):
        return tf.sign(inputs) * tf.abs(inputs) ** 0.5


@pytest.mark.parametrize(
    ("kind", "eager"),
    [
        ("dense", False),
        ("dense", True),
        ("embedding", False),
        ("tied", True),
        ("item encoder", True),
    ],
)
def test_a_gradient_that_is_not_finite_does_not_reach_the_weights(kind, eager):
    x, y = np.abs(features(20)) + 0.1, np.arange(20)
    encoder, head, bad = dense_encoder(), None, x * (y != 3)[:, np.newaxis]
    if kind == "dense":
        layers = [keras.Input((DIM,)), keras.layers.Dense(DIM, use_bias=False), SignedRoot()]
        encoder = keras.Sequential(layers)
        name = "dense.*/kernel"
    elif kind == "item encoder":
        layers = [keras.Input((3,)), keras.layers.Dense(DIM, use_bias=False), SignedRoot()]
        items = np.arange(1.0, 76.0, dtype=np.float32).reshape(25, 3)
        head, name = tfxc.layers.EncodedHead(keras.Sequential(layers), items), "dense.*/kernel"
        bad = x
    else:
        table = keras.layers.Embedding(26, DIM, embeddings_initializer="ones", name="items")
        encoder = keras.Sequential(
            [keras.Input((1,), dtype="int32"), table, keras.layers.Flatten(), SignedRoot()]
        )
        head = tfxc.layers.DenseHead(25, tied_to="items", row_offset=1) if kind == "tied" else None
        x, bad, name = y[:, np.newaxis] + 1, y[:, np.newaxis] * (y != 3)[:, np.newaxis], "items/embeddings"
        table.embeddings.assign(np.concatenate([np.zeros([1, DIM]), np.ones([25, DIM])]))
    model = make_model(encoder=encoder, head=head, run_eagerly=eager)
    model.fit(x, y, batch_size=10, verbose=0)
    if kind == "item encoder":
        items[3] = 0
        head.features = tf.constant(items)
    before = weights_of(model)
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=f"^The gradient of {name} in training step 3 is -?nan and the step was not made.* batch 1",
    ):
        model.fit(bad, y, batch_size=20, shuffle=False, verbose=0)
    for value, wanted in zip(weights_of(model), before, strict=True):
        if value.shape:  # but the age of the cached class vectors
            np.testing.assert_array_equal(value, wanted)
    assert int(model.optimizer.iterations) == 2


def test_a_gradient_that_is_large_may_be_clipped():
    optimizer = tfxc.optimizers.LazySGD(1.0, global_clipnorm=1.0)
    model = make_model(optimizer=optimizer)
    before = weights_of(model)
    model.fit(features(5), np.arange(5), sample_weight=np.full(5, 1e15, np.float32), verbose=0)
    moved = [new - old for new, old in zip(weights_of(model), before, strict=True)]
    assert np.sqrt(sum(np.sum(part**2) for part in moved)) == pytest.approx(1, rel=1e-3)


def test_half_precision_inputs_are_summed_in_more():
    x = np.full([4, 1024], 200.0, np.float16)
    layers = [keras.Input((1024,), dtype="float16"), keras.layers.Rescaling(1e-4, dtype="float32")]
    encoder = [*layers, keras.layers.Dense(DIM), keras.layers.BatchNormalization()]
    model = make_model(encoder=keras.Sequential(encoder))
    model.fit(tf.data.Dataset.from_tensors((x, np.arange(4))), verbose=0)
    optimizer = keras.optimizers.SGD()
    assert require_finite(tf.constant(x), "query", optimizer).dtype == tf.float16


@pytest.mark.parametrize("shape", [(), (0,), (3,), (0, 2), (3, 2)])
def test_shapes(shape):
    optimizer = keras.optimizers.SGD()
    assert require_finite(tf.ones(shape), "query", optimizer).shape == shape
    if 0 not in shape:
        with pytest.raises(tf.errors.InvalidArgumentError, match="inf"):
            require_finite(tf.fill(shape, float("-inf")), "query", optimizer)


def test_evaluation_goes_on():
    model = make_model(tfxc.samplers.Uniform(5))
    assert np.isnan(model.evaluate(features(5) * np.nan, np.arange(5), verbose=0))
