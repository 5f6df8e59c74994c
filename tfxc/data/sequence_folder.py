"""Sequences in a folder, memory-mapped: a file of arrays with checksums, see ``tfxc.checked_file``."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tfxc.arguments import local_path
from tfxc.checked_file import DamagedFile, read_arrays, write_arrays
from tfxc.data.names import Names
from tfxc.data.sequences import Column, Sequences
from tfxc.data.vocabulary import Vocabulary

_FORMAT = "tfxc-sequences 2"
_FILE = "sequences.tfxc"
_SCRATCH = "tfxc-sequences-"


def open_sequences(directory: str | os.PathLike[str]) -> Sequences:
    """Opens the folder that `from_frame(..., directory=)` wrote, verifies its checksums, and maps its arrays.

    Raises:
        ValueError: if it is not such a folder, or its file is truncated or damaged.

    Example:
        >>> import pyarrow, tempfile
        >>> table = pyarrow.table({"who": ["ann", "ann"], "what": ["tea", "milk"]})
        >>> folder = tempfile.mkdtemp()
        >>> _ = tfxc.data.from_frame(table, user="who", item="what", directory=folder)
        >>> open_sequences(folder)
        Sequences(1 sequences, 2 items, 2 classes)
    """
    directory = os.fspath(local_path(directory))
    try:
        arrays, notes = read_arrays(os.path.join(directory, _FILE), "r")
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(
            f"{directory} is not a folder of sequences: it has no {_FILE}. Write it with "
            "from_frame(..., directory=)."
        ) from None
    except DamagedFile as error:
        raise ValueError(f"{error} Write the folder again.") from error
    if notes.get("format") != _FORMAT:
        raise ValueError(f"{directory} holds {notes}, expected {_FORMAT!r}: write the folder again.")

    def vocabulary(name, form):
        return Vocabulary(_names(arrays, name), form)

    times = arrays["times"].view(notes["times"]) if "times" in arrays else None
    columns = {
        name: Column(arrays[_key(name)], vocabulary(_key(name), *form) if form else None)
        for name, form in notes["columns"].items()
    }
    users, items = _names(arrays, "users"), vocabulary("items", notes["normalize"])
    return Sequences(arrays["items"], arrays["offsets"], items, users, times, columns)


@contextlib.contextmanager
def scratch(directory) -> Iterator[str]:
    """Gives a folder inside a folder, which is made, for a while; ValueError for one of remote storage."""
    directory = os.fspath(local_path(directory))
    os.makedirs(directory, exist_ok=True)
    for name in os.listdir(directory):
        if name.startswith(_SCRATCH):  # of a write that was killed
            shutil.rmtree(os.path.join(directory, name), ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=directory, ignore_cleanup_errors=True) as folder:
        yield folder


def write_sequences(directory, sequences: Sequences) -> None:
    """Writes sequences into a folder that exists. They replace those that are there."""
    vocabulary, times = sequences.vocabulary, sequences.times
    arrays = {"items": sequences.items, "offsets": sequences.offsets}
    if times is not None:
        arrays["times"] = times.view(np.int64)
    names = {"users": Names(sequences.user_ids or []), "items": vocabulary.names}
    forms: dict[str, list | None] = {}  # of each column that has names
    for name, column in sequences.columns.items():
        arrays[_key(name)] = column.values
        forms[name] = None if column.vocabulary is None else [column.vocabulary.normalize]
        names |= {} if column.vocabulary is None else {_key(name): column.vocabulary.names}
    for key, own in names.items():
        _, starts, texts = own.array.buffers()
        arrays[f"names of {key}"] = np.frombuffer(texts or b"", np.uint8)
        starts = np.frombuffer(starts, np.int64)
        arrays[f"starts of {key}"] = starts[own.array.offset :][: len(own) + 1]
    kind = None if times is None else times.dtype.str
    notes = {"format": _FORMAT, "times": kind, "normalize": vocabulary.normalize, "columns": forms}
    write_arrays(os.path.join(directory, _FILE), arrays, notes)


def _key(column) -> str:
    return f"column {column}"  # which neither "users" nor "items" is


def _names(arrays, key) -> Names:
    starts, texts = arrays[f"starts of {key}"], arrays[f"names of {key}"]
    return Names(pa.LargeStringArray.from_buffers(len(starts) - 1, *map(pa.py_buffer, (starts, texts))))
