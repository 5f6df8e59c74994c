import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
from full_disk import full_disk

from tfxc.checked_file import DamagedFile
from tfxc.resume.folder import BackupFolder


def with_steps(path, *steps):
    folder = BackupFolder(path)
    for step in steps:
        folder.write(step, {"values": np.full(100, step)}, {"step": step})
    folder.wait()
    return folder


def cut(path):
    path.write_bytes(path.read_bytes()[:-40])


def test_the_last_two_are_kept(tmp_path):
    folder = with_steps(tmp_path / "made" / "here", 5, 10, 15)
    assert sorted(os.listdir(folder.path)) == ["step-000000000010.backup", "step-000000000015.backup"]
    assert folder.last_step == 15 and not folder.busy
    assert BackupFolder(tmp_path / "empty").newest() is None


def test_a_damaged_one_is_named_and_the_one_before_is_used(tmp_path):
    cut(with_steps(tmp_path, 5, 10).path / "step-000000000010.backup")
    folder = BackupFolder(tmp_path)
    with pytest.warns(UserWarning, match="step-000000000010.backup is cut short.*The backup before it is"):
        arrays, notes = folder.newest()
    assert notes == {"step": 5} and (arrays["values"] == 5).all()
    with_steps(tmp_path, 7)  # it is newer than all that are whole
    assert BackupFolder(tmp_path).newest()[1] == {"step": 7}


def write_changes(folder, first, last):
    for step in range(first, last + 1):
        table = np.zeros([20_000, 4], np.float32)
        table[: step + 1] = 1
        folder.write(step, {"table": tf.constant(table)}, {"step": step})
    folder.wait()
    assert folder.take_error() is None


def steps_in(path):
    return [int(name[5:17]) for name in sorted(os.listdir(path))]


def assert_newest(path, step):
    arrays, notes = BackupFolder(path).newest()
    assert notes == {"step": step} and arrays["table"].sum() == 4 * (step + 1)


def test_of_a_large_table_the_changed_rows_are_written(tmp_path):
    folder = BackupFolder(tmp_path)
    write_changes(folder, 1, 5)
    assert steps_in(tmp_path) == [1, 4, 5]
    whole, change = (os.path.getsize(folder.path / f"step-{step:012d}.backup") for step in (1, 5))
    assert whole > 320_000 and change < 2000
    assert_newest(tmp_path, 5)
    write_changes(folder, 6, 14)  # after ten changes, 12 is whole
    assert steps_in(tmp_path) == [1, 12, 13, 14]
    write_changes(folder, 15, 24)  # and so is 23
    assert steps_in(tmp_path) == [12, 23, 24]
    assert_newest(tmp_path, 24)


def test_what_changes_are_told_from_stays_until_it_is_not_needed(tmp_path):
    write_changes(BackupFolder(tmp_path), 1, 4)
    resumed = BackupFolder(tmp_path)
    assert resumed.newest()[1] == {"step": 4}
    write_changes(resumed, 5, 5)
    assert steps_in(tmp_path) == [1, 4, 5]
    cut(tmp_path / "step-000000000005.backup")
    with pytest.warns(UserWarning, match="step-000000000005.backup is cut short"):
        assert_newest(tmp_path, 4)


def test_where_what_changes_are_told_from_is_damaged_the_whole_one_before_is_used(tmp_path):
    write_changes(BackupFolder(tmp_path), 1, 14)
    cut(tmp_path / "step-000000000012.backup")
    with pytest.warns(UserWarning, match="step-000000000012.backup is cut short"):
        assert_newest(tmp_path, 1)


def test_where_what_changes_are_told_from_is_gone_a_whole_one_is_written(tmp_path):
    folder = BackupFolder(tmp_path)
    write_changes(folder, 1, 3)
    (tmp_path / "step-000000000001.backup").unlink()
    with (
        pytest.warns(UserWarning, match="since step-000000000001.backup, which is gone"),
        pytest.raises(DamagedFile, match="No backup"),
    ):
        BackupFolder(tmp_path).newest()
    write_changes(folder, 4, 5)
    assert_newest(tmp_path, 5)


def test_changes_are_not_put_onto_the_base_of_another_training(tmp_path):
    own, other = tmp_path / "own", tmp_path / "other"
    write_changes(BackupFolder(own), 1, 3)
    folder = BackupFolder(other)
    folder.write(1, {"table": tf.fill([20_000, 4], 7.0)}, {"step": 1})
    folder.wait()
    base = "step-000000000001.backup"
    shutil.copy(other / base, own / base)
    with pytest.warns(UserWarning, match=f"since {base}, but .* of that name is another"):
        arrays, notes = BackupFolder(own).newest()
    assert notes == {"step": 1} and (arrays["table"] == 7).all()
    assert sorted(path.suffix for path in own.iterdir()) == [".backup", ".damaged", ".damaged"]


def test_where_none_is_whole_nothing_starts_anew_by_itself(tmp_path):
    for path in with_steps(tmp_path, 5, 10).path.iterdir():
        cut(path)
    message = "No backup in .* is whole: step-000000000010.*start anew, delete them"
    with pytest.warns(UserWarning, match="cut short"), pytest.raises(DamagedFile, match=message):
        BackupFolder(tmp_path).newest()
    assert len(os.listdir(tmp_path)) == 2


def test_what_a_killed_process_left_is_removed(tmp_path):
    (tmp_path / "writing-step-000000000001.backup").write_text("half")
    (tmp_path / "writing-notes.txt").write_text("of the user")
    BackupFolder(tmp_path)
    assert os.listdir(tmp_path) == ["writing-notes.txt"]


def test_a_full_disk_is_told_and_the_last_one_stays(tmp_path):
    folder = with_steps(tmp_path, 5)
    with full_disk(100_000):
        folder.write(10, {"values": np.zeros(100_000)}, {})
        folder.wait()
    assert "File too large" in str(folder.take_error()) and folder.take_error() is None
    assert folder.last_step == 5 and os.listdir(tmp_path) == ["step-000000000005.backup"]


def test_a_folder_that_cannot_be_written_is_an_error_at_once(tmp_path, monkeypatch):
    with pytest.raises(OSError, match="exists"):
        (tmp_path / "file").write_text("")
        BackupFolder(tmp_path / "file")
    monkeypatch.setattr(os, "access", lambda *args: False)  # root may write anywhere
    with pytest.raises(PermissionError, match="cannot be written to .*name a folder"):
        BackupFolder(tmp_path)


def test_the_base_of_an_earlier_backup_stays_where_one_step_has_two(tmp_path):
    folder, table = BackupFolder(tmp_path), np.zeros([20_000, 4], np.float32)
    for step in (1, 2, 3, 3):
        table[:] += step == 3  # all of it, which is a new base
        table[step] += 1
        folder.write(step, {"table": tf.constant(table)}, {"step": step})
        folder.wait()
    cut(sorted(tmp_path.iterdir())[-1])
    with pytest.warns(UserWarning, match="is cut short or damaged"):
        assert BackupFolder(tmp_path).newest()[1] == {"step": 2}


def test_a_base_whose_place_is_taken_is_followed_by_a_whole_one(tmp_path):
    """Several batches make one step of an optimizer that accumulates gradients."""
    folder, table = BackupFolder(tmp_path), np.zeros([20_000, 4], np.float32)
    for batch in range(3):
        table[batch] = 1
        folder.write(5, {"table": tf.constant(table)}, {"batch": batch})
    folder.wait()
    arrays, notes = BackupFolder(tmp_path).newest()
    assert steps_in(tmp_path) == [5] and notes == {"batch": 2}
    np.testing.assert_array_equal(arrays["table"], table)
