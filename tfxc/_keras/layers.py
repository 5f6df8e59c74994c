"""Layers: which layers a model holds, how they are connected, and what Keras has noted about them."""

import json
import re
from collections import OrderedDict

import tensorflow as tf

from tfxc._keras import IS_KERAS_3, keras
from tfxc.require import require


class Untracked:
    """Holds a layer, a metric, or a list of layers, that Keras must not track as part of the holder."""

    def __init__(self, value):
        self.value = value


def require_layer(layer, what):
    """Raises ValueError for what is no layer of the Keras in use: weights of another one would not train."""
    if not isinstance(layer, keras.layers.Layer):
        raise ValueError(
            f"{what} must be a Keras model, but got {layer!r}. Here that is a model of {keras.__name__}; for "
            "models of tf_keras set TF_USE_LEGACY_KERAS=1 in the environment before TensorFlow is imported."
        )


def forget_layer(owner, layer):
    """Makes an owner forget a layer that another one replaces: Keras 3 would keep and save both."""
    if IS_KERAS_3:  # tf-keras forgets the old layer by itself
        owner._tracker.untrack(layer)


def layers_of(layer):
    """The layer or model itself and all layers in it, however deep; none for None."""
    return [] if layer is None else list(layer._flatten_layers())


def scope_of_own_classes(objects):
    """A scope in which Keras makes objects of classes that nobody registered, except two of one name."""
    kinds = {type(part) for part in objects if hasattr(type(part), "from_config")}
    kinds = [own for own in kinds if own.__module__.partition(".")[0] not in ("keras", "tf_keras")]
    own = [kind for kind in kinds if keras.saving.get_registered_name(kind) == kind.__name__]
    names = [kind.__name__ for kind in own]
    once = {kind.__name__: kind for kind in own if names.count(kind.__name__) == 1}
    return keras.saving.custom_object_scope(once)


def config_of(layer, *names):
    """What a layer's config says of attributes that are plain values or, by their names, initializers."""
    values = {name: getattr(layer, name) for name in names}
    serialize = keras.initializers.serialize
    return {name: serialize(own) if "initializer" in name else own for name, own in values.items()}


def is_embedding(layer):
    """Whether a layer has a table of embeddings once it is built."""
    table = getattr(layer, "embeddings", None)  # some layers call others so
    return isinstance(layer, keras.layers.Embedding) or hasattr(table, "shape")


def embeddings_of(layer):
    """The layers of ``layers_of`` that have a table, each of them once."""
    return list({id(part): part for part in layers_of(layer) if is_embedding(part)}.values())


def found_again(layers, name, place):
    """The layers of a loaded encoder, in order, that may be the one of a name and place (or None) when saved.

    Keras numbers layers without a name anew in each process, so the place decides for those.
    """
    if place is not None and place < len(layers):
        numbered = type(layers[place]).__name__.lower()
        if re.sub(r"_\d+$", "", name).replace("_", "") == numbered.replace("_", ""):
            return [layers[place]]
    return [layer for layer in layers if layer.name == name]


def operations_of(layer):
    """``layers_of``, and the operations that Keras 3 puts between the layers of a functional model."""
    layers = layers_of(layer)
    parts = [part for own in layers for part in getattr(own, "operations", [])]
    return list({id(part): part for part in [*layers, *parts]}.values())


def is_made_of_layers(model):
    """Whether a model is functional or Sequential, so that Keras can rebuild it with other layers."""
    functional = keras.src.models.functional if IS_KERAS_3 else keras.src.engine.functional
    return isinstance(model, (functional.Functional, keras.Sequential))


def inputs_read_by(layer, inputs):
    """The entries of a dict that a functional model reads, in its order: Keras 3 matches by position only."""
    own = getattr(layer, "input", None) if getattr(layer, "inputs", None) else None
    if isinstance(inputs, dict) and isinstance(own, dict) and set(own) <= set(inputs):
        kind = OrderedDict if isinstance(own, OrderedDict) else dict
        return kind((name, inputs[name]) for name in own)
    return inputs


def kept_integers(layer, inputs):
    """Inputs, behind a check that no number changes where Keras makes integers of them, as declared."""
    declared = getattr(layer, "inputs", None) or []
    if isinstance(inputs, dict):
        own = getattr(layer, "input", None) if declared else None
        own = own if isinstance(own, dict) else {part.name.split(":")[0]: part for part in declared}
        kind = OrderedDict if isinstance(inputs, OrderedDict) else dict
        return kind((name, _kept(own.get(name), part)) for name, part in inputs.items())
    if type(inputs) in (list, tuple) and len(inputs) == len(declared):
        return type(inputs)(map(_kept, declared, inputs))
    return _kept(declared[0], inputs) if len(declared) == 1 else inputs


def _kept(declared, part):
    if declared is None or not isinstance(part, tf.Tensor):
        return part
    dtype, name = tf.as_dtype(declared.dtype), declared.name.split(":")[0]
    if (part.dtype == tf.string) != (dtype == tf.string):
        raise ValueError(
            f"The encoder reads the input {name!r} as {dtype.name}, but it is {part.dtype.name}: convert it, "
            "names to ids by tfxc.data.Vocabulary(names).encode, or declare another, keras.Input(dtype=)."
        )
    if not dtype.is_integer or part.dtype.size < dtype.size:
        return part
    if part.dtype == dtype or not (part.dtype.is_integer or part.dtype.is_floating):
        return part
    is_other = tf.not_equal(tf.cast(tf.cast(part, dtype), part.dtype), part)
    checked = require(
        tf.logical_not(tf.reduce_any(is_other)),
        f"The encoder reads the input {name!r} as {dtype.name}, which does not hold",
        tf.boolean_mask(part, is_other),
        "and would take another number: count ids from 0, or declare another dtype, keras.Input(dtype=).",
    )
    with tf.control_dependencies(checked):
        return tf.identity(part)


def readers_of(layer):
    """The layers, or operations of Keras 3, that read a layer's output, also within a nested model."""
    found = []
    for node in layer._outbound_nodes:
        reader = node.operation if IS_KERAS_3 else node.outbound_layer
        if not is_made_of_layers(reader):
            found.append(reader)
            continue
        given = node.input_tensors if IS_KERAS_3 else node.keras_inputs
        for own, tensor in zip(reader.inputs, given, strict=False):
            if layer_of(tensor) is layer:
                found.extend(readers_of(layer_of(own)))
    return found


def layer_of(tensor):
    """The layer whose output a symbolic tensor is."""
    return tensor._keras_history[0]


def is_declared_as(inputs, form):
    """Whether one of a model's inputs was made with ``keras.Input(..., sparse=True)``, or ``ragged=True``."""
    if IS_KERAS_3:
        return bool(getattr(inputs, form))
    kind = {"sparse": tf.SparseTensorSpec, "ragged": tf.RaggedTensorSpec}[form]
    return isinstance(inputs.type_spec, kind)


def config_of_width(layer, width):
    """The config of an ``InputLayer`` whose last dimension is changed."""
    config, name = layer.get_config(), "batch_shape" if IS_KERAS_3 else "batch_input_shape"
    return {**config, name: [*config[name][:-1], width]}


def no_autocast(layer):
    """Keeps mixed precision from casting the inputs of a layer."""
    layer.autocast = layer._autocast = False


def mask_of(tensor):
    """Which positions of a layer's output count: bool [B, T], or None if all count."""
    return getattr(tensor, "_keras_mask", None)


def with_mask(tensor, mask=None):
    """A layer's output, for which ``mask_of`` tells this mask."""
    if mask is not None:
        tensor._keras_mask = mask
    return tensor


def kinds_of(inputs):
    """Dtypes and shapes of the inputs of a call, for a config; None for ragged and sparse inputs."""
    if any(getattr(part, "ndim", None) is None for part in tf.nest.flatten(inputs)):
        return None
    kind = lambda part: json.dumps([tf.as_dtype(part.dtype).name, [None, *part.shape[1:]]])  # noqa: E731
    return keras.saving.serialize_keras_object(tf.nest.map_structure(kind, inputs))


def shape_called_with(layer):
    """The shape of the input of a layer's first call, in that input's structure; None before that call."""
    if IS_KERAS_3:
        return next(iter((getattr(layer, "_build_shapes_dict", None) or {}).values()), None)
    return getattr(layer, "_build_input_shape", None)
