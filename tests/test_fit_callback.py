import contextlib

import numpy as np
import pytest
from classifier_checks import features, make_model

from tfxc._keras import keras
from tfxc.callbacks import FitCallback


class Notes(FitCallback):
    def __init__(self, name, seen, change=None):
        super().__init__()
        self.name, self.seen, self.change = name, seen, change

    @contextlib.contextmanager
    def during_fit(self, model, arguments):
        assert model.built and len(model.optimizer.variables) > 1
        self.seen.append(f"{self.name} begins")
        if self.change is not None:
            self.change(arguments)
        try:
            yield
        finally:
            self.seen.append(f"{self.name} ends")

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(self.name)


@pytest.mark.both_keras
def test_contexts_are_entered_in_order_and_may_change_the_arguments():
    seen = []

    def change(arguments):
        arguments["x"], arguments["y"] = arguments["x"][:4], arguments["y"][:4]
        arguments["callbacks"] = [*arguments["callbacks"], Notes("added", seen)]

    callbacks = [Notes("first", seen), FitCallback(), Notes("second", seen, change)]
    make_model().fit(features(8), np.arange(8), callbacks=callbacks, batch_size=4, verbose=0)
    steps = ["first", "second", "added"]
    assert seen == ["first begins", "second begins", *steps, "second ends", "first ends"]


def test_contexts_are_left_when_training_fails():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyboardInterrupt

    seen = []
    with pytest.raises(KeyboardInterrupt):
        make_model().fit(features(4), np.arange(4), callbacks=[Notes("own", seen), Stop()], verbose=0)
    assert seen == ["own begins", "own", "own ends"]


def test_another_model_calls_the_hooks_of_keras_alone():
    seen = []
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.zeros([2, 3]), np.zeros([2, 1]), callbacks=Notes("own", seen), verbose=0)
    assert seen == ["own"]


@pytest.mark.parametrize("given", [lambda: None, lambda: (yield)])
def test_what_is_no_context_is_refused(given):
    class Own(FitCallback):
        def during_fit(self, model, arguments):
            return given()

    with pytest.raises(ValueError, match="Own.during_fit must return a context, .*@contextlib"):
        make_model().fit(features(4), np.arange(4), callbacks=[Own()], verbose=0)


@pytest.mark.both_keras
def test_a_context_may_end_an_error():
    class Own(FitCallback):
        def during_fit(self, model, arguments):
            return contextlib.suppress(ArithmeticError)

        def on_epoch_end(self, epoch, logs=None):
            raise ArithmeticError

    history = make_model().fit(features(4), np.arange(4), callbacks=[Own()], verbose=0)
    assert isinstance(history, keras.callbacks.History)
