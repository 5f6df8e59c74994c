"""The options of a run, saved with its files."""

import json
import os
import zlib
from pathlib import Path

_DATA = ("data", "test_data")
_CHECKSUMS = "checksums of the data"
_BLOCK = 1 << 22


def check_options(folder, options, of_no_run):
    """Saves the options of a run in its folder, or compares them with the saved ones.

    Otherwise the figures of a run could be mistaken for those of other options or other data. A run without
    other files, which failed in its first epoch, starts again.

    Args:
        folder: the folder of the run; it is created if it does not exist.
        options: the command line as a dict.
        of_no_run: names of options that may differ.

    Raises:
        SystemExit: The run in the folder has other options or data.
    """
    given = {name: str(value) for name, value in options.items() if name not in of_no_run}
    checksums = {name: _checksum(given[name]) for name in _DATA if os.path.exists(given.get(name, ""))}
    path = os.path.join(folder, "options.json")
    is_begun = any(file != "options.json" for *_, files in os.walk(folder) for file in files)
    if not is_begun or not os.path.exists(path):
        os.makedirs(folder, exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**given, _CHECKSUMS: checksums}, file, indent=1)
        return
    with open(path, encoding="utf-8") as file:
        kept = json.load(file)
    changed = [name for name, own in checksums.items() if kept.get(_CHECKSUMS, {}).get(name, own) != own]
    if changed:
        raise SystemExit(
            f"{folder} holds a run that was made when {given[changed[0]]} held other data: give another "
            "--output, or delete that folder."
        )
    other = [
        f"--{name.replace('_', '-')} {kept[name]}, not {value}"
        for name, value in given.items()
        if kept.get(name, value) != value
    ]
    if other:
        raise SystemExit(
            f"{folder} holds a run that was made with {'; '.join(other)}: give the same options "
            "or another --output, or delete that folder."
        )


def _checksum(path):
    """The checksum of a file, or of the files of a folder."""
    path, checksum = Path(path), 0
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if file.is_file():
            with open(file, "rb") as held:
                while block := held.read(_BLOCK):
                    checksum = zlib.crc32(block, checksum)
    return checksum
