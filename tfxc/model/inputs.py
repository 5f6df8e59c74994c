"""What goes into an encoder and what comes out: reserved inputs, first examples, queries."""

import difflib
import warnings

import numpy as np
import scipy.sparse
import tensorflow as tf

from tfxc._keras import unpack_x_y_sample_weight
from tfxc._keras.layers import inputs_read_by, kept_integers, mask_of, shape_called_with
from tfxc.arguments import lists_as_tensors, refuse_masked
from tfxc.data.batching import epoch_orders
from tfxc.data.growing_vocabulary import NEW_CLASSES
from tfxc.ids import excluded_ids, padded_ids
from tfxc.labels import pad_labels
from tfxc.ops.custom_gradient import kept_by_graph
from tfxc.search import Attributes

_RESERVED = ("exclude", "example_ids", NEW_CLASSES)
_WANTED = "The encoder must give floats [B, D] or, for sequences, [B, T, D]"


def split_inputs(inputs, encoder):
    """The encoder's inputs, and a dict of what stands under the reserved keys; warns of misspelt ones.

    If one input is left and the encoder takes no dict, it gets that input bare. A subclassed encoder that
    was not called yet does not tell what it takes: it gets the dict, unless the input has the name "inputs",
    which ``with_example_ids`` gives to an input without a name.
    """
    if not isinstance(inputs, dict):
        return inputs, {}
    _warn_of_misspelt(inputs, encoder)
    rest = _without_reserved(inputs)
    if len(rest) == len(inputs):
        return inputs, {}
    reserved = {name: inputs[name] for name in _RESERVED if name in inputs}
    if len(rest) == 1 and not _takes_dict(encoder, *rest):
        rest = next(iter(rest.values()))
    if isinstance(reserved.get("exclude"), tf.SparseTensor | tf.RaggedTensor):
        reserved["exclude"] = pad_labels(reserved["exclude"])
    return rest, reserved


def plain_inputs(inputs):
    """Inputs in forms that Keras takes: lists, and texts of NumPy, pandas, Polars and Arrow, as tensors."""
    return tf.nest.map_structure(_plain, lists_as_tensors(with_matrices(as_csr, inputs)))


def _plain(part):
    if not (isinstance(part, np.ndarray) or hasattr(part, "to_numpy")):  # of pandas, Polars or Arrow
        return part
    refuse_masked(part, "Inputs")
    array = np.asarray(part)
    if array.dtype.kind in "biufc":  # Keras gives a numeric Series of pandas a dimension more
        return part if isinstance(getattr(part, "dtype", None), np.dtype) else array
    try:
        return tf.convert_to_tensor(array.astype(object))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Inputs must be numbers or texts, but are {array.dtype}: convert them, for example by "
            f"np.asarray(x, 'float32'), and give what is missing a value ({error})."
        ) from error


def ranking_inputs(inputs, encoder, exclude, allow, attributes, where):
    """The tensors that ``rank`` reads: the encoder's inputs, class ids to exclude and to allow, or None.

    And what a request wants of attributes, as tensors: lists would be traced each time.
    """
    inputs, reserved = split_inputs(plain_inputs(inputs), encoder)
    if exclude is not None and "exclude" in reserved:
        raise ValueError("rank got exclude both among the inputs and beside them: join them as ids [B, X].")
    inputs = tf.nest.map_structure(as_tensor, inputs)
    # Ids are checked here: a graph that was traced for several shapes does not know their rank.
    exclude = padded_ids(reserved.get("exclude", exclude), "exclude")
    where = attributes.rows(where) if isinstance(attributes, Attributes) else where
    return inputs, exclude, padded_ids(allow, "allow"), where


def refuse_raw_names(inputs):
    if any(getattr(part, "dtype", None) == tf.string for part in tf.nest.flatten(inputs)):
        raise ValueError("The inputs hold names: pass model.vocabulary.encoded(dataset), which holds ids.")


def first_input(inputs):
    """The first of the encoder's inputs [B, ...] that is not None: it has a row for each example."""
    inputs = _without_reserved(inputs) if isinstance(inputs, dict) else inputs
    return next(part for part in tf.nest.flatten(inputs) if part is not None)


def _without_reserved(inputs):
    rest = {name: value for name, value in inputs.items() if name not in _RESERVED}
    if not rest:
        raise ValueError(
            f"The inputs hold {list(inputs)} alone, which the model reads itself: nothing is left for the "
            "encoder. If it has an input of such a name, rename it, keras.Input(..., name=...)."
        )
    return rest


def _takes_dict(encoder, name):
    if getattr(encoder, "inputs", None):
        return isinstance(getattr(encoder, "input", None), dict)
    called_with = shape_called_with(encoder)
    return name != "inputs" if called_with is None else isinstance(called_with, dict)


def _warn_of_misspelt(inputs, encoder):
    tensors = getattr(encoder, "inputs", None)
    # A subclassed encoder does not tell what it reads, and a single input may have any name.
    if not tensors or len(inputs) == 1:
        return
    own, by_key = {tensor.name.split(":")[0] for tensor in tensors}, getattr(encoder, "input", None)
    own |= set(by_key if isinstance(by_key, dict) else ())
    taken = sorted(own & set(_RESERVED) & set(inputs))
    if taken:
        raise ValueError(f"The encoder has inputs called {taken}, which the model reads itself: rename them.")
    if "allow" in inputs and "allow" not in own:
        raise ValueError("Inputs may hold 'exclude', but not 'allow': pass it to model.rank or an export.")
    for name in set(map(str, inputs)) - set(_RESERVED) - own:
        meant = difflib.get_close_matches(name, _RESERVED, n=1, cutoff=0.75)
        if meant:  # other inputs that the encoder does not read do no harm
            text = f"Nothing reads the input {name!r}. The model reads {meant[0]!r}: is that what you mean?"
            warnings.warn(text, stacklevel=2)


def flatten_reserved(reserved, query, where, num_classes):
    """Excluded class ids [N, X] and example ids [N], where given, of the queries that count.

    ``query`` is the encoder's output, ``where`` None or, of sequences, the places [N, 2] of what counts.
    """
    flat = dict(reserved)
    if "exclude" in reserved:
        exclude = excluded_ids(reserved["exclude"], num_classes, query)
        flat["exclude"] = exclude if where is None else tf.gather(exclude, where[:, 0])
    if "example_ids" in reserved:
        flat["example_ids"] = flatten_example_ids(reserved["example_ids"], where)
    return flat


def flatten_example_ids(ids, where):
    """Ids [N] of the queries that count, of ids [B], or [B, T] of sequences; ValueError for others."""
    ids = tf.convert_to_tensor(ids)
    if not ids.dtype.is_integer or ids.shape.rank != (1 if where is None else 2):
        wanted = "[B]" if where is None else "[B, T], one for each position of a sequence"
        raise ValueError(
            f"The input example_ids must hold integers {wanted}, but is {ids.dtype.name} {ids.shape}; "
            "with_example_ids comes before batch."
        )
    return ids if where is None else tf.gather_nd(ids, where)


def first_examples(x):
    """Inputs of a first batch, or of the first row of arrays; None for a generator, read only once."""
    if isinstance(x, dict | list | tuple) or hasattr(x, "shape"):
        return tf.nest.map_structure(_first_row, x)
    if hasattr(x, "__getitem__"):
        return unpack_x_y_sample_weight(x[0])[0]  # keras.utils.PyDataset, Sequence
    if hasattr(x, "__next__"):
        return None
    orders = [(order, order.next) for order in epoch_orders(x)] if isinstance(x, tf.data.Dataset) else []
    batch = next(iter(x), None)
    for order, epoch in orders:  # this reading is no epoch
        order.next = epoch
    if batch is None:
        raise ValueError("The data set has no batch: it is empty, or drop_remainder=True leaves nothing.")

    def first(part):  # of a loader, of PyTorch or NumPy, or of what a strategy has cut for replicas
        return as_tensor(part.values[0] if isinstance(part, tf.distribute.DistributedValues) else part)

    return tf.nest.map_structure(first, unpack_x_y_sample_weight(batch)[0])


def with_matrices(form, inputs):
    """Inputs with ``form``, ``as_csr`` or ``as_tensor``, of each matrix of SciPy."""
    if scipy.sparse.issparse(inputs):  # one of them is a dict, too
        return form(inputs)
    return tf.nest.map_structure(lambda part: form(part) if scipy.sparse.issparse(part) else part, inputs)


def as_csr(matrix):
    """A matrix of SciPy whose entries are in order, each once: Keras cannot cut others into batches."""
    matrix = matrix.tocsr()
    if not matrix.has_canonical_format:
        matrix = matrix.copy()
        matrix.sum_duplicates()
    return matrix


def as_tensor(part):
    """The tensor of an array or a SciPy matrix. Tensors of any kind, and None, come back unchanged."""
    if scipy.sparse.issparse(part):
        part = as_csr(part).tocoo()
        return tf.SparseTensor(np.stack([part.row, part.col], 1).astype(np.int64), part.data, part.shape)
    return part if part is None or tf.is_tensor(part) else tf.convert_to_tensor(part)


def _first_row(part):
    if part is None:
        return None
    if isinstance(part, tf.SparseTensor):
        shape = part.dense_shape
        return tf.sparse.slice(part, tf.zeros_like(shape), tf.concat([[1], shape[1:]], 0))
    return as_tensor((part.tocsr() if scipy.sparse.issparse(part) else part)[:1])


def encoded(encoder, inputs, training):
    """The queries of an encoder, floats [B, D] or [B, T, D]; ValueError for an output of another kind."""
    inputs = kept_integers(encoder, inputs_read_by(encoder, inputs))
    with kept_by_graph():  # swish has a custom gradient
        query = encoder(inputs, training=training)
    if not tf.is_tensor(query) or not hasattr(query, "shape"):
        raise ValueError(f"{_WANTED}, but gave a {type(query).__name__}.")
    if not query.dtype.is_floating or query.shape.rank not in (2, 3):
        raise ValueError(f"{_WANTED}, but gave {query.dtype.name} {query.shape}.")
    return query


def query_width(encoder):
    """D of an encoder's queries, None before its first call; ValueError for what cannot be queries."""
    try:
        shape = encoder.output_shape
    except (AttributeError, RuntimeError):
        return None
    if isinstance(shape, dict | list) or (shape and isinstance(shape[0], tuple | list)):
        kind = "dict" if isinstance(shape, dict) else "list"
        raise ValueError(
            f"{_WANTED}, but gives a {kind} of {len(shape)}: make keras.Model(encoder.inputs, query) of the "
            "output that is the query. For several tasks, add several tfxc.head_loss in a model of your own."
        )
    if len(shape) not in (2, 3):
        raise ValueError(f"{_WANTED}, but gives {tuple(shape)}.")
    return shape[-1]


def last_position(query):
    """Queries [B, D]: of sequence queries [B, T, D] the last position that is not masked."""
    if query.shape.rank != 3:
        return query
    mask = mask_of(query)
    if mask is None:
        return query[:, -1]
    steps = tf.range(tf.shape(mask)[1])
    last = tf.reduce_max(tf.where(tf.cast(mask, tf.bool), steps, 0), axis=1)
    return tf.gather(query, last, batch_dims=1)
