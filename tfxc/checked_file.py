"""A file of arrays that is read as it was written or refused by name, never silently wrong."""

import contextlib
import json
import os
import struct
import zlib

import numpy as np
import tensorflow as tf

ASIDE = "writing-"  # what the name of a file begins with until it is whole
_BLOCK_BYTES = 1 << 22
_ALIGNED = 64
_TAIL = struct.Struct("<QI4s")  # the index's length and checksum, then the mark
_MARK = b"tfxc"


class DamagedFile(ValueError):
    """A file that is cut short or whose bits have changed."""


@contextlib.contextmanager
def replacing(path):
    """Gives the name of a file to be written aside; it takes the place of ``path`` when it is on the disk.

    A write that fails, or is killed, leaves an earlier file as it was.

    Example:
        >>> import pathlib, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "notes.txt")
        >>> with replacing(path) as aside:
        ...     _ = pathlib.Path(aside).write_text("whole")
        >>> os.listdir(os.path.dirname(path))
        ['notes.txt']
    """
    path = os.fspath(path)
    folder, name = os.path.split(path)
    aside = os.path.join(folder, ASIDE + name)  # in front: whoever writes may go by the suffix
    try:
        yield aside
        _sync(aside)
        os.replace(aside, path)
        _sync(folder or ".")  # the name, too, has to last
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(aside)


def write_arrays(path, arrays, notes):
    """Writes a file of arrays and notes; it stands under its name when it is whole and on the disk.

    Layout: the arrays, then an index in JSON of where they stand with a checksum for each block of 4 MiB,
    then the length and the checksum of the index.

    Args:
        path: of the file.
        arrays: a dict, name -> array or eager tensor.
        notes: what JSON holds.

    Raises:
        OSError: if the disk is full, or the folder cannot be written.

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "weights")
        >>> write_arrays(path, {"table": np.eye(2, dtype=np.float32)}, {"epoch": 3})
        >>> arrays, notes = read_arrays(path)
        >>> arrays["table"].tolist(), notes
        ([[1.0, 0.0], [0.0, 1.0]], {'epoch': 3})
    """
    with replacing(path) as aside, open(aside, "wb") as file:
        index = []
        for name, array in arrays.items():
            file.write(bytes(-file.tell() % _ALIGNED))
            index.append([name, tf.as_dtype(array.dtype).name, list(array.shape), file.tell()])
            index[-1].append([_written(file, block) for block in _blocks(bytes_of(array))])
        _write_index(file, index, notes)


def read_arrays(path):
    """What ``write_arrays`` wrote: arrays that are mapped from the file, each checked, and the notes.

    Who writes into an array writes into memory of its own, not into the file.

    Raises:
        DamagedFile: naming the file, and what is wrong.
        OSError: if it cannot be opened.
    """
    with open(path, "rb") as file:
        index, notes = _read_index(file, path)
    arrays = {}
    for name, dtype, shape, start, checksums in index:
        dtype = np.dtype(tf.as_dtype(dtype).as_numpy_dtype)
        if 0 in shape:
            arrays[name] = np.zeros(shape, dtype)
            continue
        mapped = np.memmap(path, np.uint8, "c", start, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
        if [zlib.crc32(block) for block in _blocks(mapped)] != checksums:
            raise DamagedFile(f"{path} is damaged: {name} is not what was written.")
        arrays[name] = mapped.view(dtype).reshape(shape)
    return arrays, notes


def seal_array(path, name, array, notes):
    """Makes of a file that holds one array from its first byte on one that ``read_arrays`` reads."""
    with open(path, "r+b") as file:
        checksums = [zlib.crc32(block) for block in _blocks(bytes_of(array))]
        file.seek(0, os.SEEK_END)
        _write_index(file, [[name, array.dtype.name, list(array.shape), 0, checksums]], notes)
    _sync(path)


def bytes_of(array):
    """The bytes uint8 [n] of an array or tensor, in order; of a tensor without a copy."""
    if tf.is_tensor(array):
        array = np.asarray(memoryview(tf.bitcast(array, tf.uint16) if array.dtype == tf.bfloat16 else array))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _blocks(values):
    return (values[start : start + _BLOCK_BYTES] for start in range(0, len(values), _BLOCK_BYTES))


def _written(file, block):
    file.write(block)
    return zlib.crc32(block)


def _write_index(file, index, notes):
    text = json.dumps({"arrays": index, "notes": notes}).encode()
    file.write(text + _TAIL.pack(len(text), zlib.crc32(text), _MARK))


def _read_index(file, path):
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL.size))
    tail = file.read()
    length, checksum, mark = _TAIL.unpack(tail) if len(tail) == _TAIL.size else (0, 0, b"")
    start = size - _TAIL.size - length
    if mark != _MARK or start < 0:
        raise DamagedFile(f"{path} is cut short or damaged: its end, of {size} bytes, is missing.")
    file.seek(start)
    text = file.read(length)
    if zlib.crc32(text) != checksum:
        raise DamagedFile(f"{path} is damaged: its index is not what was written.")
    found = json.loads(text)
    return found["arrays"], found["notes"]


def _sync(path):
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
