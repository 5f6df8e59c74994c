"""A file of arrays that is read as it was written or refused by name, never silently wrong."""

import contextlib
import json
import mmap
import os
import struct
import zlib

import numpy as np
import tensorflow as tf

from tfxc.atomic_write import atomic_write, sync_entry

_BLOCK_BYTES = 1 << 22
_ALIGNED = 64  # where an array begins
_PAGE = 4096  # where one of a page and more does: disks take whole pages without the page cache
_TAIL = struct.Struct("<QI4s")  # the index's length and checksum, then the mark
_MARK = b"tfxc"


class DamagedFile(ValueError):
    """A file that is cut short or whose bits have changed."""


def write_arrays(path, arrays, notes):
    """Writes a file of arrays and notes; it stands under its name when it is whole and on the disk.

    Layout: the arrays, then an index in JSON of where they stand with a checksum for each block of 4 MiB,
    then the length and the checksum of the index. Whole pages go to the disk past the page cache, where the
    file system can: who trains meanwhile would miss the processor's time that the cache takes.

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
    with atomic_write(path) as aside, open(aside, "wb") as file, _uncached(aside) as write_uncached:
        index = []
        for name, array in arrays.items():
            start, checksums = _written(file, write_uncached, bytes_of(array))
            index.append([name, tf.as_dtype(array.dtype).name, list(array.shape), start, checksums])
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
    arrays = _mapped(path, index)
    for name, *_, checksums in index:
        if [zlib.crc32(block) for block in _blocks(bytes_of(arrays[name]))] != checksums:
            raise DamagedFile(f"{path} is damaged: {name} is not what was written.")
    return arrays, notes


def map_arrays(path):
    """As ``read_arrays``, but the arrays are not checked: it reads none of their bytes.

    Raises:
        DamagedFile: naming the file, if its end is missing or not what was written.
        OSError: if it cannot be opened.
    """
    with open(path, "rb") as file:
        index, notes = _read_index(file, path)
    return _mapped(path, index), notes


def index_checksum(path):
    """What tells a file of arrays from others, in which a byte of an array or the notes differ.

    Raises:
        DamagedFile: naming the file, if its end is missing or not what was written.
        OSError: if it cannot be opened.

    Example:
        >>> import tempfile
        >>> one, other = (os.path.join(tempfile.mkdtemp(), "weights") for _ in range(2))
        >>> write_arrays(one, {"table": np.zeros(3)}, {})
        >>> write_arrays(other, {"table": np.ones(3)}, {})
        >>> index_checksum(one) == index_checksum(other)
        False
    """
    with open(path, "rb") as file:
        _read_index(file, path)
        file.seek(-_TAIL.size, os.SEEK_END)
        return _TAIL.unpack(file.read())[1]


def _mapped(path, index):
    arrays = {}
    for name, dtype, shape, start, _ in index:
        dtype, size = _dtype_and_size(dtype, shape)
        mapped = np.memmap(path, np.uint8, "c", start, size) if size else np.zeros(0, np.uint8)
        arrays[name] = mapped.view(dtype).reshape(shape)
    return arrays


def _dtype_and_size(name, shape):
    """NumPy's type, and the bytes of an array of it."""
    dtype = np.dtype(tf.as_dtype(name).as_numpy_dtype)
    return dtype, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


def seal_array(path, name, array, notes):
    """Makes of a file that holds one array from its first byte on one that ``read_arrays`` reads."""
    with open(path, "r+b") as file:
        checksums = [zlib.crc32(block) for block in _blocks(bytes_of(array))]
        file.seek(0, os.SEEK_END)
        _write_index(file, [[name, array.dtype.name, list(array.shape), 0, checksums]], notes)
    sync_entry(path)


def bytes_of(array):
    """The bytes uint8 [n] of an array or tensor, in order; of a tensor without a copy."""
    if tf.is_tensor(array):
        array = np.asarray(memoryview(tf.bitcast(array, tf.uint16) if array.dtype == tf.bfloat16 else array))
    # What is read back is in this machine's order of bytes.
    return np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(-1).view(np.uint8)


def _blocks(values):
    return (values[start : start + _BLOCK_BYTES] for start in range(0, len(values), _BLOCK_BYTES))


def _written(file, write_uncached, values):
    """Writes bytes uint8 [n] at the end; gives the place and the checksum of each block."""
    file.write(bytes(-file.tell() % (_ALIGNED if len(values) < _PAGE else _PAGE)))
    start = file.tell()
    file.seek(start + write_uncached(values, start))
    file.write(values[file.tell() - start :])
    return start, [zlib.crc32(block) for block in _blocks(values)]


@contextlib.contextmanager
def _uncached(path):
    """Gives a function (values uint8, place in the file) -> how many bytes of them it wrote to the disk."""
    handle = None
    with contextlib.suppress(OSError, AttributeError):  # not every system and file system knows how
        handle = os.open(path, os.O_WRONLY | os.O_DIRECT)

    pages = mmap.mmap(-1, _BLOCK_BYTES)  # begin where a page does, as the disk wants it

    def write(values, place):
        done, size = 0, len(values) // _PAGE * _PAGE
        if handle is None:
            return done
        with contextlib.suppress(OSError):  # then the usual way says what is wrong, if anything is
            while done < size and done % _PAGE == 0:
                count = min(_BLOCK_BYTES, size - done)
                pages[:count] = memoryview(values[done : done + count])
                done += os.pwrite(handle, memoryview(pages)[:count], place + done)
        return done

    try:
        yield write
    finally:
        if handle is not None:
            os.close(handle)


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
    for name, dtype, shape, first, _ in found["arrays"]:
        if first + _dtype_and_size(dtype, shape)[1] > start:
            raise DamagedFile(f"{path} is cut short or damaged: bytes before its end are missing, of {name}.")
    return found["arrays"], found["notes"]
