import os
from pathlib import Path

import pytest

from tfxc import atomic_write as module
from tfxc.atomic_write import atomic_write, put_in_place, recover


def test_what_is_written_aside_has_the_suffix_and_is_removed_on_an_error(tmp_path):
    path = tmp_path / "model.weights.h5"
    path.write_text("old")
    with pytest.raises(KeyError), atomic_write(path) as aside:
        assert aside.endswith(".weights.h5") and os.path.dirname(aside) == str(tmp_path)
        Path(aside).write_text("new")
        raise KeyError
    assert path.read_text() == "old" and os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("earlier", ["old", None])
def test_a_link_stays_and_the_file_that_it_names_is_written(tmp_path, earlier):
    target, link = tmp_path / "disk" / "model-7", tmp_path / "latest.keras"
    target.parent.mkdir()
    if earlier is not None:
        target.write_text(earlier)
    link.symlink_to("disk/model-7")
    with atomic_write(link) as aside:
        # Beside what it replaces, as a rename needs; the suffix is that of the path that was given.
        assert aside == str(tmp_path / "disk" / "writing-latest.keras")
        Path(aside).write_text("new")
    assert link.is_symlink() and target.read_text() == "new" and os.listdir(target.parent) == ["model-7"]


def test_a_file_keeps_its_mode(tmp_path):
    path = tmp_path / "model.keras"
    for mode in (0o600, 0o664, 0o444):
        path.touch()
        path.chmod(mode)
        with atomic_write(path) as aside:
            Path(aside).write_text("new")
        assert path.stat().st_mode & 0o777 == mode


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_folder_takes_the_place_of_an_earlier_one(tmp_path, monkeypatch, can_exchange):
    if not can_exchange:
        monkeypatch.setattr(module, "_exchange", lambda one, other: False)
    path = tmp_path / "served"
    for content in ("old", "new"):
        with atomic_write(path) as aside:
            Path(aside, "inside").mkdir(parents=True)
            Path(aside, "inside", content).write_text(content)
    assert os.listdir(path / "inside") == ["new"] and os.listdir(tmp_path) == ["served"]


def test_a_name_alone_is_one_of_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("aside")
    put_in_place("aside", "served")
    assert os.listdir() == ["served"]


def test_a_folder_that_a_kill_left_between_two_renames_comes_back(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_exchange", lambda one, other: False)
    path, rename = tmp_path / "served", os.rename
    (path / "old").mkdir(parents=True)

    def killed(source, target):
        if os.path.basename(source).startswith("writing-"):
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", killed)
    with pytest.raises(KeyboardInterrupt), atomic_write(path) as aside:
        os.mkdir(aside)
    assert not path.exists()
    monkeypatch.setattr(os, "rename", rename)
    recover(path)
    assert os.listdir(path) == ["old"] and os.listdir(tmp_path) == ["served"]


def test_a_file_does_not_take_the_place_of_a_folder(tmp_path):
    (tmp_path / "folder" / "inside").mkdir(parents=True)
    with pytest.raises(IsADirectoryError), atomic_write(tmp_path / "folder") as aside, open(aside, "w"):
        pass
    assert os.listdir(tmp_path) == ["folder"] and os.listdir(tmp_path / "folder") == ["inside"]
