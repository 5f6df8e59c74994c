import functools
import itertools
import re

import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import NUM_CLASSES, features, make_model
from long_cases import long_after
from tensorflow.python.util import tf_stack

from tfxc._keras import keras


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.parametrize("call", ["fit", "predict"])
def test_ids_of_another_vocabulary_are_told_as_such(call):
    layers = [keras.Input((3,), dtype="int32"), keras.layers.Embedding(5, 4), keras.layers.Flatten()]
    model = make_model(encoder=keras.Sequential(layers))
    x, y = np.array([[1, 2, 3], [1, 7, 3]]), np.array([0, 1])
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        model.fit(x, y, verbose=0, shuffle=False) if call == "fit" else model.predict(x, verbose=0)
    wanted = r"indices\[1,1\] = 7 is not in \[0, 5\)\. If an Embedding .* another vocabulary"
    assert re.match(wanted, error.value.message)


@pytest.fixture
def ops_know_their_calls(monkeypatch):
    """Each op of a graph knows by what calls it was made, as for users; the other tests share one note."""
    monkeypatch.setattr(tf_stack, "extract_stack", tf_stack.extract_stack.__wrapped__)


@functools.cache
def model_of(eager):
    return make_model(run_eagerly=eager)


STEPS = "fit", "validate", "evaluate", "predict", "rank", "train on batch", "test on batch"


@pytest.mark.traced
@pytest.mark.both_keras
@pytest.mark.parametrize(("eager", "step"), long_after(8, *itertools.product((False, True), STEPS)))
def test_a_bad_id_is_named_first_and_the_report_is_the_cause(step, eager, ops_know_their_calls):
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
    assert message.startswith(f"{what} id is outside [0, {NUM_CLASSES}) (-1 is padding")
    assert "The id is 99 at flat position 0 of shape 2" in message and "\n" not in message
    assert "check_ids" in str(error.value.__cause__) or eager


@pytest.fixture
def model():
    model_of(False).optimizer.iterations.assign(0)
    return model_of(False)


def stopped(model, x, y, bad_epoch=0, **options):
    def rows():
        for epoch in range(bad_epoch + 1):
            values = x.copy()
            values[-1] = np.nan if epoch == bad_epoch else 0
            yield from zip(values, y, strict=True)

    shapes = (tf.TensorSpec(x.shape[1:]), tf.TensorSpec((), tf.int64))
    data = tf.data.Dataset.from_generator(rows, output_signature=shapes).batch(4)
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        model.fit(data, steps_per_epoch=len(x) // 4, epochs=bad_epoch + 1, verbose=0, **options)
    return error.value.message


@pytest.mark.parametrize(
    ("bad_epoch", "callbacks"), [(0, None), (1, []), (1, keras.callbacks.TerminateOnNaN())]
)
def test_batch_and_epoch_are_counted_from_one(model, bad_epoch, callbacks):
    message = stopped(model, features(12), np.arange(12), bad_epoch, callbacks=callbacks)
    assert message.startswith(f"The query of training step {3 + 3 * bad_epoch} is nan at row 3 of the batch")
    assert message.endswith(f". It was batch 3 of epoch {1 + bad_epoch}.") and ".." not in message


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.both_keras
def test_of_several_steps_at_once_it_is_one():
    message = stopped(make_model(steps_per_execution=2), features(16), np.arange(16))
    assert message.endswith("It was one of the batches 3 to 4 of epoch 1.")


@pytest.mark.both_keras
def test_a_list_of_callbacks_that_keras_made(model):
    callbacks = keras.callbacks.CallbackList([keras.callbacks.TerminateOnNaN()], model=model)
    assert "batch 3 of epoch 1" in stopped(model, features(12), np.arange(12), callbacks=callbacks)


@pytest.mark.parametrize("callback", [keras.callbacks.TerminateOnNaN, "csv", None])
def test_what_is_no_callback_is_named(model, callback):
    with pytest.raises(ValueError, match=f"callbacks must be objects such as .*{re.escape(repr(callback))}"):
        model.fit(features(4), np.arange(4), callbacks=[callback], verbose=0)


def test_validation(model):
    x, y = features(4), np.arange(4)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"It was the validation of epoch 1\.$"):
        model.fit(x, y, validation_data=(x, y + 1000), verbose=0)


@pytest.mark.both_keras
def test_a_fit_that_was_cut_off_leaves_no_validation_data_to_the_next():
    class Cut(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            raise KeyboardInterrupt

    model = make_model(run_eagerly=True)
    x, y = features(4), np.arange(4)
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y, validation_data=(x, y), callbacks=[Cut()], verbose=0)
    history = model.fit(x, y, validation_data=(x, y + 4), verbose=0).history
    expected = model.evaluate(x, y + 4, return_dict=True, verbose=0)["loss"]
    np.testing.assert_allclose(history["val_loss"], expected, rtol=1e-5)


@pytest.mark.traced
@pytest.mark.both_keras
@pytest.mark.parametrize("call", ["fit", "evaluate"])
def test_a_refusal_while_a_step_is_traced_begins_with_what_is_wrong(model, call):
    with pytest.raises(ValueError, match=r"^Labels must be integer class ids, but have dtype float32"):
        getattr(model, call)(features(4), np.arange(4, dtype="float32"), verbose=0)
