"""The sentence of an op comes first, whoever reported it."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import NUM_CLASSES, features, make_model

from tfxc._keras import keras
from tfxc.model.errors import clean_errors, sentence_of

FRAMES = '  File "a.py", line 1, in f\n\n  File "b.py", line 2, in g\n\n  File "c.py", line 3, in h\n\n'
GRAPH = f"Graph execution error:\n\nDetected at node x defined at (most recent call last):\n{FRAMES}"
RAISED = '  File "d.py", line 4, in rows\n    raise ValueError(\n\nValueError: '
NODE = "\n\t [[{{node x}}]] [Op:__inference_step_7]"


@pytest.mark.parametrize(
    "report",
    [
        "Too large: 5 of 3",
        f"{GRAPH}Too large: 5 of 3{NODE}",
        f"Graph execution error:\n\nToo large: 5 of 3{NODE}",
        f"{GRAPH}Node: 'x/y'\nToo large: 5 of 3{NODE}",
        f"{GRAPH}{RAISED}Too large: 5 of 3\n\n{NODE}",
        f"{GRAPH}assertion failed: [Too large:] [5] [of] [3]{NODE}",
        "Exception encountered when calling A.\n\n\x1b[1mToo large: 5 of 3\x1b[0m\n\nArguments received",
    ],
)
@pytest.mark.parametrize("num_frames", [2, 3])
def test_the_sentence_is_found(report, num_frames):
    report = report.replace(FRAMES, "\n\n".join(FRAMES.split("\n\n")[:num_frames]) + "\n\n")
    assert sentence_of(report) == "Too large: 5 of 3"


@pytest.mark.parametrize("call", ["fit", "predict"])
def test_ids_of_another_vocabulary_are_told_as_such(call):
    layers = [keras.Input((3,), dtype="int32"), keras.layers.Embedding(5, 4), keras.layers.Flatten()]
    model = make_model(encoder=keras.Sequential(layers))
    x, y = np.array([[1, 2, 3], [1, 7, 3]]), np.array([0, 1])
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        model.fit(x, y, verbose=0, shuffle=False) if call == "fit" else model.predict(x, verbose=0)
    wanted = r"indices\[1,1\] = 7 is not in \[0, 5\)\. Where an Embedding .* another vocabulary"
    assert re.match(wanted, error.value.message)


def test_a_plain_error_is_left_alone():
    plain = tf.errors.InvalidArgumentError(None, None, "Too large.")
    with pytest.raises(tf.errors.InvalidArgumentError) as error, clean_errors():
        raise plain
    assert error.value is plain and error.value.__cause__ is None


@functools.cache
def model_of(eager):
    return make_model(run_eagerly=eager)


@pytest.mark.both_keras
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize(
    "step", ["fit", "validate", "evaluate", "predict", "rank", "train on batch", "test on batch"]
)
def test_a_bad_id_is_named_first_and_the_report_is_the_cause(step, eager):
    model, x, y = model_of(eager), features(2), np.array([0, 1])
    bad_inputs, bad_labels = {"features": x, "exclude": np.array([[99], [1]])}, np.array([99, 1])
    calls = {
        "fit": lambda: model.fit(x, bad_labels, verbose=0, shuffle=False),
        "validate": lambda: model.fit(x, y, validation_data=(x, bad_labels), verbose=0),
        "evaluate": lambda: model.evaluate(x, bad_labels, verbose=0),
        "predict": lambda: model.predict(bad_inputs, verbose=0),
        "rank": lambda: model.rank(bad_inputs, 2),
        "train on batch": lambda: model.train_on_batch(x, bad_labels),
        "test on batch": lambda: model.test_on_batch(x, bad_labels),
    }
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        calls[step]()
    what = "An excluded class" if step in ("predict", "rank") else "A label"
    message = error.value.message
    assert message.startswith(f"{what} id is outside [0, {NUM_CLASSES}) (-1 is padding)")
    assert "The id is 99 at flat position 0 of shape 2" in message and "\n" not in message
    assert "check_ids" in str(error.value.__cause__) or eager
