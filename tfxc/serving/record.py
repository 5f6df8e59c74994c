"""What an export tells of itself, beside its graph: all that ``update`` needs to make the next one of it."""

import tensorflow as tf

from tfxc._keras.layers import embeddings_of, layers_of
from tfxc._keras.weights import tf_variable
from tfxc.layers import DenseHead, EncodedHead
from tfxc.layers.adapted import LOOKUPS
from tfxc.layers.dense_head import tied_row_offset

_OPTIONS = "use_bias", "normalize", "temperature", "table_dtype"


def record_of(model, strings, attributes):
    """What is known of an export before it is made, as JSON takes it.

    ``head`` is the name of the head's class. For a ``DenseHead`` or ``EncodedHead``, ``options`` are those of
    a ``DenseHead`` that ranks alike; ``row_offset`` is the row of class 0 in a table that the encoder reads,
    too, else None; ``by_id`` names what else in the encoder may have a row or a column for each class, or
    look up their names; ``attributes`` are the types of these by their names.
    """
    head = getattr(model.head, "head", model.head)  # of a wrapper
    record = {"head": type(head).__name__, "options": None}
    if type(head) not in (DenseHead, EncodedHead):
        return record
    table = head.class_rows()[0].weight
    sizes = {head.num_classes, head.num_classes + 1, table.shape[0]}
    layers, tables, offset = layers_of(model.encoder), embeddings_of(model.encoder), tied_row_offset(head)
    # With rows after those of classes, such as one of a mask, a tied table cannot grow either.
    if offset is None or table.shape[0] == offset + head.num_classes:
        tables = [layer for layer in tables if layer.embeddings is not table]
    by_id = [layer for layer in tables if layer.embeddings.shape[0] in sizes]
    by_id += [layer for layer in layers if getattr(layer, "num_tokens", None) in sizes]  # CategoryEncoding
    by_id += [layer for layer in layers if isinstance(layer, LOOKUPS) and _knows(layer, model.class_names)]
    floats = [own for own in model.encoder.inputs if tf.as_dtype(own.dtype).is_floating]
    by_id += [own for own in floats if own.shape[-1] in sizes]
    return record | {
        "options": {name: getattr(head, name) for name in _OPTIONS} if type(head) is DenseHead else {},
        "row_offset": offset,
        "by_id": [own.name for own in by_id],
        "strings": strings if isinstance(strings, bool | str | None) else list(strings),
        "attributes": {part.attribute: part.dtype.name for part in attributes.parts} if attributes else {},
    }


def _knows(lookup, names):
    """Whether a lookup has all names of classes among its words."""
    return {*map(str, lookup.get_vocabulary())}.issuperset(map(str, names or []))


def with_weights(record, kept, head, k, index):
    """The record of an export that is made, with the places of weights in the list of its variables.

    ``places`` are those of the ``table`` and the ``bias`` of the head, where they are served, ``index`` those
    of the weights of the index in their order; ``spread`` is that of the index when it was built.
    """
    if record["options"] is None:
        return record
    places = {id(variable): place for place, variable in enumerate(kept)}
    own = zip(["table", "bias"], head.class_rows() if head.built else [], strict=False)
    found = {name: places.get(id(tf_variable(rows.weight))) for name, rows in own}
    numbers = {"k": int(k), "num_probes": None, "dtype": None, "index": []}
    if index is not None:
        numbers["index"] = [places[id(weight)] for weight in index.stored]
        numbers |= {"num_probes": int(index.num_probes), "dtype": index.rows_dtype}
        numbers["spread"] = record.get("spread", index.spread)  # an update has that of before
    return record | numbers | {"places": found}
