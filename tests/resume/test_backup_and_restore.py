import contextlib
import os
import shutil
import signal
import threading
import warnings
from unittest import mock

import kill_training
import numpy as np
import pytest
import tensorflow as tf
from backup_checks import STEPS, Again, Stop, X, Y, assert_same, check_goes_on, long_traced, made, run
from classifier_checks import DIM, NUM_CLASSES, dense_encoder, features, make_model

import tfxc
from tfxc._keras import IS_KERAS_3, keras
from tfxc.callbacks import BackupAndRestore, SamplerRefresh
from tfxc.resume.backup_and_restore import BackupSchedule, Position
from tfxc.resume.folder import BackupFolder


@pytest.fixture(scope="module")
def script():
    again = Again(made())
    return lambda *args, **options: again.run(*args, **{"batch_size": 10, **options})


@pytest.fixture(scope="module")
def whole(script, tmp_path_factory):
    return script(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def two_epochs(script, tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    return script(folder, epochs=2), folder


def schedules():
    return [
        SamplerRefresh(4, growth=1.3),
        keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=1, min_delta=1.0),
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=9, restore_best_weights=True),
    ]


@pytest.mark.traced
@pytest.mark.both_keras
def test_interrupted_anywhere_it_ends_as_it_would_have(tmp_path):
    again = Again(made(tfxc.samplers.MIDX(6, num_codewords=3, seed=2)))

    def script(folder, *args):
        options = {"batch_size": 10, "validation_data": (X[:20], Y[:20])}
        return again.run(folder, *args, callbacks=schedules(), **options)

    expected = script(tmp_path / "whole")
    assert len(expected[2]) == 3 * STEPS and expected[1]["val_loss"]
    # Each goes on from the last backup of the one before: of steps 4, 10 and 20.
    for save_freq, stop in ((4, 7), ("epoch", 13), (STEPS, 21)):
        assert script(tmp_path / "killed", save_freq, stop) is None
    assert_same(script(tmp_path / "killed", 4), expected)


@pytest.fixture(scope="module")
def bfloat16_script():
    again = Again(made(make_head=lambda: tfxc.layers.DenseHead(NUM_CLASSES, table_dtype="bfloat16")))
    return lambda *args, **options: again.run(*args, **{"batch_size": 10, "epochs": 2, **options})


@long_traced
@pytest.mark.both_keras
def test_a_bfloat16_table_goes_on_to_the_bit(tmp_path, bfloat16_script):
    check_goes_on(bfloat16_script, tmp_path, 13, 4)


@long_traced
def test_the_best_weights_of_a_bfloat16_table_are_kept(tmp_path, bfloat16_script):
    def script(*args):
        stopping = keras.callbacks.EarlyStopping("loss", patience=1, min_delta=99, restore_best_weights=True)
        return bfloat16_script(*args, epochs=3, callbacks=[stopping])

    check_goes_on(script, tmp_path, 13)


@long_traced
def test_what_a_callback_is_told_counts_and_a_log_goes_on(tmp_path, script):
    def saved_as(name, *stop):
        log = keras.callbacks.CSVLogger(str(tmp_path / "log.csv"), append=True)
        callbacks = [keras.callbacks.ModelCheckpoint(str(tmp_path / f"{name}.keras")), log]
        return script(tmp_path / "backups", "epoch", *stop, callbacks=callbacks)

    assert saved_as("one", 13) is None and (tmp_path / "one.keras").exists()
    (tmp_path / "one.keras").unlink()
    assert saved_as("other") and sorted(path.name for path in tmp_path.glob("*.keras")) == ["other.keras"]
    lines = (tmp_path / "log.csv").read_text().split()
    assert [line.split(",")[0] for line in lines] == ["epoch", "0", "1", "2"]


@long_traced
@pytest.mark.filterwarnings("ignore:The training in .* is finished")
def test_a_finished_training_is_restored_and_more_epochs_are_added(tmp_path, script, two_epochs, whole):
    expected, folder = two_epochs
    shutil.copytree(folder, tmp_path / "backups")
    assert_same(script(tmp_path / "backups", epochs=2), expected)
    assert_same(script(tmp_path / "backups", epochs=3), whole)


def steps_of(model):
    return int(model.optimizer.iterations.numpy())


@pytest.mark.long
def test_what_a_model_learnt_since_the_end_of_a_training_is_not_undone(tmp_path):
    model, backup = made(), BackupAndRestore(tmp_path)
    expected = model.fit(X, Y, callbacks=[backup], verbose=0).history
    with pytest.warns(UserWarning, match="is finished, .* fit has nothing left to do. For another training"):
        model.fit(X, Y, callbacks=[backup], verbose=0)
    ended, again = steps_of(model), made()
    with pytest.warns(UserWarning, match=f"is finished, at step {ended}, and its model is restored: fit has"):
        assert again.fit(X, Y, callbacks=[BackupAndRestore(tmp_path)], verbose=0).history == expected
    assert steps_of(again) == ended
    model.fit(X, Y, epochs=2, callbacks=[BackupAndRestore(tmp_path)], verbose=0)  # goes on
    assert steps_of(model) == 2 * ended
    model.fit(X, Y, verbose=0)
    for epochs in (2, 3):
        with pytest.raises(
            ValueError, match=f"step {2 * ended}, .* model is at step {3 * ended}: fit would undo"
        ):
            model.fit(X, Y, epochs=epochs, callbacks=[BackupAndRestore(tmp_path)], verbose=0)
        assert steps_of(model) == 3 * ended


@long_traced
def test_a_fit_that_was_interrupted_goes_back_to_its_backup_and_says_so(tmp_path):
    model = made()
    with pytest.raises(KeyboardInterrupt):
        callbacks = [BackupAndRestore(tmp_path), Stop(STEPS + 3)]
        model.fit(X, Y, batch_size=10, epochs=2, callbacks=callbacks, verbose=0)
    with pytest.warns(UserWarning, match=f"at step {STEPS + 3}, and goes back .* of step {STEPS}, where"):
        model.fit(X, Y, batch_size=10, epochs=2, callbacks=[BackupAndRestore(tmp_path)], verbose=0)
    assert steps_of(model) == 2 * STEPS


@pytest.mark.long
@pytest.mark.skipif(not IS_KERAS_3, reason="optimizers of tf-keras accumulate no gradients")
def test_a_finished_training_that_accumulates_gradients_is_restored(tmp_path):
    optimizer = keras.optimizers.Adam(0.01, gradient_accumulation_steps=2)
    model = make_model(tfxc.samplers.Uniform(6), optimizer=optimizer)
    backup = BackupAndRestore(tmp_path)
    expected = model.fit(X, Y, callbacks=[backup], verbose=0).history
    with pytest.warns(UserWarning, match="is finished, .* fit has nothing left to do. For another training"):
        assert model.fit(X, Y, callbacks=[backup], verbose=0).history == expected


@pytest.mark.long
@pytest.mark.skipif(not IS_KERAS_3, reason="optimizers of tf-keras accumulate no gradients")
def test_a_group_of_calls_that_add_up_gradients_goes_on(tmp_path):
    optimizer = tfxc.optimizers.LazyAdam(0.05, gradient_accumulation_steps=4)
    script = Again(make_model(tfxc.samplers.Uniform(6), optimizer=optimizer)).run
    check_goes_on(script, tmp_path, 7, 3, batch_size=10)


class Active(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.share = keras.metrics.Mean(name="active")

    def call(self, inputs):
        self.share.update_state(tf.cast(inputs > 0, tf.float32))
        return inputs


@long_traced
@pytest.mark.both_keras
def test_metrics_of_layers_go_on_within_an_epoch(tmp_path):
    inner = keras.Sequential([keras.Input((DIM,)), Active()])  # lists the metric, too
    encoder = keras.Sequential([keras.Input((DIM,)), keras.layers.Dense(DIM), inner])
    script = Again(make_model(tfxc.samplers.Uniform(6), encoder=encoder)).run
    options = {"batch_size": 10, "epochs": 2}
    expected = script(tmp_path / "whole", 3, **options)
    assert len(expected[1]["active"]) == 2
    assert script(tmp_path / "killed", 3, 7, **options) is None
    shutil.copytree(tmp_path / "killed", tmp_path / "without")
    assert_same(script(tmp_path / "killed", 3, **options), expected)

    def before_they_were_made(folder):
        arrays, notes = newest(folder)
        return {name: array for name, array in arrays.items() if not name.startswith("metric")}, notes

    newest = BackupFolder.newest
    with mock.patch.object(BackupFolder, "newest", before_they_were_made):
        values, logs, _, _ = script(tmp_path / "without", 3, **options)
    np.testing.assert_array_equal(values["weight 0"], expected[0]["weight 0"])
    assert logs["loss"] == expected[1]["loss"]


@long_traced
@pytest.mark.filterwarnings("ignore:The training in .* is finished")
def test_one_that_was_stopped_early_stays_stopped(tmp_path, script):
    stopping = [keras.callbacks.EarlyStopping(monitor="loss", patience=1, min_delta=100.0)]
    expected = script(tmp_path, callbacks=stopping)
    assert len(expected[2]) == 2 * STEPS
    assert_same(script(tmp_path, callbacks=stopping), expected)


@long_traced
@pytest.mark.optimized  # as the graphs of the process that is killed
def test_killed_while_it_evolves_mines_and_refreshes(tmp_path):
    rewire = tfxc.layers.UniformSparseHead.rewire

    def copy(source, target):
        with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
            shutil.copy2(source, target)

    def copied(*args):
        if not (tmp_path / "killed").exists():  # in the middle of the first evolution
            shutil.copytree(tmp_path / "whole", tmp_path / "killed", copy_function=copy)
        return rewire(*args)

    with mock.patch.object(tfxc.layers.UniformSparseHead, "rewire", copied):
        expected = kill_training.train(tmp_path / "whole")
    if IS_KERAS_3:  # what a process does that is killed does not depend on it
        _, done = kill_training.life(str(tmp_path / "killed"), 0.01, "mining", 0.01)
        assert not done
    assert kill_training.train(tmp_path / "killed") == expected


class Terminate(keras.callbacks.Callback):
    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.batch:
            os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def sigterm_calls(function):
    before = signal.signal(signal.SIGTERM, function)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def ended_by_sigterm():
    def end(number, frame):
        raise SystemExit(number)

    with sigterm_calls(end):
        with pytest.raises(SystemExit):
            yield
        assert signal.getsignal(signal.SIGTERM) is end


@pytest.mark.traced
def test_sigterm_makes_a_last_backup_and_then_has_its_effect(tmp_path, script, whole):
    with ended_by_sigterm():
        script(tmp_path, 1000, callbacks=[Terminate(6)])
    assert os.listdir(tmp_path) == ["step-000000000007.backup"]
    assert Position(*BackupFolder(tmp_path).newest()[1]["position"]) == (0, 7, False)
    assert_same(script(tmp_path, 1000), whole)


@long_traced
@pytest.mark.parametrize("does", ["stop", "note"])
def test_a_handler_that_returns_is_called_once_and_nothing_passes_for_finished(tmp_path, script, whole, does):
    terminate, calls = Terminate(6), []

    def end(number, frame):
        calls.append(number)
        if does == "stop":
            terminate.model.stop_training = True

    with sigterm_calls(end):
        done = script(tmp_path, 1000, callbacks=[terminate])
    assert len(calls) == (1 if does == "stop" else 3)  # one an epoch
    if does == "stop":
        assert Position(*BackupFolder(tmp_path).newest()[1]["position"]) == (0, 7, False)
        done = script(tmp_path, 1000)
    assert_same(done, whole)


@pytest.mark.long
def test_a_normalization_computes_by_what_was_restored(tmp_path):
    def losses(folder, adapted, epochs):
        keras.utils.set_random_seed(3)
        normalized = keras.layers.Normalization()
        if adapted:
            normalized.adapt(10 + 5 * X)
        encoder = keras.Sequential([keras.Input((DIM,)), normalized, keras.layers.Dense(DIM)])
        model = make_model(tfxc.samplers.Uniform(6), encoder=encoder)
        callbacks = [BackupAndRestore(folder)]
        return model.fit(X, Y, batch_size=10, epochs=epochs, callbacks=callbacks, verbose=0).history["loss"]

    losses(tmp_path / "killed", True, 2)
    assert losses(tmp_path / "killed", False, 3) == losses(tmp_path / "whole", True, 3)


@pytest.mark.long
def test_a_fit_that_fails_before_its_first_epoch_leaves_no_batch_out_of_the_next(tmp_path):
    model = made()
    assert run(tmp_path, 5, stop=7, model=model, batch_size=10) is None
    with pytest.raises(ValueError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(tmp_path, 5, model=model, batch_size=10, validation_data=(X, Y, Y, Y))
    assert model.first_batch == 0


@long_traced
@pytest.mark.both_keras
def test_sigterm_does_not_wait_for_the_end_of_an_epoch_of_unknown_length(tmp_path, script):
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(10).filter(lambda *_: True)
    options = {"x": data, "y": None, "batch_size": None, "epochs": 2}
    expected = script(tmp_path / "whole", 1000, **options)
    with ended_by_sigterm():
        script(tmp_path / "ended", 1000, callbacks=[Terminate(6)], **options)
    assert os.listdir(tmp_path / "ended") == ["step-000000000007.backup"]
    assert_same(script(tmp_path / "ended", 1000, **options), expected)
    with ended_by_sigterm():
        script(tmp_path / "last", 1000, callbacks=[Terminate(9)], **options)
    with pytest.warns(UserWarning, match="Epoch 1 was interrupted after its last batch: its val"):
        losses = script(tmp_path / "last", 1000, **options)[2]
    # Not to the bit: the step that finds no batch has drawn random numbers.
    assert [batch for batch, _ in losses] == [*range(10), *range(10)] and losses[:10] == expected[2][:10]


@long_traced
def test_a_damaged_backup_costs_the_steps_since_the_one_before(tmp_path, script, two_epochs, whole):
    shutil.copytree(two_epochs[1], tmp_path / "killed")
    newest = sorted((tmp_path / "killed").iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:1000])
    with pytest.warns(UserWarning, match=f"{newest.name} is cut short or damaged"):
        assert_same(script(tmp_path / "killed"), whole)


@long_traced
def test_of_a_large_table_it_writes_and_restores_the_rows_that_changed(tmp_path):
    head = tfxc.layers.DenseHead(20_000)
    again, options = Again(make_model(tfxc.samplers.Uniform(6, shared=True), head=head)), {"batch_size": 10}
    expected = again.run(tmp_path / "whole", 3, epochs=2, **options)
    assert again.run(tmp_path / "killed", 3, 15, epochs=2, **options) is None
    sizes = [path.stat().st_size for path in sorted((tmp_path / "killed").iterdir())]
    assert sizes[0] > 20_000 * DIM * 4 * 3 > 20 * sizes[-1]  # a table and its two slots, once
    assert_same(again.run(tmp_path / "killed", 3, epochs=2, **options), expected)


@pytest.mark.long
def test_a_slow_disk_holds_training_up_so_that_a_kill_costs_save_freq_steps(tmp_path, monkeypatch, script):
    """At any step the newest whole backup is at most so old, though none is whole before it is waited for."""
    write_arrays, wait = tfxc.resume.folder.write_arrays, BackupFolder.wait
    whole, ages, waited_for = [0], [], threading.Event()

    class Age(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            ages.append(batch - whole[-1])

    def slow(path, *args):
        waited_for.wait()
        write_arrays(path, *args)
        whole.append(int(path.stem.removeprefix("step-")))

    def note(folder):
        if folder.busy:
            waited_for.set()
        wait(folder)
        waited_for.clear()

    monkeypatch.setattr("tfxc.resume.folder.write_arrays", slow)
    monkeypatch.setattr(BackupFolder, "wait", note)
    script(tmp_path / "four", 4, epochs=1, callbacks=[Age()])
    assert whole == [0, 2, 5, 7, 10] and max(ages) == 3
    whole[:], ages[:] = [0], []
    script(tmp_path / "each", 1, epochs=1, callbacks=[Age()])
    assert ages == [0] * 10


@long_traced
def test_a_backup_that_cannot_be_written_is_told_and_training_goes_on(tmp_path, monkeypatch, script):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tfxc.resume.folder.write_arrays", full)
    with pytest.warns(UserWarning, match="A backup could not be written .*No space left.*none of this run"):
        assert len(script(tmp_path)[2]) == 3 * STEPS


def test_backups_of_another_model_are_refused(tmp_path, two_epochs):
    shutil.copytree(two_epochs[1], tmp_path, dirs_exist_ok=True)
    wider = make_model()
    with pytest.raises(ValueError, match=r"is of another model: as \w+ .*Delete it, or name another"):
        wider.fit(X, Y, callbacks=[BackupAndRestore(tmp_path)], verbose=0)
    with pytest.raises(ValueError, match=r"has the seeds \[7.*\], but its backup .* has \[.*set_random_seed"):
        run(tmp_path, batch_size=10, sampler=tfxc.samplers.Uniform(6, seed=7))


def test_what_it_needs(tmp_path):
    for save_freq in (0, 1.5, "step"):
        with pytest.raises(ValueError, match='save_freq must be "epoch" or a number of steps, which must be'):
            BackupAndRestore(tmp_path, save_freq)
    with pytest.raises(ValueError, match="only one .*, but these name the folders .*'one', 'two'"):
        make_model().fit(X, Y, callbacks=[BackupAndRestore("one"), BackupAndRestore("two")], verbose=0)
    plain = keras.Sequential([keras.Input((DIM,)), keras.layers.Dense(1)])
    plain.compile("sgd", loss="mse")
    with pytest.raises(ValueError, match="needs the fit of an ExtremeClassifier"):
        plain.fit(X, np.zeros(95), callbacks=[BackupAndRestore(tmp_path)], verbose=0)


@pytest.mark.long
def test_a_callable_as_learning_rate_goes_on(tmp_path):
    def script(folder, *args):
        keras.utils.set_random_seed(1)
        optimizer = tfxc.optimizers.LazyAdam(lambda: 0.05)
        model = make_model(tfxc.samplers.Uniform(6), optimizer=optimizer, run_eagerly=True)
        return run(folder, *args, x=X[:50], y=Y[:50], model=model, epochs=1, batch_size=10)

    check_goes_on(script, tmp_path, 3, 2)


@long_traced
def test_a_learning_rate_that_the_script_has_changed_is_told_of(tmp_path):
    def fit(rate, epochs):
        model = make_model(optimizer=keras.optimizers.SGD(rate))
        keras.utils.set_random_seed(0)
        model.fit(X, Y, epochs=epochs, callbacks=[BackupAndRestore(tmp_path)], verbose=0)
        return float(model.optimizer.learning_rate)

    with warnings.catch_warnings(action="error"):
        fit(0.5, 1)
        fit(0.5, 2)
    for epochs in (3, 4):
        with pytest.warns(UserWarning, match="the learning rate 0.001, but .* began with 0.5, and goes on"):
            assert fit(0.001, epochs) == 0.5


@pytest.mark.long
def test_what_the_script_has_changed_is_told_of_once(tmp_path):
    def fit(epochs, num_negatives=6):
        model = make_model(tfxc.samplers.Uniform(num_negatives, seed=3))
        keras.utils.set_random_seed(0)
        model.fit(X, Y, epochs=epochs, callbacks=[BackupAndRestore(tmp_path)], verbose=0)

    fit(1)
    with pytest.warns(UserWarning, match="the script says, with sampler num_negatives=9 in place of 6. For"):
        fit(2, 9)
    fit(3, 9)  # once told, it is what the training has


@long_traced
def test_an_end_before_the_epoch_of_the_interruption_is_refused(tmp_path, script):
    assert script(tmp_path, 3, 17) is None
    message = "interrupted after batch [4-6] of epoch 1, which .* epochs=1, .* Give epochs=2 or more"
    with pytest.raises(ValueError, match=message):
        script(tmp_path, epochs=1)
    assert len(script(tmp_path, epochs=2)[1]["loss"]) == 2


@long_traced
def test_what_callbacks_learnt_before_a_cell_ran_again_is_kept(tmp_path, script):
    class Best(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.lowest = None

        def on_epoch_end(self, epoch, logs=None):
            self.lowest = epoch if self.lowest is None else min(self.lowest, epoch)

    of_the_cell, of_a_new_process = Best(), Best()
    assert script(tmp_path, 3, 14, callbacks=[of_the_cell]) is None
    assert script(tmp_path, 3, 24, callbacks=[of_the_cell]) is None
    assert script(tmp_path, 3, callbacks=[of_a_new_process])
    assert of_a_new_process.lowest == 0


@long_traced
def test_another_number_of_batches_within_an_epoch_is_told(tmp_path, script):
    assert script(tmp_path / "within", 3, 17, epochs=2) is None
    message = "fit has 8 batches, but .* was interrupted after batch [4-6] of 10: in the rest of epoch 1 some"
    with pytest.warns(UserWarning, match=message):
        script(tmp_path / "within", 3, epochs=2, batch_size=12)
    with warnings.catch_warnings(action="error", category=UserWarning):
        assert script(tmp_path / "between", "epoch", 11, epochs=2) is None
        script(tmp_path / "between", "epoch", epochs=2, batch_size=12)


@pytest.mark.long
def test_of_larger_batches_an_epoch_may_have_none_left(tmp_path):
    assert run(tmp_path, 3, 17, batch_size=10, epochs=3) is None
    model = made()
    with pytest.warns(UserWarning, match="Epoch 2 was interrupted after its last batch"):
        model.fit(X, Y, batch_size=32, epochs=3, callbacks=[BackupAndRestore(tmp_path, 3)], verbose=0)
    assert model.history.epoch == [0, 2] and len(model.history.history["loss"]) == 2


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The training in .* is finished")
def test_a_backup_of_other_class_names_is_refused(tmp_path):
    names = [f"item {i}" for i in range(NUM_CLASSES)]

    def fit(model):
        return model.fit(X, Y, callbacks=[BackupAndRestore(tmp_path)], verbose=0)

    model = tfxc.ExtremeClassifier(dense_encoder(), tfxc.layers.DenseHead(NUM_CLASSES), class_names=names)
    model.compile("sgd", loss=tfxc.losses.SoftmaxCrossentropy(), run_eagerly=True)
    fit(model)
    steps = steps_of(model)
    fit(model)
    assert steps_of(model) == steps  # of its own, it goes on with what is done
    for others in (names[::-1], [*names, "new"]):
        model = tfxc.change_classes(model, others)
        with pytest.raises(ValueError, match="is of another model: it has other class names.*delete it"):
            fit(model)


def test_a_helper_that_was_forked_during_training_ends_on_sigterm(tmp_path, monkeypatch):
    """While backups are made the signal means something else in the parent, not in its children."""
    heard = []

    class Terminate(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            process = os.getpid()
            with monkeypatch.context() as patch:
                patch.setattr(os, "getpid", lambda: process + 1)  # as in a child
                signal.raise_signal(signal.SIGTERM)

    with sigterm_calls(lambda number, frame: heard.append(number)):
        callbacks = [Terminate(), tfxc.callbacks.BackupAndRestore(tmp_path)]
        make_model().fit(features(4), np.arange(4), callbacks=callbacks, verbose=0)
    assert heard == [signal.SIGTERM] and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("steps_of_writing", [0, 1, 3, 10, 40])
@pytest.mark.parametrize("save_freq", [1, 2, 7, 10])
def test_no_kill_costs_more(save_freq, steps_of_writing):
    schedule, begun, whole, oldest, num_backups = BackupSchedule(save_freq, 0), None, 0, 0, 0
    for now in range(1, 201):
        oldest = max(oldest, now - whole)  # what a kill at the end of this step costs
        if begun is not None and now - begun >= steps_of_writing:
            begun, whole = None, begun
        if begun is None:
            schedule.end(now, whole)
            if schedule.is_due(now):
                schedule.begin(now)
                begun, num_backups = now, num_backups + 1
        if begun is not None and schedule.has_to_wait(now):
            begun, whole = None, begun
    assert oldest <= save_freq
    usual = max(save_freq - 2 * max(steps_of_writing, 1), save_freq - save_freq // 2)
    assert num_backups <= 200 // usual + 2


def test_a_backup_that_failed_is_tried_again_later():
    schedule = BackupSchedule(10, 100)
    assert schedule.is_due(105)
    schedule.begin(105)
    schedule.end(106, whole=None)
    assert schedule.has_to_wait(110)
    assert not schedule.is_due(112) and schedule.is_due(113)
