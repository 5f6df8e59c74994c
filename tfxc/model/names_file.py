"""The class names of a model as a file beside it."""

import json
import os

NAMES_FILE = "class_names.json"


def write_names(class_names, folder):
    """Writes the names, as strings, into a folder.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> read_names(folder)
        >>> write_names(["tea", "milk"], folder)
        >>> read_names(folder)
        ['tea', 'milk']
    """
    with open(os.path.join(folder, NAMES_FILE), "w", encoding="utf-8") as file:
        json.dump([str(name) for name in class_names], file, ensure_ascii=False)


def read_names(folder):
    """The names of a folder as a list; None where there are none."""
    path = os.path.join(folder, NAMES_FILE)
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return json.load(file)
