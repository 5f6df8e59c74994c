"""Finds files of data: by path, pattern, folder or list, on disks and in remote storage."""

import codecs
import glob
import logging
import lzma
import os
import re
from collections import Counter
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.fs

_SCHEME = re.compile(r"[A-Za-z][\w+.-]+:/")
_PACKED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".xz": "xz"}  # as Arrow calls them
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz"}  # what begins none of UTF-8
_POINTER = b"version https://git-lfs"
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".tgz", ".7z", ".rar")
_KINDS = {".parquet": "parquet", ".parq": "parquet", ".jsonl": "json", ".ndjson": "json", ".json": "json"}
_KINDS |= dict.fromkeys((".csv", ".tsv", ".inter", ".txt"), "csv")
DAMAGED = (pa.ArrowException, OSError, EOFError, lzma.LZMAError)  # what reading a damaged file raises
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class File:
    """The path of a file in a file system that pyarrow knows."""

    path: str
    system: pyarrow.fs.FileSystem = field(default_factory=pyarrow.fs.LocalFileSystem)

    def __str__(self) -> str:
        return self.path

    @property
    def packing(self) -> str:
        """The suffix of compression in lower case, or nothing: `.gz` of `LOG.CSV.GZ`."""
        suffix = os.path.splitext(self.path.lower())[1]
        return suffix if suffix in _PACKED else ""

    @property
    def suffix(self) -> str:
        """The suffix in lower case, without one of compression: `.csv` of `LOG.CSV.GZ`."""
        return os.path.splitext(self.path.lower().removesuffix(self.packing))[1]

    @property
    def kind(self) -> str | None:
        """What the suffix tells: `"parquet"`, `"csv"` (text with a delimiter), `"json"`, or None."""
        return _KINDS.get(self.suffix)

    def size(self) -> int:
        """Returns the number of bytes, 0 if it is not known."""
        return self.system.get_file_info(self.path).size or 0

    def open(self) -> pa.NativeFile:
        """Opens it for reading bytes as they are. A missing file raises FileNotFoundError."""
        return self.system.open_input_file(self.path)

    def as_utf8(self, encoding: str | None, raw: pa.NativeFile | None = None) -> pa.NativeFile:
        """Opens it, or what `open` returned, as a stream in UTF-8, unpacked as content or suffix tell."""
        try:
            name = "utf-8" if encoding is None else codecs.lookup(encoding).name
            "".encode(name)  # "base64" is a codec, too
        except (LookupError, TypeError) as error:
            raise ValueError(
                f"encoding must be a name of Python's codecs, such as 'latin-1', but got {encoding!r}."
            ) from error
        stream = raw or self.open()
        head = stream.read(len(_POINTER))
        if head == _POINTER:
            raise ValueError(f"{self} is a pointer of Git LFS to a file: fetch that by git lfs pull.")
        stream.seek(0)
        packing = next((_MAGIC[own] for own in _MAGIC if head.startswith(own)), _PACKED.get(self.packing))
        if packing == "xz":
            stream = pa.PythonFile(lzma.LZMAFile(stream))  # noqa: SIM115
        elif packing:
            stream = pa.CompressedInputStream(stream, packing)
        return stream if name == "utf-8" else pa.transcoding_input_stream(stream, name, "utf-8")


def one_file(path) -> File:
    """Returns the file of a path or URI, which need not exist; ValueError for a folder, and for no path."""
    file = _located(path)
    if file.system.get_file_info(file.path).type == pyarrow.fs.FileType.Directory:
        raise ValueError(f"{path} is a folder: pass one file, or the folder to tfxc.data.from_frame.")
    return file


def find_files(source) -> list[File]:
    """Returns the files of a path, URI, pattern such as `part-*.parquet`, folder, or list of these, in order.

    In a folder, the files of one kind count: Parquet files by their suffix if there are any, or else those of
    text, or else files without a suffix. Names that begin with "_" or "." do not count.
    """
    if isinstance(source, list | tuple):
        found = [file for part in source for file in find_files(part)]
        if not found:
            raise ValueError("frame is an empty list: pass at least one path.")
        path, count = Counter(file.path for file in found).most_common(1)[0]
        if count > 1:
            raise ValueError(f"{path} is there {count} times, and so would be its rows: pass it once.")
        return found
    file = _located(source)
    kind = file.system.get_file_info(file.path).type
    if kind == pyarrow.fs.FileType.Directory:
        return _in_folder(file)
    if kind == pyarrow.fs.FileType.NotFound:
        is_local = isinstance(file.system, pyarrow.fs.LocalFileSystem)
        matches = sorted(glob.glob(file.path, recursive=True)) if is_local else []
        if not matches:
            raise FileNotFoundError(f"There is no file or folder {source}.")
        return [found for match in matches for found in find_files(match)]
    return [file]


file_system_of = pyarrow.fs.FileSystem.from_uri


def _located(path) -> File:
    if not isinstance(path, str | os.PathLike):
        raise ValueError(
            f"path must be the path of one file, not {type(path).__name__}: tfxc.data.from_frame takes a "
            "list of paths, or one data frame, which pandas.concat makes of several."
        )
    path = os.path.expanduser(os.fspath(path))
    if path.lower().endswith(_ARCHIVES):
        raise ValueError(f"{path} is an archive, not one file: unpack it first.")
    if not _SCHEME.match(path):
        if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
            raise ValueError(f"{path} is a pipe or a device: write what it gives to a file, and pass that.")
        return File(path)
    try:
        system, inside = file_system_of(path)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"{path} cannot be opened ({str(error).splitlines()[0]}): pass a path on a disk, or a URI as "
            "text with one of pyarrow's schemes, file://, s3://, gs:// or hdfs://."
        ) from error
    return File(inside, system)


def _in_folder(folder: File) -> list[File]:
    infos = folder.system.get_file_info(pyarrow.fs.FileSelector(folder.path, recursive=True))
    files = [
        File(info.path, folder.system)
        for info in sorted(infos, key=lambda info: info.path)
        if info.is_file and not re.search(r"(^|/)[._]", info.path[len(folder.path) :].lstrip("/"))
    ]
    tables = [file for file in files if file.suffix != ".txt"]  # beside others a readme
    kinds = ("parquet", "csv", "json")
    by_kind = ([file for file in tables if file.kind == kind] for kind in kinds)
    chosen = next(filter(None, by_kind), None) or [file for file in tables if not file.suffix] or files
    if not chosen:
        raise ValueError(
            f'The folder {folder} holds no Parquet files (names that begin with "_" or "." do not count), '
            "but at least one was expected: pass the folder that holds them, or the path of a file."
        )
    if len(chosen) < len(files):
        left_out = next(file for file in files if file not in chosen)
        _logger.info("%s: %d files, without %s and its like", folder, len(chosen), left_out)
    return chosen
