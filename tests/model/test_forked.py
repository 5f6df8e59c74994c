"""A forked process is told to spawn instead of hanging; the training it was forked from goes on."""

import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
from classifier_checks import features, make_model

import tfxc
from tfxc._keras import keras

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def outcome_of(call):
    """The message of the error that a call raises in a forked process."""

    def child(answers):
        try:
            call()
        except RuntimeError as error:
            answers.put(str(error))

    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=child, args=(answers,))
    process.start()
    answer = answers.get(timeout=30)
    process.join()
    return answer


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
def test_a_model_of_the_parent_is_refused():
    model, x, y = make_model(), features(4), np.arange(4)
    calls = [
        lambda: model.fit(x, y, verbose=0),
        lambda: model.evaluate(x, y, verbose=0),
        lambda: model.predict(x, verbose=0),
    ]
    for call in calls:
        assert "Start it by multiprocessing.get_context('spawn')" in outcome_of(call)
    model.fit(x, y, verbose=0)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
def test_a_helper_that_was_forked_during_training_ends_on_sigterm(tmp_path):
    """While backups are made the signal means something else in the parent, not in its children."""
    codes = []

    class Fork(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            helper = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
            helper.start()
            helper.terminate()
            helper.join(30)
            codes.append(helper.exitcode)
            helper.kill()

    model = make_model()
    backup = tfxc.callbacks.BackupAndRestore(tmp_path)
    model.fit(features(4), np.arange(4), callbacks=[Fork(), backup], verbose=0)
    assert codes == [-signal.SIGTERM] and len(list(tmp_path.iterdir())) == 1
