"""What a SavedModel is written of: the function that serves, all that it reads, what an update asks of it."""

import contextlib
import json
import os
import tempfile
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.saved_model.save_context import save_context

from tfxc._keras.layers import embeddings_of, layers_of
from tfxc._keras.weights import tf_variable
from tfxc.cluster.exported import add_values
from tfxc.infinity import infinity_is_meant
from tfxc.layers import DenseHead, EncodedHead
from tfxc.layers.adapted import LOOKUPS
from tfxc.layers.dense_head import tied_row_offset
from tfxc.serving.class_names import ClassIds, ClassNames, write_names
from tfxc.serving.exported_folder import EXTRA, RECORD_FILE, exported_folder, named_if_unwritten
from tfxc.serving.signature import serving_function, with_defaults

_OPTIONS = "use_bias", "normalize", "temperature", "table_dtype"


class Servable(NamedTuple):
    """The parts of an export, whose arguments are as of ``ExtremeClassifier.export``."""

    encode: Any  # a tf.function of the encoder's inputs, dense and by their names, to queries [B, D]
    head: Any  # ranks them, and gives the index their effective queries
    k: int
    index: Any
    strings: Any
    attributes: Any
    class_names: Any  # None or the L names
    weights: list  # the variables that may be read; those that are not stay out of the file
    tables: list  # what else the encoder reads, such as lookup tables
    record: dict  # as of record_of

    def module(self, names_file):
        """A module of the function ``serve`` and all that it reads; names to look up go to a file, too."""
        module = tf.Module()
        module.encode = self.encode
        if self.class_names is not None:
            module.names = ClassNames(self.class_names)
        if self.strings not in (False, None):  # () takes names of exclude and allow alone
            module.class_ids = ClassIds(self.class_names, names_file)
        module.serve = serving_function(module, self.head, self.k, self.index, self.strings, self.attributes)
        # Only what serve reads is kept: with an index no table of the head, unless the encoder shares it. An
        # update reads all of the index.
        of_index = [] if self.index is None else self.index.stored
        module.kept = variables_read(module.serve, self.weights + of_index, of_index)
        module.tables = self.tables
        return module

    def write(self, path, elsewhere=()):
        """Writes a SavedModel, and returns ``serve``; ``elsewhere`` is as ``on_one_machine`` returns it."""
        with traced(), exported_folder(path) as aside, tempfile.TemporaryDirectory() as scratch:
            with tf.device(None):  # a coordinator's default names a machine of its cluster
                module = self.module(os.path.join(scratch, "names.txt"))
                signatures = {"serving_default": module.serve, "with_defaults": with_defaults(module.serve)}
                with named_if_unwritten(path):
                    tf.saved_model.save(module, aside, signatures=signatures)
            with named_if_unwritten(path):
                if elsewhere:
                    add_values(aside, module.kept, elsewhere)
                if self.class_names is not None:
                    extra = os.path.join(aside, EXTRA)
                    os.makedirs(extra, exist_ok=True)
                    write_names(self.class_names, extra)
                    record = with_weights(self.record, module.kept, self.head, self.k, self.index)
                    with open(os.path.join(extra, RECORD_FILE), "w", encoding="utf-8") as file:
                        json.dump(record, file)
        return module.serve


@contextlib.contextmanager
def traced():
    """Has TensorFlow trace functions, also where it runs them eagerly, without ``enable_check_numerics``."""
    eagerly = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(False)
    try:
        with infinity_is_meant():
            yield
    finally:
        tf.config.run_functions_eagerly(eagerly)


def variables_read(function, weights, others=()):
    """The variables that a function reads: ``weights``, and those that no list holds; and ``others``."""
    with save_context(tf.saved_model.SaveOptions()):  # TensorFlow saves this trace, else it would trace again
        graph = function.get_concrete_function().graph
    captured = {id(tensor) for tensor, _ in graph.captures} | {id(weight.handle) for weight in others}
    weights = [weight for weight in weights if id(weight.handle) in captured]
    unlisted = captured - {id(weight.handle) for weight in weights}
    return weights + [variable for variable in graph.variables if id(variable.handle) in unlisted]


def record_of(model, strings, attributes):
    """What is known of an export before it is made, as JSON takes it.

    ``head`` is the name of the head's class. For a ``DenseHead`` or ``EncodedHead``, ``options`` are those of
    a ``DenseHead`` that ranks alike, and ``shared_bias`` is None or the bias that all classes of an
    ``EncodedHead`` have; ``row_offset`` is the row of class 0 in a table that the encoder reads, too, else
    None; ``by_id`` names what else in the encoder may have a row or a column for each class, or look up their
    names; ``attributes`` are the types of these by their names.
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
    is_encoded = type(head) is EncodedHead
    return record | {
        "options": {name: getattr(head, name) for name in (_OPTIONS[:1] if is_encoded else _OPTIONS)},
        "shared_bias": float(tf_variable(head.bias)[0]) if is_encoded and head.use_bias else None,
        "row_offset": offset,
        "by_id": [own.name for own in by_id],
        "strings": strings if isinstance(strings, bool | str | None) else list(strings),
        "attributes": {part.attribute: part.dtype.name for part in attributes.parts} if attributes else {},
    }


def _knows(lookup, names):
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
