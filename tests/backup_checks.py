"""A training that is stopped and run again, for the tests of what goes on."""

import os

import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import DIM, NUM_CLASSES, features, make_model

import tfxc
from tfxc._keras import keras
from tfxc._keras.training import variables_of_training
from tfxc.callbacks import BackupAndRestore

X, Y = features(95), np.arange(95) % NUM_CLASSES
STEPS = 10  # an epoch


def long_traced(test):
    return pytest.mark.long(pytest.mark.traced(test))


class Stop(keras.callbacks.Callback):
    """Ends the process, as it were, when the optimizer has made so many steps."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations.numpy()) >= self.step:
            raise KeyboardInterrupt


class Losses(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append((batch, float(logs["loss"])))


def made(sampler=None, make_head=None):
    keras.utils.set_random_seed(1)
    encoder = keras.Sequential([keras.Input((DIM,)), keras.layers.Dense(DIM), keras.layers.Dropout(0.3)])
    sampler = sampler or tfxc.samplers.Uniform(6)
    head = None if make_head is None else make_head()
    optimizer = "adam" if head is None else tfxc.optimizers.RowwiseAdagrad(0.3)
    metrics = [tfxc.metrics.RecallAtK(5)]
    return make_model(sampler, encoder=encoder, head=head, metrics=metrics, optimizer=optimizer)


def run(folder, save_freq="epoch", stop=None, x=X, y=Y, callbacks=(), sampler=None, model=None, **options):
    options = {"epochs": 3, **options}
    model = made(sampler) if model is None else model
    keras.utils.set_random_seed(1)
    losses = Losses()
    callbacks = [BackupAndRestore(folder, save_freq), losses, *callbacks]
    callbacks += [] if stop is None else [Stop(stop)]
    try:
        history = model.fit(x, y, callbacks=callbacks, verbose=0, **options)
    except KeyboardInterrupt:
        return None
    values = {name: variable.numpy() for name, variable in variables_of_training(model).items()}
    timed = "sampler/refresh_seconds", "sampler/refresh_share", "rewire/seconds", "mining/search_seconds"
    logs = {name: values for name, values in history.history.items() if name not in timed}
    return values, logs, losses.seen, model


class Again:
    """Runs the script with one model, since the steps of each new one are traced anew.

    Where the folder has backups the model starts as zeros, but for the learning rate, which the script names:
    whatever is not restored shows.
    """

    def __init__(self, model):
        self.model = model
        self.start = {name: variable.numpy() for name, variable in variables_of_training(model).items()}

    def run(self, folder, *args, **options):
        goes_on = os.path.isdir(folder) and os.listdir(folder)
        for name, variable in variables_of_training(self.model).items():
            is_zero = goes_on and not name.startswith("learning_rate")
            variable.assign(tf.zeros_like(variable) if is_zero else self.start[name])
        return run(folder, *args, model=self.model, **options)


def assert_same(result, expected):
    for name, value in expected[0].items():
        np.testing.assert_array_equal(result[0][name], value, err_msg=name)
    assert repr(result[1:3]) == repr(expected[1:3])


def check_goes_on(script, folder, stop, save_freq="epoch", **options):
    """A training that was killed at a step ends as one that ran through."""
    expected = script(folder / "whole", save_freq, **options)
    assert script(folder / "killed", save_freq, stop, **options) is None and os.listdir(folder / "killed")
    assert_same(script(folder / "killed", save_freq, **options), expected)
