"""Sequences in a folder, memory-mapped.

`sequences.json` names a subfolder, which holds arrays (`.npy`) and names (Arrow IPC files), and lists the
size and checksum of each file. A new version is written into a new subfolder. The new `sequences.json`, which
replaces the old one atomically, makes it the valid version.
"""

import contextlib
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from tfxc.arguments import local_path
from tfxc.atomic_write import put_in_place, sync
from tfxc.data.column import Column
from tfxc.data.names import Names
from tfxc.data.sequences import Sequences
from tfxc.data.vocabulary import Vocabulary

_FORMAT = "tfxc-sequences 1"
_INDEX = "sequences.json"
_PREFIX = "tfxc-sequences-"
_BYTES_PER_READ = 1 << 24


def open_sequences(directory: str | os.PathLike[str]) -> Sequences:
    """Opens the folder that `from_frame(..., directory=)` wrote. Its arrays are memory-mapped.

    Every byte is read once to verify the checksums.

    Args:
        directory: the folder.

    Raises:
        ValueError: if it is not such a folder, or a file in it is missing, truncated or damaged.

    Example:
        >>> import pyarrow, tempfile
        >>> table = pyarrow.table({"who": ["ann", "ann"], "what": ["tea", "milk"]})
        >>> folder = tempfile.mkdtemp()
        >>> _ = tfxc.data.from_frame(table, user="who", item="what", directory=folder)
        >>> open_sequences(folder)
        Sequences(1 sequences, 2 items, 2 classes)
    """
    directory = os.fspath(local_path(directory))
    index = _index(directory)
    folder = os.path.join(directory, index["data"])
    for name, expected in index["files"].items():
        _check(os.path.join(folder, name), *expected)

    def array(name):
        return np.load(os.path.join(folder, f"{name}.npy"), mmap_mode="r")

    def names(name):
        return Names(_mapped_names(os.path.join(folder, f"{name}.arrow")))

    def column(number, has_names, form=None):
        vocabulary = Vocabulary(names(f"column{number}"), form) if has_names else None
        return Column(array(f"column{number}"), vocabulary)

    return Sequences(
        array("items"),
        array("offsets"),
        Vocabulary(names("items"), index.get("normalize")),
        names("users"),
        array("times") if "times.npy" in index["files"] else None,
        {name: column(number, *kept) for number, (name, *kept) in enumerate(index["columns"])},
    )


@contextlib.contextmanager
def new_version(directory) -> Iterator[str]:
    """Gives a new subfolder, which becomes the valid version when the context ends without an error.

    The caller writes the arrays into it and then calls `write_index`. Older versions are removed when the new
    one is on the disk.

    Raises:
        ValueError: if the folder holds something else, or belongs to remote storage.
    """
    directory = os.fspath(local_path(directory))
    os.makedirs(directory, exist_ok=True)
    entries, named = os.listdir(directory), _named(directory)
    versions = [name for name in entries if name == named or name.startswith(_PREFIX)]
    # An index that cannot be read may be a damaged one of ours, but only if there is a version, too.
    own = {*versions, _INDEX} if versions else set()
    others = sorted({*entries} - own)
    if others:
        raise ValueError(
            f"{directory} holds other files than sequences, such as {others[0]}: choose an empty folder."
        )
    folder = tempfile.mkdtemp(prefix=_PREFIX, dir=directory)
    os.chmod(folder, 0o755)  # only the owner can read what mkdtemp makes
    try:
        yield folder
        sync(folder)
    except BaseException:
        shutil.rmtree(folder)
        raise
    # From here on the index may name the new version. If this is interrupted, both versions stay.
    put_in_place(os.path.join(folder, _INDEX), os.path.join(directory, _INDEX))
    for name in versions:  # the older version, and those of writes that were killed
        shutil.rmtree(os.path.join(directory, name), ignore_errors=True)


def write_index(
    folder: str, users: Names, vocabulary: Vocabulary, columns: Mapping[str, Vocabulary | None]
) -> None:
    """Writes the names of a new version, whose arrays are complete in its folder, and the index of all files.

    ``columns`` holds, in order, the vocabulary of a further column's categories or None for numbers.
    """
    _write_names(folder, "users", users)
    _write_names(folder, "items", vocabulary.names)
    for number, of_column in enumerate(columns.values()):
        if of_column is not None:
            _write_names(folder, f"column{number}", of_column.names)
    index = {
        "format": _FORMAT,
        "data": os.path.basename(folder),
        "files": {
            name: _size_and_checksum(os.path.join(folder, name)) for name in sorted(os.listdir(folder))
        },
        "normalize": vocabulary.normalize,
        "columns": [
            [name, False] if of_column is None else [name, True, of_column.normalize]
            for name, of_column in columns.items()
        ],
    }
    with open(os.path.join(folder, _INDEX), "w", encoding="utf-8") as file:
        json.dump({**index, "checksum": _checksum_of_index(index)}, file, indent=1)


def _write_names(folder, name, names: Names):
    table = pa.table({"names": names.array})
    with pa.ipc.new_file(os.path.join(folder, f"{name}.arrow"), table.schema) as writer:
        writer.write_table(table)


def _mapped_names(path) -> pa.Array:
    names = pa.ipc.open_file(pa.memory_map(path)).read_all()["names"]
    return names.chunk(0) if names.num_chunks == 1 else names.combine_chunks()


def _index(directory) -> dict:
    path = os.path.join(directory, _INDEX)
    try:
        with open(path, encoding="utf-8") as file:
            index = json.load(file)
        if index["format"] != _FORMAT:
            raise ValueError(f"its format is {index['format']!r}, expected {_FORMAT!r}")
        if index.pop("checksum") != _checksum_of_index(index):
            raise ValueError("its checksum is wrong")
        return index
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(
            f"{directory} is not a folder of sequences: it has no {_INDEX}. Write it with "
            "from_frame(..., directory=)."
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}). Write the folder again.") from error


def _named(directory) -> str | None:
    """Returns the subfolder that holds the valid version, if there is one."""
    try:
        return _index(directory)["data"]
    except ValueError:
        return None


def _checksum_of_index(index):
    return zlib.crc32(json.dumps(index).encode())


def _size_and_checksum(path) -> tuple[int, int]:
    checksum = 0
    with open(path, "rb") as file:
        while block := file.read(_BYTES_PER_READ):
            checksum = zlib.crc32(block, checksum)
    return os.path.getsize(path), checksum


def _check(path, size, checksum):
    if not os.path.exists(path):
        raise ValueError(f"{path} is missing. Write the folder again.")
    if os.path.getsize(path) != size:
        raise ValueError(
            f"{path} has {os.path.getsize(path)} bytes, expected {size}. Write the folder again."
        )
    if _size_and_checksum(path)[1] != checksum:
        raise ValueError(f"{path} is damaged: its checksum is wrong. Write the folder again.")
