"""A file of arrays with checksums, which is read exactly as it was written, or refused."""

import contextlib
import functools
import json
import mmap
import os
import struct
import zlib

import numpy as np
import tensorflow as tf

from tfxc.atomic_write import atomic_write

_BLOCK_BYTES = 1 << 22
_ALIGNED = 64  # alignment of an array
_PAGE = 4096  # alignment of an array of a page or more, which bypasses the page cache
_TAIL = struct.Struct("<QI4s")  # the index's length and checksum, then the mark
_MARK = b"tfxc"


class DamagedFile(ValueError):
    """A file that is truncated or whose bits have changed."""


def write_arrays(path, arrays, notes):
    """Writes arrays or eager tensors, by name, and notes in JSON by ``atomic_write``; OSError without space.

    Layout: the arrays, then an index in JSON of their places with a checksum for each block of 4 MiB, then
    the length and the checksum of the index. Whole pages bypass the page cache, if the file system allows:
    copying them would take processor time from the training.
    """
    with atomic_write(path) as aside, open(aside, "wb") as file, _uncached(aside) as write_uncached:
        index = []
        for name, array in arrays.items():
            values = bytes_of(array)
            file.write(bytes(-file.tell() % (_ALIGNED if len(values) < _PAGE else _PAGE)))
            start = file.tell()
            file.seek(start + write_uncached(values, start))
            file.write(values[file.tell() - start :])
            dtype, shape = tf.as_dtype(array.dtype).name, list(array.shape)
            index.append([name, dtype, shape, start, _checksums(values)])
        _write_index(file, index, notes)


def read_arrays(path, mode="c"):
    """Mapped arrays, whose changes stay in memory ("r": are refused), and notes, checked, or DamagedFile."""
    index, notes, _ = _read_index(path)
    arrays = _mapped(path, index, mode)
    for name, *_, checksums in index:
        if _checksums(bytes_of(arrays[name])) != checksums:
            raise DamagedFile(f"{path} is damaged: {name} has the wrong checksum.")
    return arrays, notes


def map_arrays(path):
    """As ``read_arrays``, but only the file's end is read and checked."""
    index, notes, _ = _read_index(path)
    return _mapped(path, index), notes


def index_checksum(path):
    """A checksum that depends on every byte of a file's arrays and notes; raises as ``map_arrays``."""
    return _read_index(path)[2]


def _mapped(path, index, mode="c"):
    arrays = {}
    for name, dtype, shape, start, _ in index:
        dtype, size = _dtype_and_size(dtype, shape)
        mapped = np.memmap(path, np.uint8, mode, start, size) if size else np.zeros(0, np.uint8)
        arrays[name] = mapped.view(dtype).reshape(shape)
    return arrays


def _dtype_and_size(name, shape):
    """Returns NumPy's type, and the number of bytes of an array."""
    dtype = np.dtype(tf.as_dtype(name).as_numpy_dtype)
    return dtype, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


def seal_array(path, name, dtype, shape, notes):
    """Completes a file that holds the bytes of one array, so that ``read_arrays`` can read it."""
    with open(path, "r+b") as file:
        checksums = [zlib.crc32(block) for block in iter(functools.partial(file.read, _BLOCK_BYTES), b"")]
        _write_index(file, [[name, np.dtype(dtype).name, list(shape), 0, checksums]], notes)


def bytes_of(array):
    """Returns the bytes uint8 [n] of an array or tensor. A tensor is not copied."""
    if tf.is_tensor(array):
        array = np.asarray(memoryview(tf.bitcast(array, tf.uint16) if array.dtype == tf.bfloat16 else array))
    # Reading assumes this machine's byte order.
    return np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(-1).view(np.uint8)


def _checksums(values):
    blocks = (values[start : start + _BLOCK_BYTES] for start in range(0, len(values), _BLOCK_BYTES))
    return [zlib.crc32(block) for block in blocks]


@contextlib.contextmanager
def _uncached(path):
    """Gives a function that writes values uint8 at a place in the file and returns how many it wrote."""
    handle = None
    with contextlib.suppress(OSError, AttributeError):  # not every system and file system supports it
        handle = os.open(path, os.O_WRONLY | os.O_DIRECT)
    if handle is None:
        yield lambda values, place: 0
        return
    pages = mmap.mmap(-1, _BLOCK_BYTES)  # begins at a page, as O_DIRECT requires

    def write(values, place):
        done, size = 0, len(values) // _PAGE * _PAGE
        with contextlib.suppress(OSError):  # then the ordinary write reports the error
            while done < size and done % _PAGE == 0:
                count = min(_BLOCK_BYTES, size - done)
                pages[:count] = memoryview(values[done : done + count])
                done += os.pwrite(handle, memoryview(pages)[:count], place + done)
        return done

    try:
        yield write
    finally:
        os.close(handle)


def _write_index(file, index, notes):
    text = json.dumps({"arrays": index, "notes": notes}).encode()
    file.write(text + _TAIL.pack(len(text), zlib.crc32(text), _MARK))


def _read_index(path):
    """The index, the notes and the checksum of both."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL.size))
        tail = file.read()
        length, checksum, mark = _TAIL.unpack(tail) if len(tail) == _TAIL.size else (0, 0, b"")
        start = size - _TAIL.size - length
        if mark != _MARK or start < 0:
            raise DamagedFile(f"{path} is cut short or damaged: its end, after {size} bytes, is missing.")
        file.seek(start)
        text = file.read(length)
    if zlib.crc32(text) != checksum:
        raise DamagedFile(f"{path} is damaged: its index has the wrong checksum.")
    found = json.loads(text)
    for name, dtype, shape, first, _ in found["arrays"]:
        if first + _dtype_and_size(dtype, shape)[1] > start:
            raise DamagedFile(f"{path} is cut short or damaged: bytes of {name} are missing.")
    return found["arrays"], found["notes"], checksum
