"""Layers of an encoder that know the classes: tables of item vectors, and lookups of their names."""

from typing import Any, NamedTuple

import numpy as np

from tfxc._keras import keras, layers_of
from tfxc.class_rows import BY_MEAN, ClassRows
from tfxc.layers import EmbeddingBag

# How an embedding says its number of rows.
_SIZES = {keras.layers.Embedding: "input_dim", EmbeddingBag: "num_features"}
LOOKUPS = keras.layers.StringLookup, keras.layers.IntegerLookup


class ItemLayer(NamedTuple):
    """A layer that changes with the classes.

    Args:
        layer: the layer.
        class_rows: ``ClassRows`` list, its weights with a row for each class.
        config: its config for the new classes.
    """

    layer: Any
    class_rows: list
    config: dict


def item_layers(encoder, head_rows, class_names, classes):
    """Every ``ItemLayer`` of an encoder.

    These are: a layer with the methods ``class_rows`` and ``config_for``, which are asked; a table that the
    head shares; a lookup whose vocabulary is the names of the classes; and an embedding of L rows, of L + 1
    (row 0 for padding), or of as many as such a lookup tells apart.

    Args:
        encoder: a Keras model.
        head_rows: ``ClassRows`` of the head.
        class_names: the L names, in id order.
        classes: ``ClassMap``.
    """
    layers = layers_of(encoder)
    num_old = len(classes.new_ids)
    lookups = [layer for layer in layers if isinstance(layer, LOOKUPS) and _knows(layer, class_names)]
    offsets = {0, 1} | {lookup.vocabulary_size() - num_old for lookup in lookups}
    found = [_changed_lookup(lookup, classes) for lookup in lookups]
    shared = {id(rows.weight) for rows in head_rows}
    for layer in layers:
        kind = next((kind for kind in _SIZES if isinstance(layer, kind)), None)
        if hasattr(layer, "class_rows"):
            found.append(ItemLayer(layer, layer.class_rows(), layer.config_for(classes.old_ids)))
        elif kind is not None:
            offset = layer.embeddings.shape[0] - num_old
            is_shared = id(layer.embeddings) in shared
            if is_shared or offset in offsets:
                config = layer.get_config()
                config[_SIZES[kind]] += classes.num_added
                # A shared table is among the head's.
                rows = [] if is_shared else [ClassRows(layer.embeddings, offset, BY_MEAN)]
                found.append(ItemLayer(layer, rows, config))
    return found


def _knows(lookup, class_names):
    vocabulary = lookup.get_vocabulary(include_special_tokens=False)
    if len(vocabulary) != len(class_names):
        return False
    return all(str(own) == str(name) for own, name in zip(vocabulary, class_names, strict=True))


def _changed_lookup(lookup, classes):
    config = lookup.get_config()
    names = classes.names_of(np.arange(len(classes.old_ids)))
    is_string = isinstance(lookup, keras.layers.StringLookup)
    config["vocabulary"] = names if is_string else [int(name) for name in names]
    config["vocabulary_size"] = lookup.vocabulary_size() + classes.num_added
    return ItemLayer(lookup, [], config)
