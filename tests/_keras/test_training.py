import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import NUM_CLASSES, features, make_model

from tfxc._keras import IS_KERAS_3, keras, training
from tfxc.metrics import CoverageAtK, RankingMetric, RecallAtK

MORE_IS_BETTER = "val_recall_at_2", "val_coverage_at_2", "val_recall_at_1"


def watching(monitor, **options):
    return [
        keras.callbacks.EarlyStopping(monitor, **options),
        keras.callbacks.ModelCheckpoint("best.keras", monitor, save_best_only=True, **options),
        keras.callbacks.ReduceLROnPlateau(monitor, **options),
    ]


class FirstIdAtK(RankingMetric):
    abbreviation = "first_id"
    higher_is_better = False

    def per_example(self, labels, ids):
        return tf.cast(ids[:, 0], tf.float32)


def fit_with(callbacks):
    metrics, weighted = [RecallAtK(2), CoverageAtK(2, NUM_CLASSES)], [RecallAtK(1), FirstIdAtK(1)]
    model = make_model(metrics=metrics, weighted_metrics=weighted)
    data = features(4), np.arange(4)
    model.fit(*data, validation_data=data, callbacks=callbacks, verbose=0)


def raised_by_keras_3(message):
    return pytest.raises(ValueError, match=message) if IS_KERAS_3 else contextlib.nullcontext()


def test_a_compile_that_was_refused_is_forgotten():
    model = make_model()
    assert training.is_compiled(model)
    training.forget_compile(model)
    assert not training.is_compiled(model)


def test_several_steps_at_once_on_replicas_fail_in_keras_3_alone():
    parts = {"distribute_strategy": SimpleNamespace(num_replicas_in_sync=2), "encoder": make_model().encoder}
    replicated = SimpleNamespace(**parts, steps_per_execution=2, _steps_per_execution=tf.constant(2))
    with raised_by_keras_3("cannot make 2 training steps at once"):
        training.refuse_on_replicas(replicated)
    for call in ("train", "predict"):
        with raised_by_keras_3(f"all of the batch of {call}_on_batch to each of several"):
            training.refuse_batch_on_replicas(replicated, call)


def test_labels_of_a_call_stay_as_they_are_and_a_callback_without_logs_is_not_waited_for():
    labels, callback = tf.constant([1.0]), training.LogFreeCallback()
    assert training.compiled_labels(labels) is labels
    assert callback.async_safe and callback._supports_tf_logs


@pytest.mark.long
def test_callbacks_keep_the_highest_of_a_metric(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    modes = ["auto", "max"] if IS_KERAS_3 else ["max"]
    callbacks = [one for mode in modes for own in MORE_IS_BETTER for one in watching(own, mode=mode)]
    fit_with(callbacks)
    for callback in callbacks:
        assert callback.monitor_op(0.9, 0.5) and not callback.monitor_op(0.5, 0.9), callback


@pytest.mark.long
@pytest.mark.skipif(IS_KERAS_3, reason="Keras 3 asks the metric, and keeps the highest")
def test_a_callback_that_would_keep_the_lowest_is_refused():
    for monitor in MORE_IS_BETTER:
        for callback in watching(monitor):
            message = rf'{type(callback).__name__}\(monitor="{monitor}"\) .*mode="max"'
            with pytest.raises(ValueError, match=message):
                fit_with([callback])


def test_callbacks_keep_the_lowest_of_what_is_better_low(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    callbacks = [each for monitor in ("val_loss", "val_first_id_at_1") for each in watching(monitor)]
    fit_with(callbacks)
    for callback in callbacks:
        assert callback.monitor_op(0.5, 0.9) and not callback.monitor_op(0.9, 0.5), callback


def test_a_checkpoint_of_every_epoch_compares_nothing(tmp_path):
    path = tmp_path / "last.keras"
    fit_with([keras.callbacks.ModelCheckpoint(str(path), monitor="val_recall_at_2")])
    assert path.exists()


def test_tf_keras_shortens_the_last_execution_of_an_epoch_and_has_no_iterators_of_keras_3():
    assert hasattr(training, "EpochsFromBatch") == IS_KERAS_3
    model = make_model(steps_per_execution=3)
    assert training.batches_of_epoch(model, 7) == (9 if IS_KERAS_3 else 7)


def test_a_layer_frozen_after_compile_trains_on_in_tf_keras_alone():
    model = make_model()
    layer = model.encoder.layers[-1]
    before = layer.kernel.numpy()
    layer.trainable = False
    model.fit(features(8), np.arange(8), verbose=0)
    assert np.array_equal(layer.kernel.numpy(), before) == IS_KERAS_3
