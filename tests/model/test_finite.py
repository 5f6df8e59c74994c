"""A number that is none stops training, and no weight has seen it."""

import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import DIM, features, make_model, only_in_keras_3, weights_of

import tfxc
from tfxc._keras import keras
from tfxc.model.finite import require_finite


@pytest.mark.parametrize("eager", [False, *only_in_keras_3(True)])
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


@pytest.mark.one_keras
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
