"""A forked process is told to spawn instead of hanging; helpers of a training that is backed up still end."""

import os
import signal

import numpy as np
import pytest
from classifier_checks import features, make_model

import tfxc
from tfxc._keras import keras
from tfxc.model import forked


def test_a_model_of_the_parent_is_refused(monkeypatch):
    """A test process has too many threads to be forked: it is told that it was."""
    model, x, y = make_model(), features(4), np.arange(4)
    model.fit(x, y, verbose=0)
    monkeypatch.setattr(forked, "_has_lost_threads", False)
    forked._note()  # as in a child
    for call in (model.fit, model.evaluate):
        with pytest.raises(RuntimeError, match=r"Start it by multiprocessing.get_context\('spawn'\)"):
            call(x, y, verbose=0)
    with pytest.raises(RuntimeError, match="forked from one in which TensorFlow was at work"):
        model.predict(x, verbose=0)


def test_a_helper_that_was_forked_during_training_ends_on_sigterm(tmp_path, monkeypatch):
    """While backups are made the signal means something else in the parent, not in its children."""
    heard = []

    class Terminate(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            process = os.getpid()
            with monkeypatch.context() as patch:
                patch.setattr(os, "getpid", lambda: process + 1)  # as in a child
                signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        callbacks = [Terminate(), tfxc.callbacks.BackupAndRestore(tmp_path)]
        make_model().fit(features(4), np.arange(4), callbacks=callbacks, verbose=0)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM] and len(list(tmp_path.iterdir())) == 1
