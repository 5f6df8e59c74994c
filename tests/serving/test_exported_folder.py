import os
import shutil

import pytest

from tfxc import atomic_write
from tfxc.serving import exported_folder as module
from tfxc.serving.exported_folder import exported_folder


def write(path, content="new"):
    with exported_folder(path) as folder:
        os.makedirs(folder)
        with open(os.path.join(folder, "saved_model.pb"), "w", encoding="utf-8") as file:
            file.write(content)


def content(path):
    return (path / "saved_model.pb").read_text()


@pytest.fixture(params=[True, False], ids=["exchange", "renames"])
def exchanges(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(atomic_write, "_exchange", lambda one, other: False)
    return request.param


def test_it_takes_the_place_of_another(tmp_path, exchanges):
    for text in ("first", "second"):
        write(tmp_path / "1", text)
        assert content(tmp_path / "1") == text and os.listdir(tmp_path) == ["1"]


def test_what_was_added_to_one_is_kept(tmp_path, exchanges):
    write(tmp_path / "1", "old")
    extra = tmp_path / "1" / "assets.extra"
    (extra / "more").mkdir(parents=True)
    for name in ("tf_serving_warmup_requests", "class_names.json", "more/notes"):
        (extra / name).write_text("mine")
    write(tmp_path / "1", "new")
    assert content(tmp_path / "1") == "new"
    assert sorted(os.listdir(extra)) == ["more", "tf_serving_warmup_requests"]
    assert [(extra / name).read_text() for name in ("more/notes", "tf_serving_warmup_requests")] == [
        "mine"
    ] * 2


def test_one_that_fails_leaves_the_old_one(tmp_path, exchanges):
    write(tmp_path / "1", "old")
    with pytest.raises(KeyboardInterrupt), exported_folder(tmp_path / "1") as folder:
        os.makedirs(folder)
        raise KeyboardInterrupt
    assert content(tmp_path / "1") == "old" and os.listdir(tmp_path) == ["1"]


def test_one_that_is_killed_between_two_renames_leaves_the_old_one(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic_write, "_exchange", lambda one, other: False)
    path, killed, rename = tmp_path / "served" / "1", tmp_path / "killed" / "1", os.rename
    path.parent.mkdir()
    write(path, "old")

    def fail(one, other):
        if other == str(path) and not killed.parent.exists():  # the old one is aside, the new one not there
            shutil.copytree(path.parent, killed.parent)
            raise OSError("a disk that fails")
        rename(one, other)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="a disk that fails"):
        write(path)
    assert content(path) == "old" and os.listdir(path.parent) == ["1"]
    assert sorted(os.listdir(killed.parent)) == ["1.writing", "replaced-1"]
    with pytest.raises(ZeroDivisionError), exported_folder(killed):
        assert content(killed) == "old"  # in its place again before anything is written
        raise ZeroDivisionError
    assert content(killed) == "old" and os.listdir(killed.parent) == ["1"]


def test_two_at_once_do_not_mix_their_files(tmp_path):
    with exported_folder(tmp_path / "1") as folder:
        os.makedirs(folder)
        with pytest.raises(ValueError, match=r"Another export writes in .*1\.writing at this moment"):
            write(tmp_path / "1", "second")
        write(tmp_path / "2", "beside it")
        (tmp_path / "1.writing" / os.path.basename(folder) / "saved_model.pb").write_text("first")
    assert content(tmp_path / "1") == "first" and content(tmp_path / "2") == "beside it"
    write(tmp_path / "1", "third")
    assert content(tmp_path / "1") == "third" and sorted(os.listdir(tmp_path)) == ["1", "2"]


def test_a_file_system_without_locks_is_written_to(tmp_path, monkeypatch):
    def fail(handle, operation):
        raise OSError("no locks available")

    monkeypatch.setattr(module.fcntl, "flock", fail)
    write(tmp_path / "1")
    assert content(tmp_path / "1") == "new" and os.listdir(tmp_path) == ["1"]


def test_a_link_stays_and_the_folder_that_it_names_is_written(tmp_path):
    write(tmp_path / "v1", "old")
    (tmp_path / "current").symlink_to(tmp_path / "v1")
    write(tmp_path / "current")
    assert sorted(os.listdir(tmp_path)) == ["current", "v1"] and (tmp_path / "current").is_symlink()
    assert content(tmp_path / "v1") == "new"


def test_a_file_and_a_folder_of_other_things_are_left_alone(tmp_path):
    (tmp_path / "project" / "1").mkdir(parents=True)
    file = tmp_path / "project" / "train.py"
    file.write_text("kept")
    with pytest.raises(ValueError, match="is a file"):
        write(file)
    with pytest.raises(ValueError, match=r"holds '1' and more: name a new folder, such as .*project.1\.$"):
        write(tmp_path / "project")
    assert file.read_text() == "kept"
    write(tmp_path / "project" / "1")  # an empty folder may be there
    assert content(tmp_path / "project" / "1") == "new"


@pytest.mark.parametrize("name", ["1", "README.md"])
def test_other_things_beside_an_earlier_export_are_left_alone(tmp_path, name):
    write(tmp_path / "served", "old")
    for part in ("variables", "assets", "assets.extra", "fingerprint.pb"):
        (tmp_path / "served" / part).mkdir()
    write(tmp_path / "served", "newer")
    (tmp_path / "served" / name).mkdir()
    with pytest.raises(ValueError, match=f"holds '{name}': name a new folder"):
        write(tmp_path / "served")
    assert content(tmp_path / "served") == "newer" and (tmp_path / "served" / name).exists()
    shutil.rmtree(tmp_path / "served")
    (tmp_path / "served" / "variables").mkdir(parents=True)
    with pytest.raises(ValueError, match="holds 'variables': name a new folder"):
        write(tmp_path / "served")


@pytest.mark.parametrize("name", ["1.writing", "1.old"])
def test_a_folder_of_another_beside_it_is_left_alone(tmp_path, exchanges, name):
    write(tmp_path / "1", "old")
    (tmp_path / name).mkdir()
    (tmp_path / name / "saved_model.pb").write_text("kept")
    if name == "1.writing":
        with pytest.raises(ValueError, match=r"1\.writing .*holds 'saved_model\.pb'.* move it"):
            write(tmp_path / "1")
    else:
        write(tmp_path / "1")
    assert sorted(os.listdir(tmp_path)) == ["1", name] and content(tmp_path / name) == "kept"
    assert content(tmp_path / "1") == ("old" if name == "1.writing" else "new")
