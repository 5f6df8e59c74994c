import os
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from full_disk import full_disk
from test_damaged_files import damaged

from tfxc.checked_file import DamagedFile, map_arrays, read_arrays, write_arrays

ARRAYS = {
    "empty": np.zeros([0, 3], np.float32),
    "one": np.array(7, np.int64),
    "table": np.random.default_rng(0).normal(size=(50, 7)).astype(np.float32),
    "flags": np.arange(9) % 2 == 0,
}
NOTES = {"epoch": 3, "best": float("inf"), "names": ["a", "é"]}


def written(folder):
    path = folder / "values"
    write_arrays(path, ARRAYS, NOTES)
    return path


def test_what_is_written_is_read(tmp_path):
    arrays, notes = read_arrays(written(tmp_path))
    assert notes == NOTES and arrays.keys() == ARRAYS.keys() and os.listdir(tmp_path) == ["values"]
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype and arrays[name].shape == array.shape
        np.testing.assert_array_equal(arrays[name], array)


def test_tensors_of_every_type(tmp_path):
    dtypes = "float32", "float64", "int8", "uint64", "bool", "bfloat16"
    tensors = {dtype: tf.cast(tf.reshape(tf.range(6), [2, 3]) % 2, dtype) for dtype in dtypes}
    write_arrays(tmp_path / "values", tensors, {})
    for dtype, found in read_arrays(tmp_path / "values")[0].items():
        assert tf.as_dtype(found.dtype) == dtype
        np.testing.assert_array_equal(found, tensors[dtype].numpy())


@pytest.mark.parametrize("num_bytes", [1, 4096, 4097, 3 << 22, (3 << 22) + 1])
def test_whole_pages_and_the_rest(tmp_path, num_bytes):
    values = np.random.default_rng(0).integers(256, size=num_bytes, dtype=np.uint8)
    arrays = {"before": np.arange(3), "values": values, "after": np.arange(5)}
    write_arrays(tmp_path / "values", arrays, {})
    for name, found in read_arrays(tmp_path / "values")[0].items():
        np.testing.assert_array_equal(found, arrays[name])


def test_where_no_file_system_writes_past_its_cache(tmp_path, monkeypatch):
    values = np.full(1 << 20, 7, np.float32)
    monkeypatch.setattr("os.pwrite", mock.Mock(side_effect=OSError(22, "Invalid argument")))
    write_arrays(tmp_path / "values", {"values": values}, {})
    assert (read_arrays(tmp_path / "values")[0]["values"] == 7).all()


@pytest.mark.parametrize("missing", [slice(0, 8), slice(0, 4096), slice(100, 1100)])
def test_bytes_that_are_missing_before_the_end_are_noticed(tmp_path, missing):
    path = written(tmp_path)
    content = bytearray(path.read_bytes())
    del content[missing]
    path.write_bytes(content)
    for read in (read_arrays, map_arrays):
        with pytest.raises(DamagedFile, match=f"{path} is"):
            read(path)


def test_another_order_of_bytes(tmp_path):
    values = np.array([[1.0, 2.0], [3.0, -4.5]], ">f4")
    write_arrays(tmp_path / "values", {"values": values}, {})
    np.testing.assert_array_equal(read_arrays(tmp_path / "values")[0]["values"], values)


def test_300_cuts_and_flips_are_refused_by_name_or_read_whole(tmp_path):
    path, rng = written(tmp_path), np.random.default_rng(1)
    whole, num_refused = path.read_bytes(), 0
    for trial in range(300):
        path.write_bytes(damaged(whole, trial, rng))
        try:
            arrays, notes = read_arrays(path)
        except DamagedFile as error:
            assert str(path) in str(error)
            num_refused += 1
        else:  # what was hit stands between two arrays
            assert notes == NOTES
            for name, array in ARRAYS.items():
                np.testing.assert_array_equal(arrays[name], array)
    assert num_refused > 250


def test_a_write_that_fails_leaves_the_earlier_file(tmp_path):
    path = written(tmp_path)
    message = r"File too large \(an earlier file is as it was\): '.*/values'"
    with full_disk(100_000), pytest.raises(OSError, match=message):
        write_arrays(path, {"big": np.zeros(100_000)}, {})
    assert read_arrays(path)[1] == NOTES and os.listdir(tmp_path) == ["values"]
