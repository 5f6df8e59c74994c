"""The text of the language model."""

from pathlib import Path

from tfxc import data

BUNDLED = Path(__file__).resolve().parents[1] / "data" / "novels.txt.xz"


def load_text(path, min_count):
    """The ``data.Split`` of a text file, or of a folder with files for training, validation and test.

    A text file is split into words, and the end of each book is held out; the files of a folder hold tokens,
    a sentence on each line, and are used as they are.
    """
    if not path.is_dir():
        return data.tail_split(data.read_text(path, min_count=min_count))
    train = data.read_tokens(_only_file(path, "train"))
    held_out = (data.read_tokens(_only_file(path, part), train.vocabulary) for part in ("valid", "test"))
    return data.Split(train, *held_out)


def _only_file(folder, part):
    found = sorted(file for file in folder.iterdir() if part in file.name)
    if len(found) != 1:
        names = [file.name for file in found or sorted(folder.iterdir())]
        raise SystemExit(f"{folder} must hold exactly one file with {part} in its name; found {names}.")
    return found[0]
