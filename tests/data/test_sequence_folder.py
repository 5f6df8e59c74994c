import os
import signal
import subprocess
import sys

import numpy as np
import pandas
import pytest
from refusal_checks import refused

from tfxc.checked_file import write_arrays
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


def test_columns_may_be_called_like_users_and_items(tmp_path):
    frame = pandas.DataFrame({"u": ["a"], "i": ["tea"], "user": ["x"], "item": ["y"], "column item": ["z"]})
    log = from_frame(frame, "u", "i", columns=["user", "item", "column item"], directory=tmp_path / "log")
    found = [log.user_ids, log.vocabulary.names, *(own.vocabulary.names for own in log.columns.values())]
    assert found == [["a"], ["tea"], ["x"], ["y"], ["z"]]


def test_arrays_stay_on_disk(folder):
    log = open_sequences(folder)
    for array in (log.items, log.offsets, log.times, log.columns["c"].values):
        assert isinstance(array, np.memmap)
    assert log.user_ids == ["a", "b"] and log.vocabulary.names == ["1", "2", "3"]
    assert log[0].tolist() == [2, 0] and log.columns["c"].values.tolist() == [-1, 0, 0]
    kept = log.select(log.lengths > 1)
    ((inputs, labels),) = sequence_evaluation_dataset(kept, 2, 4)
    assert inputs["items"].numpy().tolist() == [[0, 3]] and labels.numpy().tolist() == [[-1, 0]]


def test_a_damaged_file_is_named_and_written_anew(folder):
    path = folder / "sequences.tfxc"
    content = path.read_bytes()
    for damaged in (content[:-1], b"", bytes([content[0] ^ 1]) + content[1:]):
        path.write_bytes(damaged)
        refused(r"sequences.tfxc is .*damaged.*\. Write the folder again", open_sequences, folder)
    write_arrays(path, {}, {"weights": 1})
    refused("holds {'weights': 1}, expected 'tfxc-sequences 2': write", open_sequences, folder)
    from_frame(pandas.DataFrame({"u": ["z"], "i": [1]}), "u", "i", directory=folder)
    assert open_sequences(folder).user_ids == ["z"] and os.listdir(folder) == ["sequences.tfxc"]


def test_no_folder_of_sequences(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "nothing", tmp_path / "file"):
        refused("is not a folder of sequences", open_sequences, path)


def test_a_name_of_a_column_that_cannot_be_leaves_the_old_whole(folder):
    frame = pandas.DataFrame({"u": [1], "i": [1], "items": [2]})
    refused("must not be called 'items'", from_frame, frame, "u", "i", columns=["items"], directory=folder)
    assert open_sequences(folder).user_ids == ["a", "b"]


KILLED = """
import os, signal, sys
import pyarrow
from tfxc.data import from_frame

def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

sys.modules["tfxc.data.interaction_table"].write_sequences = die
from_frame(pyarrow.table({"u": [1, 2], "i": [1, 2]}), "u", "i", directory=sys.argv[1])
"""


@pytest.mark.long
def test_a_killed_write_leaves_the_old_whole(folder):
    killed = subprocess.run([sys.executable, "-c", KILLED, folder], check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(os.listdir(folder)) == 2 and open_sequences(folder).user_ids == ["a", "b"]
    from_frame(pandas.DataFrame({"u": [1], "i": [1]}), "u", "i", directory=folder)
    assert open_sequences(folder).user_ids == ["1"] and os.listdir(folder) == ["sequences.tfxc"]
