"""A SavedModel of TensorFlow's own ops: loadable where tfxc is not installed."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfxc._keras.layers import layers_of
from tfxc._keras.weights import layer_and_name, variables_of
from tfxc.cluster.exported import on_one_machine
from tfxc.layers import EncodedHead
from tfxc.layers.dense_head import tied_row_offset
from tfxc.model.checks import refuse_consumed
from tfxc.model.fresh_cache import expire_averaged
from tfxc.ops.library import stock_ops
from tfxc.search import Attributes, InvertedIndex
from tfxc.serving.exported_folder import exported_folder, named_if_unwritten
from tfxc.serving.servable import Servable, record_of, traced, variables_read
from tfxc.serving.signature import as_declared, encoder_inputs, named_function, query_function

_BLOCK_NUMBERS = 1 << 21  # of a weight, looked at at once


class ServingMixin:
    """A model that is exported for serving. To stand before ``keras.Model`` among the bases."""

    def export(
        self: Any,
        path: str | os.PathLike[str],
        index: InvertedIndex | None = None,
        strings: bool | str | Sequence[str] = False,
        attributes: Attributes | Mapping[str, Any] | None = None,
        *,
        format: str = "tf_saved_model",
        verbose: bool | None = None,
    ) -> None:
        """Writes encoder and head as a SavedModel of TensorFlow's own ops, which loads without tfxc.

        The signature is ``serving_default(inputs..., k=10, exclude=[1, 0], allow=[1, 0], num_probes=...) ->
        ids, scores, names``. Inputs: the encoder's by name, dense where the encoder's are sparse; ``k``
        int32, how many classes (default the model's k, at most L); ``exclude`` and ``allow`` int32 class ids
        [B, X] padded with -1, or [1, X] for all rows: classes that are never returned, and the only classes
        that may be (all, if the width is 0). Outputs: int32 ``ids`` and float32 ``scores`` [B, k], best
        first, and, if the model has class names, strings ``names`` ("" for id -1). ``num_probes`` int32 is an
        input with an index, and for a ``MACHHead`` made with ``num_probes``.

        TensorFlow Serving, ``saved_model_cli run`` and, in Python, ``tf.saved_model.load(path).serve`` fill
        in inputs that are left out; ``loaded.signatures`` do not. A second signature, ``with_defaults``, has
        the encoder's inputs alone. The export holds no sampler and no optimizer, and each table once; in a
        cluster each machine writes its weights, so all must see the path. An earlier export at the path is
        exchanged for the new one in a moment; an export that fails, or is killed, leaves it whole.

        Args:
            path: folder to write; for TensorFlow Serving the last part is a version number, "served/1".
            index: None to rank all classes, or a ``tfxc.search.InvertedIndex`` built from the model's head.
            strings: whether raw names come in, too: in histories (inputs of integers [B, T], oldest first,
                padded with ""; the encoder reads id + 1, and 0 for padding in front), ``exclude`` and
                ``allow``. Names that are no class are left out; histories are cut to their last items, or
                padded, to the length of the encoder's input. If several inputs are integers [B, T], or the
                only one has T = 1, give the names of those that are histories, () for none.
            attributes: None, or what requests choose classes by, ``tfxc.search.Attributes`` or a dict for it:
                ``{"country": ["DE", ...], "price": [9.5, ...]}`` adds the inputs ``where_country`` string
                [B, V], ``where_price_min`` and ``where_price_max`` float32 [B, V] (or [1, V] for all rows).
                Left out, or of width 0, they restrict nothing. Otherwise the k best are those of the classes
                that pass; with an index, each query reads as many rows, all of these classes.
            format: "tf_saved_model", as of Keras's ``export``.
            verbose: whether to print what a request may hold.

        Raises:
            ValueError: for another format; if the encoder's inputs are not known yet, are ragged or nested,
                or their names cannot be arguments; if the index is no ``InvertedIndex``, of another head, or
                of this one before further training; if the path is no folder of this machine, or holds other
                things; if a weight holds NaN; if strings are asked of a model that cannot take them; in the
                scope of the strategy that made the weights.
            OSError: naming the path, if the disk is full or the folder cannot be written.
        """
        if format != "tf_saved_model":
            raise ValueError(
                f'An export is a SavedModel, format="tf_saved_model", but the format is {format!r}. For '
                "LiteRT or ONNX, convert model.encoder alone, and rank its queries by the class vectors."
            )
        if attributes is not None:
            attributes = attributes if isinstance(attributes, Attributes) else Attributes(attributes)
            attributes.require_classes(self.head.num_classes)
        expire_averaged(self)
        self._freshen()
        if index is not None:
            _check_index(index, self.head)
        if strings not in (False, None) and self.class_names is None:
            raise ValueError("strings=True needs class names: ExtremeClassifier(..., class_names=names).")
        if self.class_names is not None and not len(self.class_names):
            raise ValueError("No class has a name yet: train the model before its export.")
        if strings and tied_row_offset(self.head) == 0:
            raise ValueError(
                "strings=True pads histories with 0, but with row_offset=0 row 0 of the tied table is a "
                "class: tie the head with row_offset=1, to an embedding of num_classes + 1 rows."
            )
        _refuse_scope(self)
        served, elsewhere = on_one_machine(self)
        if not elsewhere:  # to read weights from other machines would take as long as to write them
            _refuse_nan(variables_of(self.encoder) + variables_of(self.head))

        serve = Servable(
            encode=query_function(served, attributes),
            head=served.head,
            k=served.k,
            index=index,
            strings=strings,
            attributes=attributes,
            class_names=self.class_names,
            weights=variables_of(served.encoder) + variables_of(served.head),
            tables=_lookup_tables(served.encoder),
            record=record_of(served, strings, attributes),
        ).write(path, elsewhere)
        if verbose:
            names = ", ".join(spec.name for spec in serve.input_signature)
            print(f"{os.fspath(path)}: serve({names})")

    def export_item_encoder(self: Any, path: str | os.PathLike[str]) -> None:
        """Writes the item encoder of an ``EncodedHead`` as a SavedModel, for the vectors of new items.

        The one signature is ``serving_default(features...) -> vectors``: the features of n items by the names
        of the item encoder's inputs; float32 ``vectors`` [n, D], whose inner product with a query is the
        item's logit (without the bias of the head, and without what ``free_vectors=True`` adds for the items
        of the training).

        The path is a folder to write, as for ``export``, and so are the errors; another head is a ValueError.
        """
        refuse_consumed(self)
        if not isinstance(self.head, EncodedHead):
            raise ValueError(
                f"The class vectors of {type(self.head).__name__} are learnt class by class. "
                "A tfxc.layers.EncodedHead has an item encoder."
            )
        encoder, module = self.head.item_encoder, tf.Module()
        specs, structure = encoder_inputs(encoder)
        _refuse_nan(variables_of(encoder))

        def serve(*features):
            with stock_ops():
                vectors = encoder(as_declared(structure, features), training=False)
            return {"vectors": tf.cast(vectors, tf.float32)}

        module.serve = named_function(serve, specs)
        module.tables = _lookup_tables(encoder)
        with traced(), exported_folder(path) as aside, named_if_unwritten(path):
            module.kept = variables_read(module.serve, variables_of(encoder))
            tf.saved_model.save(module, aside, signatures={"serving_default": module.serve})


def _refuse_nan(weights):
    """Raises ValueError for a weight with NaN in it: answers computed with it would mean nothing."""
    for weight in weights:
        if not weight.dtype.is_floating or not weight.shape.rank:
            continue
        num_rows, row_size = weight.shape[0], max(weight.shape[1:].num_elements(), 1)
        size = max(_BLOCK_NUMBERS // row_size, 1)
        for start in range(0, num_rows, size):
            rows = tf.gather(weight, tf.range(start, min(start + size, num_rows)))
            bad = tf.where(tf.math.is_nan(rows))[:1, 0].numpy()
            if bad.size:
                raise ValueError(
                    f"The weight {layer_and_name(weight)} holds NaN in row {start + bad[0]}: training has "
                    "diverged. Nothing was exported: go back to an earlier state of the model."
                )


def _refuse_scope(model):
    """Raises ValueError in the scope of a strategy in which a weight has a value on each replica."""
    weights = variables_of(model.encoder) + variables_of(model.head) if tf.distribute.has_strategy() else []
    if any(isinstance(weight, tf.distribute.DistributedValues) for weight in weights):
        name = type(tf.distribute.get_strategy()).__name__
        raise ValueError(
            f"In the scope of the {name} weights have several values: export outside of strategy.scope()."
        )


def _check_index(index, head):
    """Raises ValueError for an index that does not rank the classes of a head as they are."""
    if not isinstance(index, InvertedIndex):
        raise ValueError(
            f"The index of an export must be a tfxc.search.InvertedIndex, but is of {type(index).__name__}: "
            "others have no TensorFlow ops. Make index = InvertedIndex(), call index.build_from(model.head)."
        )
    if not index.built:
        raise ValueError("The index is empty: call index.build_from(model.head) before export.")
    index.require_built_from(head)


def _lookup_tables(encoder):
    """Resources of an encoder's layers, such as lookup tables, which a SavedModel must hold, too."""
    layers = layers_of(encoder)
    parts = [part for layer in layers for part in tf.train.TrackableView(layer).descendants()]
    tables = [part for part in parts if isinstance(part, tf.saved_model.experimental.TrackableResource)]
    return list({id(table): table for table in tables}.values())
