import json
import os
import signal
import subprocess
import sys
import zlib

import numpy as np
import pandas
import pytest

from tfxc import atomic_write
from tfxc.data import Column, Vocabulary, from_frame, k_core, open_sequences, sequence_evaluation_dataset


@pytest.fixture
def folder(tmp_path):
    frame = pandas.DataFrame({"u": ["a", "b", "a"], "i": [1, 2, 3], "t": [3, 2, 1], "c": ["x", "x", None]})
    from_frame(frame, "u", "i", "t", columns=["c"], directory=tmp_path / "log")
    return tmp_path / "log"


def test_normal_forms_are_kept(tmp_path):
    frame = pandas.DataFrame({"u": ["a"], "i": ["tea "], "c": ["x "]})
    given = {"c": Column([0], Vocabulary(["x"], "NFKC"))}
    log = from_frame(frame, "u", "i", None, given, Vocabulary(["tea"], "NFC"), tmp_path / "log")
    assert log.vocabulary == Vocabulary(["tea"], "NFC") == k_core(log, 1, 1)[0].vocabulary
    assert log.columns["c"].vocabulary == Vocabulary(["x"], "NFKC")


def data_of(folder):
    return folder / next(name for name in os.listdir(folder) if name.startswith("tfxc-sequences-"))


def test_arrays_stay_on_disk(folder):
    log = open_sequences(folder)
    for array in (log.items, log.offsets, log.times, log.columns["c"].values):
        assert isinstance(array, np.memmap)
    assert log.user_ids == ["a", "b"] and log.vocabulary.names == ["1", "2", "3"]
    assert log[0].tolist() == [2, 0] and log.columns["c"].values.tolist() == [-1, 0, 0]
    kept = log.select(log.lengths > 1)
    ((inputs, labels),) = sequence_evaluation_dataset(kept, 2, 4)
    assert inputs["items"].numpy().tolist() == [[0, 3]] and labels.numpy().tolist() == [[-1, 0]]


@pytest.mark.parametrize("name", ["items.npy", "offsets.npy", "times.npy", "column0.npy", "users.arrow"])
def test_each_damaged_file_is_named(folder, name):
    path = data_of(folder) / name
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(ValueError, match=f"{name} has {len(content) - 1} bytes, expected {len(content)}"):
        open_sequences(folder)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ValueError, match=f"{name} is damaged: its checksum"):
        open_sequences(folder)
    path.unlink()
    with pytest.raises(ValueError, match=f"{name} is missing"):
        open_sequences(folder)


def test_a_damaged_index(folder):
    path = folder / "sequences.json"
    index = json.loads(path.read_text())
    for content in ("", "[]", "{}", path.read_text()[:-5], json.dumps({**index, "columns": []})):
        path.write_text(content)
        with pytest.raises(ValueError, match="sequences.json is damaged"):
            open_sequences(folder)


def test_no_folder_of_sequences(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "nothing", tmp_path / "file"):
        with pytest.raises(ValueError, match="is not a folder of sequences"):
            open_sequences(path)


@pytest.mark.parametrize("name", ["thesis.txt", "data-2024/part.parquet", "sequences.json"])
def test_files_of_others_are_left_alone(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text('{"genes": ["ACGT"]}')
    with pytest.raises(ValueError, match=f"holds other files than sequences, such as {name.split('/')[0]}"):
        from_frame(pandas.DataFrame({"u": [1], "i": [1]}), "u", "i", directory=tmp_path)
    assert path.read_text() == '{"genes": ["ACGT"]}' and len(os.listdir(tmp_path)) == 1


def test_a_damaged_folder_is_written_anew(folder):
    (folder / "sequences.json").write_text("")
    from_frame(pandas.DataFrame({"u": ["z"], "i": [1]}), "u", "i", directory=folder)
    assert open_sequences(folder).user_ids == ["z"] and len(os.listdir(folder)) == 2


def test_interrupted_behind_the_exchange_it_is_the_new_version(folder, monkeypatch):
    def interrupt(path):
        if path == os.fspath(folder):
            raise KeyboardInterrupt

    monkeypatch.setattr(atomic_write, "sync_entry", interrupt)
    with pytest.raises(KeyboardInterrupt):
        from_frame(pandas.DataFrame({"u": ["z"], "i": [1]}), "u", "i", directory=folder)
    assert open_sequences(folder).user_ids == ["z"]


def test_the_version_that_the_index_names_is_replaced_whatever_its_name(folder):
    index = json.loads((folder / "sequences.json").read_text())
    os.rename(data_of(folder), folder / "data-abc")
    index["data"] = "data-abc"
    del index["checksum"]
    index["checksum"] = zlib.crc32(json.dumps(index).encode())
    (folder / "sequences.json").write_text(json.dumps(index))
    assert open_sequences(folder).user_ids == ["a", "b"]
    from_frame(pandas.DataFrame({"u": [1], "i": [1]}), "u", "i", directory=folder)
    assert open_sequences(folder).user_ids == ["1"] and len(os.listdir(folder)) == 2


def test_a_name_of_a_column_that_cannot_be_leaves_the_old_whole(folder):
    frame = pandas.DataFrame({"u": [1], "i": [1], "items": [2]})
    with pytest.raises(ValueError, match="must not be called 'items'"):
        from_frame(frame, "u", "i", columns=["items"], directory=folder)
    assert open_sequences(folder).user_ids == ["a", "b"]


KILLED = """
import os, signal, sys
import pyarrow
from tfxc.data import from_frame

def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

sys.modules["tfxc.data.table_sequences"].write_index = die
from_frame(pyarrow.table({"u": [1, 2], "i": [1, 2]}), "u", "i", directory=sys.argv[1])
"""


@pytest.mark.long
def test_a_killed_write_leaves_the_old_whole(tmp_path):
    from_frame(pandas.DataFrame({"u": [*"ab"], "i": [1, 2]}), "u", "i", directory=tmp_path)
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(os.listdir(tmp_path)) == 3  # the index, the old and the torso
    assert open_sequences(tmp_path).user_ids == ["a", "b"]
    from_frame(pandas.DataFrame({"u": [1], "i": [1]}), "u", "i", directory=tmp_path)
    assert open_sequences(tmp_path).user_ids == ["1"] and len(os.listdir(tmp_path)) == 2
