"""Inputs that are not the encoder's: class ids not to be ranked, and the ids of examples."""

import difflib
import warnings

import tensorflow as tf

from tfxc._keras.layers import shape_called_with
from tfxc.ids import excluded_ids
from tfxc.labels import pad_labels

_RESERVED = ("exclude", "example_ids")


def split_inputs(inputs, encoder):
    """The encoder's inputs, and a dict of what stands under the reserved keys.

    Args:
        inputs: anything an encoder takes; a dict may hold reserved keys too.
        encoder: if one input is left and the encoder does not take a dict, that one is given bare. One whose
            inputs are not known, since it is subclassed and was not called yet, gets the dict, unless the
            input has the name "inputs", which ``with_example_ids`` gives to one without.

    Warns of a key that is no input of the encoder, but nearly a reserved one.

    Example:
        >>> encoder = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
        >>> x, reserved = split_inputs({"x": tf.zeros([4, 2]), "example_ids": tf.range(4)}, encoder)
        >>> x.shape, list(reserved)
        (TensorShape([4, 2]), ['example_ids'])
    """
    if not isinstance(inputs, dict):
        return inputs, {}
    _warn_of_misspelt(inputs, encoder)
    if not any(name in inputs for name in _RESERVED):
        return inputs, {}
    reserved = {name: inputs[name] for name in _RESERVED if name in inputs}
    rest = {name: value for name, value in inputs.items() if name not in _RESERVED}
    if len(rest) == 1 and not _takes_dict(encoder, *rest):
        rest = next(iter(rest.values()))
    if "exclude" in reserved:
        reserved["exclude"] = _padded(reserved["exclude"])
    return rest, reserved


def _padded(exclude):
    """Ids to leave out as a dense tensor; what is none is left to ``flatten_reserved``."""
    if isinstance(exclude, tf.SparseTensor | tf.RaggedTensor):
        return pad_labels(exclude)
    return tf.convert_to_tensor(exclude)


def _takes_dict(encoder, name):
    """Whether an encoder takes the input of that name in a dict."""
    if getattr(encoder, "inputs", None):
        return isinstance(getattr(encoder, "input", None), dict)
    called_with = shape_called_with(encoder)
    return name != "inputs" if called_with is None else isinstance(called_with, dict)


def _warn_of_misspelt(inputs, encoder):
    tensors = getattr(encoder, "inputs", None)
    # What a subclassed encoder reads is not known, and a single input may have any name.
    if not tensors or len(inputs) == 1:
        return
    own, by_key = {tensor.name.split(":")[0] for tensor in tensors}, getattr(encoder, "input", None)
    own |= set(by_key if isinstance(by_key, dict) else ())
    if "allow" in inputs and "allow" not in own:
        raise ValueError(
            "Inputs may hold 'exclude', but not 'allow': pass it to model.rank(..., allow=) or to an export."
        )
    for name in set(map(str, inputs)) - set(_RESERVED) - own:
        meant = difflib.get_close_matches(name, _RESERVED, n=1, cutoff=0.75)
        if meant:  # what an encoder does not read is passed over
            warnings.warn(
                f"The input {name!r} is read by nobody: the encoder has none of that name. The model reads "
                f"{meant[0]!r}: is that what you mean?",
                stacklevel=2,
            )


def flatten_reserved(reserved, query, where, num_classes):
    """Excluded class ids [N, X] and example ids [N], where given, of the queries that count.

    Args:
        reserved: as of ``split_inputs``: excluded ids [B, X], or [1, X] for all of the batch; example ids as
            of ``flatten_example_ids``.
        query: [B, ...], the encoder's output.
        where: None, or for sequences the places [N, 2] in the batch of what counts.
        num_classes: L.

    Raises:
        ValueError: if excluded ids are not of that rank, or as ``flatten_example_ids``.
        tf.errors.InvalidArgumentError: for an excluded id outside [-1, L), rows of a mask, or another number
            of rows.
    """
    flat = dict(reserved)
    if "exclude" in reserved:
        exclude = excluded_ids(reserved["exclude"], num_classes, query)
        flat["exclude"] = exclude if where is None else tf.gather(exclude, where[:, 0])
    if "example_ids" in reserved:
        flat["example_ids"] = flatten_example_ids(reserved["example_ids"], where)
    return flat


def flatten_example_ids(ids, where):
    """Example ids [N] of the queries that count.

    Args:
        ids: integers [B] or, for sequences, [B, T].
        where: as of ``flatten_reserved``.

    Raises:
        ValueError: for other ids.
    """
    ids = tf.convert_to_tensor(ids)
    if not ids.dtype.is_integer or ids.shape.rank != (1 if where is None else 2):
        wanted = "[B]" if where is None else "[B, T], one for each position of a sequence"
        raise ValueError(
            f"The input example_ids must hold integers {wanted}, but is {ids.dtype.name} {ids.shape}."
        )
    return ids if where is None else tf.gather_nd(ids, where)
