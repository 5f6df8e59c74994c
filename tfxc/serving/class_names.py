"""Raw class names: as a model keeps them, in a file beside it, and in a SavedModel."""

import json
import os
from collections import Counter
from collections.abc import Mapping, Set

import tensorflow as tf

from tfxc.data.names import Names, arrow_texts, texts

NAMES_FILE = "class_names.json"
_WITHOUT = "export with strings=False"


def names_array(names, what):
    """The names of classes, in id order, as an array of strings, made of a list of any kind.

    Bytes are taken as UTF-8, an integer counts as its ``str``; ValueError, which says ``what`` they are, for
    an empty list or none, and for a name that is missing, a float or no text.
    """
    if isinstance(names, Names):
        array = names.array
    else:
        is_list = hasattr(names, "__getitem__") and getattr(names, "ndim", 1) == 1
        if isinstance(names, str | bytes | Mapping | Set) or not is_list:
            raise ValueError(
                f"{what} must be a list of names in the order of the class ids, but are "
                f"{type(names).__name__}. Pass the names of a tfxc.data.Vocabulary, sorted(names) of a set."
            )
        array = arrow_texts(texts(names, keep_missing=True), "of class")
    if not len(array):
        raise ValueError(f"{what} are an empty list.")
    if array.null_count:
        raise ValueError(f"{what} hold none for class {array.is_null().index(True).as_py()}: give it a name.")
    return array


def write_names(class_names, folder):
    with open(os.path.join(folder, NAMES_FILE), "w", encoding="utf-8") as file:
        json.dump([str(name) for name in class_names], file, ensure_ascii=False)


def read_names(folder):
    """The names of a folder as a list; None where there are none."""
    path = os.path.join(folder, NAMES_FILE)
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as file:
        return json.load(file)


class ClassNames(tf.Module):
    """L names of classes, in id order, as a variable, since millions of them are too many for a graph."""

    def __init__(self, names):
        super().__init__()
        self.table = tf.Variable([str(name) for name in names], trainable=False, dtype=tf.string)

    def of(self, class_ids):
        """The names of class ids, strings of the same shape; "" for -1."""
        names = tf.gather(tf.convert_to_tensor(self.table), tf.maximum(class_ids, 0))
        return tf.where(class_ids >= 0, names, "")


class ClassIds(tf.Module):
    """Class ids of raw names, by a table that a SavedModel reads from a file of its own.

    The L names, in id order, are written to a path, a name a line; ``tf.saved_model.save`` copies the file.
    Raises ValueError for a name that is empty, occurs twice or holds a line break.
    """

    def __init__(self, names, path):
        super().__init__()
        names = [str(name) for name in names]
        _require_lines(names)
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{name}\n" for name in names)
        lines = tf.lookup.TextFileInitializer(
            path, tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64, tf.lookup.TextFileIndex.LINE_NUMBER
        )
        self.table = tf.lookup.StaticHashTable(lines, default_value=-1)

    def of(self, names):
        """int32 ids of names, -1 for one that is no class."""
        return tf.cast(self.table.lookup(names), tf.int32)

    def histories(self, names, length=None, row_offset=1):
        """Histories [B, T] of names string [B, T], oldest first, as an encoder reads them: zeros in front.

        Names that are no class are left out; others become ids + ``row_offset``. The encoder takes the last
        ``length`` items; None for all, or one 0 if there are none.
        """
        ids = self.of(names)
        known = tf.cast(ids >= 0, tf.int32)
        # A stable sort moves unknown names to the front and keeps the others in order.
        items = tf.gather(ids, tf.argsort(known, axis=1, stable=True), batch_dims=1)
        items = tf.where(items >= 0, items + row_offset, 0)
        # Recurrent layers fail on sequences without a position.
        missing = tf.maximum((length or 1) - tf.shape(items)[1], 0)
        items = tf.pad(items, [[0, 0], [missing, 0]])
        return items if length is None else tf.ensure_shape(items[:, -length:], [None, length])


def _require_lines(names):
    if "" in names:
        raise ValueError(f"Class {names.index('')} has an empty name, like padding: name it, or {_WITHOUT}.")
    broken = next((name for name in names if "\n" in name or "\r" in name), None)
    if broken is not None:
        raise ValueError(f"The class name {broken!r} holds a line break: rename the class, or {_WITHOUT}.")
    if len(set(names)) < len(names):
        twice = max(names, key=Counter(names).get)
        raise ValueError(f"The class name {twice!r} occurs twice: rename one of the classes, or {_WITHOUT}.")
