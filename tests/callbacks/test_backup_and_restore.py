"""Interrupted anywhere and run again, a training ends as if it had not been."""

import functools
import os
import signal
import threading

import kill_training
import numpy as np
import pytest
from backup_checks import STEPS, Stop, X, Y, assert_same, run
from classifier_checks import DIM, NUM_CLASSES, make_model

import tfxc
from tfxc._keras import keras, variables_of_training
from tfxc.backup.folder import BackupFolder
from tfxc.callbacks import BackupAndRestore, SamplerRefresh
from tfxc.callbacks.backup_and_restore import Position


def schedules():
    return [
        SamplerRefresh(4, growth=1.3),
        keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=1, min_delta=1.0),
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=9, restore_best_weights=True),
    ]


def test_interrupted_anywhere_it_ends_as_it_would_have(tmp_path):
    def script(folder, *args):
        options = {"batch_size": 10, "validation_data": (X[:20], Y[:20])}
        return run(
            folder,
            *args,
            sampler=tfxc.samplers.MIDX(6, num_codewords=3, seed=2),
            callbacks=schedules(),
            **options,
        )

    expected = script(tmp_path / "whole")
    assert len(expected[2]) == 3 * STEPS and expected[1]["val_loss"]
    for save_freq, stops in [(4, (7, 12)), ("epoch", (13,)), (STEPS, (21,))]:
        folder = tmp_path / str(save_freq)
        for stop in stops:  # one after the other: stopped twice, and more
            assert script(folder, save_freq, stop) is None
        assert_same(script(folder, save_freq), expected)


def test_a_bfloat16_table_goes_on_to_the_bit(tmp_path):
    head = functools.partial(tfxc.layers.DenseHead, NUM_CLASSES, table_dtype="bfloat16")
    options = {"batch_size": 10, "epochs": 2, "make_head": head}
    expected = run(tmp_path / "whole", **options)
    assert run(tmp_path / "killed", 4, 13, **options) is None
    assert_same(run(tmp_path / "killed", 4, **options), expected)


def test_the_best_weights_of_a_bfloat16_table_are_kept(tmp_path):
    def script(folder, *stop):
        head = functools.partial(tfxc.layers.DenseHead, NUM_CLASSES, table_dtype="bfloat16")
        stopping = keras.callbacks.EarlyStopping("loss", patience=1, min_delta=99, restore_best_weights=True)
        return run(folder, "epoch", *stop, batch_size=10, make_head=head, callbacks=[stopping])

    assert script(tmp_path / "killed", 13) is None
    assert_same(script(tmp_path / "killed"), script(tmp_path / "whole"))


def test_what_a_callback_is_told_counts_and_a_log_goes_on(tmp_path):
    def script(name, *stop):
        log = keras.callbacks.CSVLogger(str(tmp_path / "log.csv"), append=True)
        callbacks = [keras.callbacks.ModelCheckpoint(str(tmp_path / f"{name}.keras")), log]
        return run(tmp_path / "backups", "epoch", *stop, batch_size=10, callbacks=callbacks)

    assert script("one", 13) is None and (tmp_path / "one.keras").exists()
    (tmp_path / "one.keras").unlink()
    assert script("other") and sorted(path.name for path in tmp_path.glob("*.keras")) == ["other.keras"]
    lines = (tmp_path / "log.csv").read_text().split()
    assert [line.split(",")[0] for line in lines] == ["epoch", "0", "1", "2"]


def test_a_finished_training_is_restored_and_more_epochs_are_added(tmp_path):
    expected = run(tmp_path, batch_size=10)
    assert_same(run(tmp_path, batch_size=10), expected)
    longer = run(tmp_path, batch_size=10, epochs=4)
    assert_same(longer, run(tmp_path / "whole", batch_size=10, epochs=4))


def test_one_that_was_stopped_early_stays_stopped(tmp_path):
    stopping = [keras.callbacks.EarlyStopping(monitor="loss", patience=1, min_delta=100.0)]
    expected = run(tmp_path, batch_size=10, callbacks=stopping)
    assert len(expected[2]) == 2 * STEPS
    assert_same(run(tmp_path, batch_size=10, callbacks=stopping), expected)


def test_killed_while_it_evolves_mines_and_refreshes(tmp_path):
    expected = kill_training.train(tmp_path / "whole")
    for stage, seconds in (("evolution", 0.0), ("mining", 0.01)):
        _, done = kill_training.life(str(tmp_path / "killed"), 0.01, stage, seconds)
        assert not done
    assert kill_training.train(tmp_path / "killed") == expected


def test_sigterm_makes_a_last_backup_and_then_has_its_effect(tmp_path):
    class Terminate(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 6:
                os.kill(os.getpid(), signal.SIGTERM)

    def end(number, frame):
        raise SystemExit(number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(SystemExit):
            run(tmp_path, 1000, callbacks=[Terminate()], batch_size=10)
        assert signal.getsignal(signal.SIGTERM) is end
    finally:
        signal.signal(signal.SIGTERM, before)
    assert os.listdir(tmp_path) == ["step-000000000007.backup"]
    assert Position(*BackupFolder(tmp_path).newest()[1]["position"]) == (0, 7, False)
    assert_same(run(tmp_path, 1000, batch_size=10), run(tmp_path / "whole", 1000, batch_size=10))


def test_a_damaged_backup_costs_the_steps_since_the_one_before(tmp_path):
    expected = run(tmp_path / "whole", batch_size=10)
    run(tmp_path / "killed", epochs=2, batch_size=10)
    newest = sorted((tmp_path / "killed").iterdir())[-1]
    newest.write_bytes(newest.read_bytes()[:1000])
    with pytest.warns(UserWarning, match=f"{newest.name} is cut short or damaged"):
        assert_same(run(tmp_path / "killed", batch_size=10), expected)


def test_of_a_large_table_it_writes_and_restores_the_rows_that_changed(tmp_path):
    def script(folder, stop=None):
        keras.utils.set_random_seed(1)
        head = tfxc.layers.DenseHead(20_000)
        model = make_model(tfxc.samplers.Uniform(6, shared=True), head=head)
        callbacks = [BackupAndRestore(folder, save_freq=3), *([] if stop is None else [Stop(stop)])]
        model.fit(X, Y, batch_size=10, epochs=2, verbose=0, callbacks=callbacks)
        return [variable.numpy() for variable in variables_of_training(model).values()]

    expected = script(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        script(tmp_path / "killed", stop=15)
    sizes = [path.stat().st_size for path in sorted((tmp_path / "killed").iterdir())]
    assert sizes[0] > 20_000 * DIM * 4 * 3 > 20 * sizes[-1]  # a table and its two slots, once
    for variable, value in zip(script(tmp_path / "killed"), expected, strict=True):
        np.testing.assert_array_equal(variable, value)


def test_a_slow_disk_holds_training_up_so_that_a_kill_costs_save_freq_steps(tmp_path, monkeypatch):
    """At any step the newest whole backup is at most so old, though none is whole before it is waited for."""
    write_arrays, wait = tfxc.backup.folder.write_arrays, BackupFolder.wait
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

    monkeypatch.setattr("tfxc.backup.folder.write_arrays", slow)
    monkeypatch.setattr(BackupFolder, "wait", note)
    run(tmp_path, 4, epochs=1, batch_size=10, callbacks=[Age()])
    assert whole == [0, 2, 5, 7, 10] and max(ages) == 3
    whole[:], ages[:] = [0], []
    run(tmp_path / "each", 1, epochs=1, batch_size=10, callbacks=[Age()])
    assert ages == [0] * 10


def test_a_backup_that_cannot_be_written_is_told_and_training_goes_on(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tfxc.backup.folder.write_arrays", full)
    with pytest.warns(UserWarning, match="A backup could not be written .*No space left.*none of this run"):
        assert len(run(tmp_path, batch_size=10)[2]) == 3 * STEPS


def test_backups_of_another_model_are_refused(tmp_path):
    run(tmp_path, batch_size=10)
    wider = make_model()
    with pytest.raises(ValueError, match=r"is of another model: as \w+ .*Delete it, or name another"):
        wider.fit(X, Y, callbacks=[BackupAndRestore(tmp_path)], verbose=0)
    with pytest.raises(ValueError, match=r"has the seeds \[7.*its backup .*set_random_seed"):
        run(tmp_path, batch_size=10, sampler=tfxc.samplers.Uniform(6, seed=7))


def test_what_it_needs(tmp_path):
    for save_freq in (0, 1.5, "step"):
        with pytest.raises(ValueError, match='save_freq must be "epoch" or a positive number of steps'):
            BackupAndRestore(tmp_path, save_freq)
    plain = keras.Sequential([keras.Input((DIM,)), keras.layers.Dense(1)])
    plain.compile("sgd", loss="mse")
    with pytest.raises(ValueError, match="needs the fit of an ExtremeClassifier"):
        plain.fit(X, np.zeros(95), callbacks=[BackupAndRestore(tmp_path)], verbose=0)
