import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import NUM_CLASSES, features, make_model

from tfxc._keras import IS_KERAS_3, keras, training
from tfxc._keras.training import (
    LogFreeCallback,
    batches_of_epoch,
    compiled_labels,
    forget_compile,
    is_compiled,
    refuse_batch_on_replicas,
    refuse_on_replicas,
)
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


@pytest.mark.both_keras
def test_a_compile_that_was_refused_is_forgotten():
    model = make_model()
    assert is_compiled(model)
    forget_compile(model)
    assert not is_compiled(model)


@pytest.mark.both_keras
def test_several_steps_at_once_on_replicas_fail_in_keras_3_alone():
    strategy = SimpleNamespace(num_replicas_in_sync=2)
    replicated = SimpleNamespace(
        distribute_strategy=strategy, encoder=make_model().encoder, steps_per_execution=2
    )
    replicated._steps_per_execution = tf.constant(2)
    refused = pytest.raises(ValueError, match="cannot make 2 training steps at once")
    with refused if IS_KERAS_3 else contextlib.nullcontext():
        refuse_on_replicas(replicated)
    for call in ("train", "predict"):
        refused = pytest.raises(ValueError, match=f"all of the batch of {call}_on_batch to each of several")
        with refused if IS_KERAS_3 else contextlib.nullcontext():
            refuse_batch_on_replicas(replicated, call)


@pytest.mark.both_keras
def test_labels_of_a_call_stay_as_they_are():
    labels = tf.constant([1.0])
    assert compiled_labels(labels) is labels


def test_a_callback_without_logs_is_not_waited_for():
    callback = LogFreeCallback()
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


@pytest.mark.both_keras
def test_iterators_of_keras_3_are_made_under_it_alone():
    assert hasattr(training, "EpochsFromBatch") == IS_KERAS_3


@pytest.mark.both_keras
def test_tf_keras_shortens_the_last_execution_of_an_epoch():
    model = make_model(steps_per_execution=3)
    assert batches_of_epoch(model, 7) == (9 if IS_KERAS_3 else 7)
