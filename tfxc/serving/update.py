"""The next version of an export, of some other classes, without the process that trained the model."""

import json
import os
import warnings
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import tensorflow as tf

from tfxc._keras import keras
from tfxc._keras.weights import constant, tf_variable
from tfxc.aligned import aligned_zeros, taken_over
from tfxc.arguments import local_path, refuse_masked
from tfxc.data import Vocabulary
from tfxc.data.names import Names, places_of
from tfxc.layers import DenseHead
from tfxc.search import Attributes
from tfxc.search.attribute_values import Numbers, Values
from tfxc.search.tiles import Tiles
from tfxc.search.updated_index import updated_index
from tfxc.serving.class_names import read_names
from tfxc.serving.exported_folder import EXTRA, RECORD_FILE
from tfxc.serving.servable import Servable
from tfxc.serving.signature import named_function

_BLOCK_ROWS = 1 << 16
# From this growth of an index's spread on, recall has fallen by more than a point.
MOST_SPREAD = 1.05


def update(
    path: str | os.PathLike[str],
    new_path: str | os.PathLike[str],
    added: Collection = (),
    vectors=None,
    *,
    removed: Collection = (),
    biases=None,
    attributes: Mapping[str, Any] | None = None,
) -> None:
    """Writes an export anew with some classes added and others removed, without the model or its training.

    The new version ranks as an export of a model with these classes would: exactly without an index, or where
    a request probes all cells of one. With an index each new class goes to the cell of the nearest centre; a
    warning says when too many new vectors fit no cell well. Ids change as in ``tfxc.data.Vocabulary.merge``:
    classes that stay keep theirs where they can. A tied table of the encoder gets the same rows, so that
    histories may hold new classes. The old version stays. The new one appears when it is whole.

    Args:
        path: folder of an export, or an update, of a model with class names and a ``DenseHead`` or
            ``EncodedHead``.
        new_path: folder to write, which must not exist; for TensorFlow Serving the next number, "served/2".
        added: names of n classes. A name that is a class already gets the new values in its old place.
        vectors: float [n, D], D the width of queries: rows of the head's table, or what the item encoder of
            an ``EncodedHead`` gives (``export_item_encoder``).
        removed: names of classes.
        biases: float [n], needed for a ``DenseHead`` with biases, refused for others. (The bias of an
            ``EncodedHead`` is that of new classes, too.)
        attributes: of an export with attributes, those of the n classes, as for ``ExtremeClassifier.export``.

    Raises:
        ValueError: if the folder is no such export of this release, or something is at the new path; for
            names that occur twice, are both added and removed, or are to be removed but no classes; if all
            classes are removed; for vectors, biases or attributes that are missing, of another shape or not
            finite; if the encoder has, but for the tied table, what may have a row or a name for each class.
        OSError: naming the path, if the disk is full or the folder cannot be written.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> encoder = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)])
        >>> model = tfxc.ExtremeClassifier(
        ...     encoder, tfxc.layers.DenseHead(3), class_names=["tea", "milk", "salt"])
        >>> model.export(folder / "1")
        >>> tfxc.serving.update(folder / "1", folder / "2", ["rum", "gin"], np.ones([2, 8]), removed=["milk"])
        >>> served = tf.saved_model.load(str(folder / "2"))
        >>> sorted(served.serve(tf.ones([1, 8]), k=tf.constant(4))["names"].numpy()[0].tolist())
        [b'gin', b'rum', b'salt', b'tea']
    """
    if os.path.lexists(local_path(new_path)):
        raise ValueError(f"An update writes a new folder, but {new_path} is there already: name another.")
    record = _record(local_path(path))
    change = _Change.of(read_names(os.path.join(path, EXTRA)), added, removed)
    loaded = tf.saved_model.load(os.fspath(path))
    own = {name: None if at is None else loaded.kept[at] for name, at in record["places"].items()}
    table, stored = own.get("table"), [loaded.kept[at] for at in record["index"]]
    encode = loaded.encode.concrete_functions[0]
    _require_fixed_encoder(record, encode, loaded.tables)
    has_bias, shared = record["options"].get("use_bias", False), record.get("shared_bias")
    # A row of an index, or of an EncodedHead's cache, ends with the bias.
    ends_with_bias = has_bias and (table is None or (shared is not None and own.get("bias") is None))
    dim = (stored[0] if table is None else table).shape[1] - ends_with_bias
    num_added = len(change.order)
    vectors = _numbers(vectors, "vectors", [num_added, dim])[change.order]
    if biases is not None and (shared is not None or not has_bias):
        raise ValueError("The head has no biases of classes: leave them out.")
    biases = np.full(num_added, shared, np.float32) if shared is not None else biases
    biases = _numbers(biases, "biases", [num_added])[change.order] if has_bias else None
    attributes = _attributes(record, loaded, stored, change, attributes)
    head, index = DenseHead(len(change.names), **record["options"]), None
    if stored:
        effective = head.vectors(vectors, biases).numpy()
        index = updated_index(stored, record["dtype"], record["num_probes"], change.old_ids, effective)
        _free(stored)
        if index.spread > MOST_SPREAD * record["spread"]:
            warnings.warn(
                "The vectors in the cells of the index lie farther apart than when it was built (the spread "
                f"is {index.spread:.3g}, was {record['spread']:.3g}), so requests find fewer of the best: "
                "export from the model with a new InvertedIndex.",
                stacklevel=2,
            )
    weights = list(loaded.kept)
    if table is not None:
        head = _head(record, change, table, vectors, own.get("bias"), biases)
        weights += [head.table_variable, *map(tf_variable, head.weights)]
    Servable(
        encode=_encode(encode, table, head),
        head=head,
        k=record["k"],
        index=index,
        strings=record["strings"],
        attributes=attributes,
        class_names=change.names,
        weights=weights,
        tables=list(loaded.tables),
        record=record,
    ).write(new_path)


def _record(path):
    """What an export tells of itself; ValueError for one that cannot be updated."""
    file = os.path.join(path, EXTRA, RECORD_FILE)
    if not os.path.exists(file):
        raise ValueError(
            f"{path} is no export of a model with class names, by this release: there is no {file}. Export "
            "ExtremeClassifier(..., class_names=names) anew."
        )
    with open(file, encoding="utf-8") as file:
        record = json.load(file)
    if record["options"] is None:
        raise ValueError(
            f"An update changes rows of a DenseHead or EncodedHead, but the head is a {record['head']}: "
            "change the model by tfxc.change_classes, and export it."
        )
    return record


def _require_fixed_encoder(record, encode, tables):
    """Raises ValueError for an encoder that reads ids or names of classes but by the table of the head."""
    specs, _ = encode.structured_input_signature
    what, is_tied = list(record["by_id"]), record["row_offset"] is not None
    if is_tied and tables:
        what.append("a lookup layer")
    if record["strings"] and not is_tied:
        what += [spec.name for spec in specs if spec.dtype.is_integer and spec.shape.rank == 2]
    if what:
        raise ValueError(
            f"The encoder reads {what} by ids or names of classes, and has no rows for new ones: tie the "
            "head to its only table of classes (tied_to), or change the model by tfxc.change_classes."
        )


class _Change(NamedTuple):
    """The names after an update, the old id of each, -1 for new values, and the ``order`` of these, by id."""

    names: Names
    old_ids: np.ndarray
    order: np.ndarray

    @classmethod
    def of(cls, old, added, removed):
        old, added, removed = Vocabulary(old), _distinct(added, "added"), _distinct(removed, "removed")
        unknown = _ids(removed, old) < 0
        if unknown.any():
            first = removed.names[int(unknown.argmax())]
            raise ValueError(
                f"{unknown.sum()} of the names to remove are no classes, first {first!r}"
                f"{old.other_spelling(first)}: give those that are."
            )
        both = _ids(added, removed) >= 0
        if both.any():
            name = added.names[int(both.argmax())]
            raise ValueError(f"{name!r} is both added and removed: to change its values, add it alone.")
        stay = old.names[_ids(old, removed) < 0]
        new = added.names[_ids(added, old) < 0]
        if not len(stay) + len(new):
            raise ValueError("All classes are removed, but an export needs one.")
        names = Vocabulary.merge(old, pa.concat_arrays([stay.array, new.array]))
        rows, old_ids = _ids(names, added), _ids(names, old)
        old_ids[rows >= 0] = -1
        return cls(names.names, old_ids, rows[rows >= 0])


def _distinct(names, what):
    if isinstance(names, str | bytes | Mapping):
        raise ValueError(f"{what} must be a list of names, but is {type(names).__name__}.")
    return Vocabulary(names)


def _ids(names, vocabulary):
    """The ids int64 of one vocabulary's names in another, -1 for none."""
    return places_of(names.names.array, vocabulary.names.array).copy()


def _numbers(values, what, shape):
    """Finite values float32 of a shape; ValueError for others."""
    refuse_masked(values, what)
    values = np.asarray(np.empty(shape) if values is None and not shape[0] else values, np.float32)
    found = list(values.shape)
    if found != shape or not np.isfinite(values).all():
        raise ValueError(
            f"{what} must be finite numbers {shape}, a row for each name that is added, but are {found}"
            f"{', with NaN or infinity' if found == shape else ''}."
        )
    return values


def _attributes(record, loaded, stored, change, given):
    """The ``Attributes`` of the new classes; None for an export without."""
    if not record["attributes"]:
        if given is not None:
            raise ValueError("This export has no attributes: leave them out, or export the model with them.")
        return None
    parts = loaded.attributes.attributes.parts if stored else loaded.attributes.parts

    def as_before(kind, part):
        name, dtype = kind
        if dtype == "float32":
            return Numbers(name, part.table.numpy())
        return Values(name, part.keys.numpy(), part.table.numpy(), tf.as_dtype(dtype))

    known = Attributes.of_parts(list(map(as_before, record["attributes"].items(), parts)))
    # With an index, they lie in the order of its slots.
    ids = np.maximum(change.old_ids, 0)
    rows = Tiles(*stored[: len(Tiles._fields)]).places.numpy()[ids] if stored else ids
    if num_added := len(change.order):
        if given is None:
            raise ValueError(
                f"Requests choose classes of this export by {list(record['attributes'])}: give these of the "
                f"{num_added} that are added, attributes={{...}}."
            )
        new = Attributes(given)
        new.require_classes(num_added)
        rows = rows.astype(np.int64)
        rows[change.old_ids < 0] = known.parts[0].table.shape[0] + change.order
        known = known.joined(new)
    return known.arranged(rows)


def _head(record, change, table, vectors, bias, biases):
    """A ``DenseHead`` of the new classes, over a table of its own kind that an encoder may read, too."""
    offset = record["row_offset"] or 0
    rows = _edited(table, change.old_ids, vectors, offset)
    own = constant(rows)
    embedding = keras.layers.Embedding(*rows.shape, embeddings_initializer=own, dtype=table.dtype.name)
    if bias is None:  # it is not served, or in the table
        rule = "zeros" if record.get("shared_bias") is None else constant(record["shared_bias"])
    else:
        rule = constant(_edited(bias, change.old_ids, biases))
    options = {**record["options"], "tied_to": embedding, "row_offset": offset, "bias_initializer": rule}
    head = DenseHead(len(change.names), **options)
    head.build((None, rows.shape[1]))
    return head


def _edited(variable, old_ids, new, offset=0):
    """The rows of a variable that is read no more, as wide as new ones; rows before those of classes stay."""
    dtype = variable.dtype.as_numpy_dtype
    rows = aligned_zeros((offset + len(old_ids), *new.shape[1:]), dtype)
    own = slice(None), *map(slice, new.shape[1:])
    rows[:offset] = variable[:offset].numpy()[own]
    for start in range(0, len(old_ids), _BLOCK_ROWS):
        ids = np.maximum(old_ids[start : start + _BLOCK_ROWS], 0)
        rows[offset + start : offset + start + len(ids)] = tf.gather(variable, offset + ids).numpy()[own]
    rows[offset:][old_ids < 0] = new
    _free([variable])
    if variable.dtype == tf.bfloat16:
        return tf.bitcast(taken_over(rows.view(np.uint16)), tf.bfloat16)
    return taken_over(rows)


def _free(variables):
    """Gives back the memory of variables that nobody reads any more; a loaded SavedModel keeps them all."""
    for variable in variables:
        empty = tf.zeros([0], variable.dtype)
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=empty)


def _encode(concrete, table, head):
    """The function of an export from inputs to queries, with the table of a head in place of its own."""
    graph, (specs, _) = concrete.graph, concrete.structured_input_signature
    # With its placeholders, or in a scope, it would grow with each update.
    whole, inputs = graph.as_graph_def(), {tensor.op.name for tensor in graph.inputs}
    nodes = [node for node in whole.node if node.name not in inputs]
    for node in nodes:
        node.attr.pop("_class", None)  # to stand beside the old table, which is left out
    definition = tf.compat.v1.GraphDef(node=nodes, library=whole.library, versions=whole.versions)
    fetched = [graph.outputs[0].name, *[operation.name for operation in graph.control_outputs]]

    def encode(*inputs):
        here = tf.compat.v1.get_default_graph()
        captured = list(concrete.captured_inputs)
        if table is not None:
            captured = [head.table_variable.handle if own is table.handle else own for own in captured]
        given = [*inputs, *map(here.capture, captured)]
        given = {own.name: value for own, value in zip(graph.inputs, given, strict=True)}
        query, *done = tf.graph_util.import_graph_def(definition, given, fetched, name="")
        query.set_shape(graph.outputs[0].shape)
        with tf.control_dependencies(done):
            return tf.identity(query)

    return named_function(encode, list(specs))
