"""Finds the layers of an encoder that depend on the classes: tables of items and lookups of their names."""

import warnings
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfxc._keras import keras
from tfxc._keras.layers import (
    config_of_width,
    is_declared_as,
    is_made_of_layers,
    layer_of,
    layers_of,
    operations_of,
    readers_of,
)
from tfxc.class_rows import BY_MEAN, ClassRows
from tfxc.layers import EmbeddingBag
from tfxc.layers.adapted import LOOKUPS

# The argument that holds an embedding's number of rows.
_SIZES = {keras.layers.Embedding: "input_dim", EmbeddingBag: "num_features"}
# Layers that rearrange ids without changing them.
_NAMES = "Concatenate", "Cropping1D", "Flatten", "Permute", "RepeatVector", "Reshape"
_REARRANGING = tuple(getattr(keras.layers, name) for name in _NAMES)
# A table with so many more rows than classes stays as it is, but may be meant to hold items.
_UNUSUAL = 2, 3


class ItemLayer(NamedTuple):
    """A layer that changes with the classes: its ``ClassRows`` list, and its config for the new classes."""

    layer: Any
    class_rows: list
    config: dict


def item_layers(encoder, head_rows, class_names, classes):
    """Returns every ``ItemLayer`` of an encoder; ``head_rows`` are the ``ClassRows`` of the head.

    These are: a layer with the methods ``class_rows`` and ``config_for``; a table that the head shares; a
    lookup whose vocabulary is the names of the classes; an embedding of any size that reads such a lookup; an
    embedding of L rows, of L + 1 (row 0 for padding), or of the size of such a lookup; and a sparse input of
    a known width whose columns are the rows of such an ``EmbeddingBag``. A warning names what may hold items
    by its size alone. Raises ValueError where weights that read names or ids would not move with them.
    """
    layers = layers_of(encoder)
    num_old = len(classes.new_ids)
    all_lookups = [layer for layer in layers if isinstance(layer, LOOKUPS)]
    lookups = _lookups_of_names(layers, class_names)
    others = [layer for layer in all_lookups if layer not in lookups]
    of_lookups = {lookup.vocabulary_size() - num_old for lookup in lookups}
    found = [_changed_lookup(lookup, classes) for lookup in lookups]
    behind = _tables_behind(lookups, encoder, num_old)
    shared = {id(rows.weight) for rows in head_rows}
    unmoved, guessed, encodings = [], [], []
    for layer in layers:
        kind = next((kind for kind in _SIZES if isinstance(layer, kind)), None)
        if hasattr(layer, "class_rows"):
            found.append(ItemLayer(layer, layer.class_rows(), layer.config_for(classes.old_ids)))
        elif kind is not None:
            offset = behind.get(id(layer), layer.embeddings.shape[0] - num_old)
            is_shared = id(layer.embeddings) in shared
            is_certain = is_shared or offset in of_lookups
            if is_certain or offset in (0, 1):
                _refuse_reordered(layer, others, class_names)
                config = layer.get_config()
                config[_SIZES[kind]] += classes.num_added
                # The head lists a shared table.
                rows = [] if is_shared else [ClassRows(layer.embeddings, offset, BY_MEAN)]
                found.append(ItemLayer(layer, rows, config))
                if not is_certain and not getattr(layer, "holds_items", False):
                    guessed.append(layer.name)
            elif offset in _UNUSUAL and not any(num_old + offset == own.vocabulary_size() for own in others):
                unmoved.append(layer.name)
        elif isinstance(layer, keras.layers.CategoryEncoding):
            if layer.num_tokens - num_old in of_lookups:
                raise ValueError(_columns(layer))
            if layer.num_tokens - num_old in (0, 1):
                encodings.append(layer.name)
    found += _inputs_of_columns(layers, [item.layer for item in found], classes)
    columns = _readers_of_columns(encoder, {num_old, num_old + 1}, {item.layer.name for item in found})
    _warn_of_guesses(encodings, columns, guessed, unmoved)
    return found


def _warn_of_guesses(encodings, columns, guessed, unmoved):
    """Warns of layers, by name, that may hold items, judging by nothing but a number of rows or columns."""
    guesses = {
        "The CategoryEncoding layers {} have as many columns as there are classes, or one more, and the "
        "weights that read them do not change: if they hold items, class ids now mean other columns. Use an "
        "Embedding or a tfxc.layers.EmbeddingBag, whose rows move with the class ids.": encodings,
        "The layers {} read an input as wide as there are classes, or one wider, and their weights do not "
        "change: if its columns are items, class ids now mean other columns. Use a tfxc.layers.EmbeddingBag "
        "that reads keras.Input((L,), sparse=True), whose rows move with the class ids.": columns,
        "The embeddings {} have as many rows as there are classes, or one more, so they count as tables of "
        "items, whose rows move with the class ids. If they hold anything else, give them another number of "
        "rows. A table surely holds items if the head is tied_to it, or it reads a lookup of names.": guessed,
        "The embeddings {} have two or three rows more than there are classes, and do not change: if they "
        "hold items, class ids now mean other rows. Tables of items have at most one more row, row 0 for "
        "padding, or read a lookup of the class names.": unmoved,
    }
    for text, names in guesses.items():
        if names:
            warnings.warn(text.format(names), stacklevel=4)


def _inputs_of_columns(layers, moved, classes):
    """Returns an ``ItemLayer`` for each sparse input whose columns are the rows of a bag that changes."""
    items = []
    for layer in layers:
        if not isinstance(layer, keras.layers.InputLayer) or not is_declared_as(layer.output, "sparse"):
            continue
        width = layer.output.shape[-1]
        bags = [own for own in readers_of(layer) if isinstance(own, EmbeddingBag) and own in moved]
        if width is not None and bags:
            items.append(ItemLayer(layer, [], config_of_width(layer, width + classes.num_added)))
    return items


def lookups_of_head(head, items, class_names, classes):
    """An ``ItemLayer`` for each lookup of class names by which a head reads a shared table, or ValueError."""
    inside = layers_of(head)
    moved = [item.layer for item in items if item.class_rows and item.layer in inside]
    if not moved:
        return []
    lookups = _lookups_of_names(inside, class_names)
    sizes = {lookup.vocabulary_size() for lookup in lookups}
    tables = [layer for layer in inside if isinstance(layer, tuple(_SIZES)) and layer not in moved]
    behind = _tables_behind(lookups, head, len(classes.new_ids))
    if not lookups or any(id(own) in behind or own.embeddings.shape[0] in sizes for own in tables):
        raise ValueError(
            f"The rows of {[layer.name for layer in moved]} move with the class ids, but the item encoder "
            "reads them too, by features that do not change. Give it a table of its own; or, if all its "
            "tables of items are shared, names as features, followed by a lookup of model.class_names."
        )
    return [_changed_lookup(lookup, classes) for lookup in lookups]


def _lookups_of_names(layers, class_names):
    """Returns the lookups of the class names among layers, except those inside a TextVectorization."""
    texts = [layer for layer in layers if isinstance(layer, keras.layers.TextVectorization)]
    kept = [part for text in texts for part in layers_of(text)]
    lookups = [layer for layer in layers if isinstance(layer, LOOKUPS) and layer not in kept]
    return [lookup for lookup in lookups if _knows(lookup, class_names)]


def _readers_of_columns(encoder, widths, moved):
    """Returns names of layers, but ``moved``, with a weight for each column of an input of such a width."""
    inputs = encoder.inputs if is_made_of_layers(encoder) else []
    wide = [own for own in inputs if tf.as_dtype(own.dtype).is_floating and own.shape[-1] in widths]
    readers = [reader for own in wide for reader, _ in _readers_behind(layer_of(own), encoder)]
    weights = [(own.name, part.shape) for own in readers for part in getattr(own, "weights", [])]
    found = [name for name, shape in weights if len(shape) and shape[0] in widths and name not in moved]
    return list(dict.fromkeys(found))


def _tables_behind(lookups, model, num_old):
    """Returns by id of a table that reads a lookup of the names the row of class 0 in it."""
    offsets: dict = {}
    for lookup in lookups:
        size = lookup.vocabulary_size()
        offset = size - num_old
        for reader, is_as_given in _readers_behind(lookup, model):
            if isinstance(reader, keras.layers.CategoryEncoding):
                if reader.num_tokens >= size:
                    raise ValueError(_columns(reader))
            elif _is_one_hot(reader):
                if is_as_given:
                    raise ValueError(_columns(reader))
            elif isinstance(reader, tuple(_SIZES)):
                if not is_as_given and reader.embeddings.shape[0] < size:
                    continue  # it holds something else that the ids determine, such as positions
                is_known = is_as_given or reader.embeddings.shape[0] == size
                if not is_known or offsets.setdefault(id(reader), offset) != offset:
                    raise ValueError(
                        f"{reader.name!r} has {reader.embeddings.shape[0]} rows and reads the ids of "
                        f"{lookup.name!r}, but not as they are, so tfxc cannot match rows and classes. Let "
                        f"it read the ids directly, or give it {size} rows, the lookup's vocabulary_size()."
                    )
            elif is_as_given and _may_hold_rows(reader, size):
                raise ValueError(
                    f"{reader.name!r} reads the ids of {lookup.name!r}, the lookup of the class names, but "
                    "would not move with them. Use an Embedding, or give it class_rows() and config_for."
                )
    return offsets


def _readers_behind(layer, model):
    """Returns what reads a layer's output, directly or after ones without weights, and if unchanged."""
    known = set(map(id, operations_of(model)))  # another model may share the layer
    steps, seen, found = [(layer, True)], set(), []
    while steps:
        layer, is_as_given = steps.pop()
        for reader in readers_of(layer):
            if id(reader) not in known or (id(reader), is_as_given) in seen:
                continue
            seen.add((id(reader), is_as_given))
            has_weights = hasattr(reader, "class_rows") or getattr(reader, "weights", [])
            if has_weights or isinstance(reader, keras.layers.CategoryEncoding) or _is_one_hot(reader):
                found.append((reader, is_as_given))
            if not has_weights:
                steps.append((reader, is_as_given and isinstance(reader, _REARRANGING)))
    return found


def _is_one_hot(layer):
    return "one_hot" in layer.name  # the operation's name in both Keras versions


def _columns(layer):
    return (
        f"{layer.name!r} makes a column of each class name, but the weights that read it would not move with "
        "the names. Take an Embedding, or a tfxc.layers.EmbeddingBag, of the lookup's vocabulary_size()."
    )


def _may_hold_rows(layer, size):
    """Whether a layer has weights with a row for each id, and none that move with the classes."""
    parts = layers_of(layer)
    tables = [part for part in parts if isinstance(part, tuple(_SIZES)) and part.embeddings.shape[0] == size]
    if tables or any(hasattr(part, "class_rows") for part in parts):
        return False
    return any(len(weight.shape) and weight.shape[0] >= size for weight in layer.weights)


def _knows(lookup, class_names):
    return list(map(str, lookup.get_vocabulary(include_special_tokens=False))) == list(map(str, class_names))


def _refuse_reordered(layer, lookups, class_names):
    """Raises ValueError if a lookup knows exactly the class names, but its indices are not class ids."""
    for lookup in lookups:
        vocabulary = lookup.get_vocabulary(include_special_tokens=False)
        if len(vocabulary) == len(class_names) and set(map(str, vocabulary)) == set(map(str, class_names)):
            raise ValueError(
                f"The rows of {layer.name!r} would be moved by class id, but the lookup {lookup.name!r} "
                "knows the class names in another order, or is that of a TextVectorization, which keeps its "
                "words. Use a lookup of its own in the order of model.class_names, and sort trained rows so."
            )


def _changed_lookup(lookup, classes):
    readers = readers_of(lookup)
    is_read_by_bags = bool(readers) and all(isinstance(reader, EmbeddingBag) for reader in readers)
    # The weights of "tf_idf" would stay in the order of the old names.
    if lookup.output_mode != "int" and (not is_read_by_bags or lookup.output_mode == "tf_idf"):
        raise ValueError(
            f"The lookup {lookup.name!r} of the class names has output_mode={lookup.output_mode!r}: weights "
            'that read its columns would not move with the names. Take output_mode="int" and an Embedding, '
            "or a tfxc.layers.EmbeddingBag, of vocabulary_size() rows."
        )
    names = classes.names_of(np.arange(len(classes.old_ids)))
    if not isinstance(lookup, keras.layers.StringLookup):
        unfit = [name for name in names if not name.removeprefix("-").isdecimal()]
        if unfit:
            raise ValueError(
                f"The lookup {lookup.name!r} of the class names takes integers, but the new name "
                f"{unfit[0]!r} is not one: pass integers, or build the encoder with a StringLookup."
            )
        names = list(map(int, names))
    size = lookup.vocabulary_size() + classes.num_added
    return ItemLayer(lookup, [], {**lookup.get_config(), "vocabulary": names, "vocabulary_size": size})
