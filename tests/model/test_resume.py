"""The batches that are left, whatever form the data have."""

import os
import warnings

import numpy as np
import pytest
import tensorflow as tf
from backup_checks import Stop, X, Y, assert_same, run
from classifier_checks import DIM, make_model

import tfxc
from tfxc._keras import keras, variables_of_training
from tfxc.callbacks import BackupAndRestore

# What a form of data becomes is the same under both Kerases but where Keras itself cuts the arrays.
SAME_FORMS = [pytest.param(kind, marks=pytest.mark.one_keras) for kind in ("mapped", "endless")]


@pytest.mark.parametrize("kind", [*SAME_FORMS, "weights", "split"])
def test_forms_of_data(tmp_path, kind):
    dataset = tfxc.data.row_batches(95, 10, lambda rows: (tf.gather(X, rows), tf.gather(Y, rows)), seed=3)
    options = {
        "mapped": {"x": dataset.map(lambda x, y: (x * 2, y)).prefetch(2), "y": None},
        "endless": {"x": dataset.repeat(), "y": None, "steps_per_epoch": 7},
        "weights": {"batch_size": 10, "sample_weight": np.linspace(0, 1, 95), "shuffle": False},
        "split": {"batch_size": 8, "validation_split": 0.2, "x": X.astype(np.float64)},
    }[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        expected = run(tmp_path / "whole", **options)
        assert run(tmp_path / "killed", 3, 16, **options) is None
        assert_same(run(tmp_path / "killed", 3, **options), expected)


def test_several_steps_at_once(tmp_path):
    results = []
    for folder, stop in [("whole", None), ("killed", 3), ("killed", None)]:
        keras.utils.set_random_seed(1)
        model = make_model(tfxc.samplers.Uniform(5), steps_per_execution=3)
        callbacks = [BackupAndRestore(tmp_path / folder, 4), *([] if stop is None else [Stop(stop)])]
        try:
            model.fit(X, Y, batch_size=10, epochs=2, callbacks=callbacks, verbose=0)
        except KeyboardInterrupt:
            assert os.listdir(tmp_path / folder)
        results.append([variable.numpy() for variable in variables_of_training(model).values()])
    for value, wanted in zip(results[2], results[0], strict=True):
        np.testing.assert_array_equal(value, wanted)


@pytest.mark.one_keras
@pytest.mark.parametrize("trouble", ["shuffle", "generator", "random"])
def test_data_that_come_otherwise_each_time_are_told(tmp_path, trouble):
    dataset = tf.data.Dataset.from_tensor_slices((X, Y))
    dataset = {
        "shuffle": dataset.shuffle(95, seed=1).batch(10),
        "generator": tf.data.Dataset.from_generator(
            lambda: [(X[:10], Y[:10])], output_signature=dataset.batch(10).element_spec
        ),
        "random": dataset.map(lambda x, y: (x + tf.random.normal([DIM]), y)).batch(10),
    }[trouble]
    with pytest.warns(UserWarning, match="cannot give the data of an epoch a second time .*row_batches"):
        run(tmp_path, epochs=1, x=dataset, y=None)
    fixed = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(95, seed=1, reshuffle_each_iteration=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        run(tmp_path / "fixed", epochs=1, x=fixed.batch(10), y=None)


def test_a_model_that_is_not_built_is_refused(tmp_path):
    class Encoder(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(DIM)

        def call(self, inputs):
            return self.dense(inputs)

    model = make_model(tfxc.samplers.Uniform(5), encoder=Encoder())
    batches = iter([(X[:10], Y[:10])])
    with pytest.raises(ValueError, match="needs a built model.*call the model on one batch first"):
        model.fit(batches, callbacks=[BackupAndRestore(tmp_path)], verbose=0)
