"""Layers: what Keras knows of those in a model, and of what stands between them."""

import re
from collections import OrderedDict

import tensorflow as tf

from tfxc._keras import IS_KERAS_3, keras


class Untracked:
    """Holds a layer, or a list of them, that Keras must not count among its holder's own."""

    def __init__(self, value):
        self.value = value


def forget_layer(owner, layer):
    """To be called before another takes a layer's place: Keras 3 would list both, and save them.

    Example:
        >>> model = keras.Model()
        >>> model.part = keras.layers.Dense(2)
        >>> forget_layer(model, model.part)
        >>> model.part = keras.layers.Dense(3)
        >>> len(layers_of(model))  # the model itself and its part
        2
    """
    if IS_KERAS_3:  # tf-keras does it by itself
        owner._tracker.untrack(layer)


_OF_KERAS = "keras", "tf_keras"


def layers_of(layer):
    """The layer or model itself and all layers in it, however deep."""
    return list(layer._flatten_layers())


def scope_of_own_classes(objects):
    """A scope in which Keras makes objects anew, from their configs, also of classes that nobody registered.

    Of two such classes of one name Keras knows neither, and says so: a config does not tell which it is of.

    Example:
        >>> class Twice(keras.layers.Layer):
        ...     pass
        >>> with scope_of_own_classes([Twice()]):
        ...     type(keras.layers.deserialize(keras.layers.serialize(Twice()))) is Twice
        True
    """
    kinds = {type(part) for part in objects if hasattr(type(part), "from_config")}
    own = [
        kind
        for kind in kinds
        if kind.__module__.partition(".")[0] not in _OF_KERAS
        and keras.saving.get_registered_name(kind) == kind.__name__
    ]
    names = [kind.__name__ for kind in own]
    return keras.saving.custom_object_scope(
        {kind.__name__: kind for kind in own if names.count(kind.__name__) == 1}
    )


def is_embedding(layer):
    """Whether a layer has a table of embeddings, or will have one when it is built.

    Example:
        >>> is_embedding(keras.layers.Embedding(3, 2)), is_embedding(keras.layers.Dense(2))
        (True, False)
    """
    return isinstance(layer, keras.layers.Embedding) or hasattr(layer, "embeddings")


def embeddings_of(layer):
    """Those of ``layers_of`` that have a table, each once."""
    return list({id(part): part for part in layers_of(layer) if is_embedding(part)}.values())


def found_again(layers, name, place):
    """The layers of a loaded encoder that may be a certain layer of the encoder that was saved.

    To layers that nobody named Keras gives other numbers in each process: for those the place counts.

    Args:
        layers: of the encoder, in their order.
        name: of the layer when it was saved.
        place: of the layer among them when it was saved; None where it is not known.

    Example:
        >>> layers = [keras.layers.Dense(2, name=name) for name in ("dense_1", "dense_2", "top")]
        >>> [layer.name for layer in found_again(layers, "dense_1", 1)]
        ['dense_2']
        >>> [layer.name for layer in found_again(layers, "top", 1)]
        ['top']
    """
    if place is not None and place < len(layers):
        numbered = type(layers[place]).__name__.lower()
        if re.sub(r"_\d+$", "", name).replace("_", "") == numbered.replace("_", ""):
            return [layers[place]]
    return [layer for layer in layers if layer.name == name]


def operations_of(layer):
    """``layers_of``, and the operations that Keras 3 has between the layers of functional models.

    Example:
        >>> inputs = keras.Input((2,))
        >>> len(operations_of(keras.Model(inputs, inputs + 1)))  # the model, its input and the sum
        3
    """
    layers = layers_of(layer)
    parts = [part for own in layers if IS_KERAS_3 for part in getattr(own, "operations", [])]
    return list({id(part): part for part in [*layers, *parts]}.values())


def is_made_of_layers(model):
    """Whether a model is functional or Sequential, so that Keras can make it anew of other layers."""
    functional = keras.src.models.functional if IS_KERAS_3 else keras.src.engine.functional
    return isinstance(model, (functional.Functional, keras.Sequential))


def inputs_read_by(layer, inputs):
    """Of a dict those that are inputs of a functional model, nested as its own are.

    Keras 3 goes by places alone: it sorts all keys of a dict, and takes an ``OrderedDict`` as it stands.

    Example:
        >>> b = keras.Input((2,))
        >>> model = keras.Model({"b": b}, keras.layers.Dense(1)(b))
        >>> list(inputs_read_by(model, {"a": tf.zeros([1, 2]), "b": tf.ones([1, 2])}))
        ['b']
    """
    own = getattr(layer, "input", None) if getattr(layer, "inputs", None) else None
    if isinstance(inputs, dict) and isinstance(own, dict) and set(own) <= set(inputs):
        kind = OrderedDict if isinstance(own, OrderedDict) else dict
        return kind((name, inputs[name]) for name in own)
    return inputs


def readers_of(layer):
    """The layers that read a layer's output in a functional or Sequential model; none in a subclassed one.

    Where a model made of layers reads it, those in it that do. In Keras 3 there are operations among them.
    """
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
    """Whether a model's input was made with ``keras.Input(..., sparse=True)``, or ``ragged=True``.

    Args:
        inputs: one of ``model.inputs``.
        form: "sparse" or "ragged".
    """
    if IS_KERAS_3:
        return bool(getattr(inputs, form))
    kind = {"sparse": tf.SparseTensorSpec, "ragged": tf.RaggedTensorSpec}[form]
    return isinstance(inputs.type_spec, kind)


def config_of_width(layer, width):
    """The config of an ``InputLayer`` for inputs of another last dimension."""
    config, name = layer.get_config(), "batch_shape" if IS_KERAS_3 else "batch_input_shape"
    return {**config, name: [*config[name][:-1], width]}


def no_autocast(layer):
    """Has a layer get its inputs as they come, in mixed precision, too.

    Example:
        >>> layer = keras.layers.Dense(1, dtype="mixed_bfloat16")
        >>> no_autocast(layer)
        >>> layer.autocast
        False
    """
    layer.autocast = layer._autocast = False


def mask_of(tensor):
    """Which positions of a layer's output count, bool [B, T]; None where all do."""
    return getattr(tensor, "_keras_mask", None)


def shape_called_with(layer):
    """The shape of a layer's first input, in the structure in which it came; None before it was called."""
    if IS_KERAS_3:
        return next(iter((getattr(layer, "_build_shapes_dict", None) or {}).values()), None)
    return getattr(layer, "_build_input_shape", None)
