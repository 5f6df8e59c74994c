"""An error of ``fit`` says in which batch of which epoch it stopped."""

import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import features, make_model

from tfxc._keras import keras


@pytest.fixture(scope="module")
def trained_model():
    return make_model()


@pytest.fixture
def model(trained_model):
    """No weight of it changes where a step is refused, and its time begins anew."""
    trained_model.optimizer.iterations.assign(0)
    return trained_model


def stopped(model, x, y, bad_epoch=0, **options):
    """The message of a training whose inputs hold NaN at the ends of its epochs, from one epoch on."""

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


@pytest.mark.parametrize("bad_epoch", [0, 1])
@pytest.mark.parametrize("callbacks", [None, [], keras.callbacks.TerminateOnNaN()])
def test_batch_and_epoch_are_counted_from_one(model, bad_epoch, callbacks):
    message = stopped(model, features(12), np.arange(12), bad_epoch, callbacks=callbacks)
    assert message.startswith(f"The query of training step {3 + 3 * bad_epoch} is nan at row 3 of the batch")
    assert message.endswith(f". It was batch 3 of epoch {1 + bad_epoch}.") and ".." not in message


@pytest.mark.both_keras
def test_of_several_steps_at_once_it_is_one():
    message = stopped(make_model(steps_per_execution=2), features(16), np.arange(16))
    assert message.endswith("It was one of the batches 3 to 4 of epoch 1.")


@pytest.mark.both_keras
def test_a_list_of_callbacks_that_keras_made(model):
    callbacks = keras.callbacks.CallbackList([keras.callbacks.TerminateOnNaN()], model=model)
    assert "batch 3 of epoch 1" in stopped(model, features(12), np.arange(12), callbacks=callbacks)


def test_validation(model):
    x, y = features(4), np.arange(4)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"It was the validation of epoch 1\.$"):
        model.fit(x, y, validation_data=(x, y + 1000), verbose=0)
