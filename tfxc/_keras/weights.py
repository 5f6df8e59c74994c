"""Weights: how they are made, and which ``tf.Variable`` each of them wraps."""

import json

import numpy as np
import tensorflow as tf

from tfxc._keras import IS_KERAS_3, keras
from tfxc._keras.layers import layers_of


def tf_variable(variable):
    """The ``tf.Variable`` of a weight: Keras 3 wraps it, tf-keras does not."""
    return variable.value if IS_KERAS_3 and not isinstance(variable, tf.Variable) else variable


def tf_variables(weight):
    """The ``tf.Variable``s that a weight is made of: one, unless a strategy has cut it by its rows."""
    variable = tf_variable(weight)
    return getattr(variable, "variables", [variable])


def is_cut(variable):
    """Whether a ``tf.Variable`` holds some of the rows of a weight that a strategy has cut."""
    return hasattr(variable, "_sharded_container")


def is_weight(value):
    """Whether a value is a weight of a layer: a variable of Keras or TensorFlow, maybe cut by rows."""
    return hasattr(value, "assign")


def add_weight(layer, name, shape, initializer="zeros", dtype="float32", trainable=True, aggregation="none"):
    """``layer.add_weight`` without autocast, so that mixed precision never casts a whole table."""
    options = {"name": name, "shape": shape, "initializer": initializer, "dtype": dtype}
    if IS_KERAS_3:
        options |= {"autocast": False, "aggregation": aggregation}
    else:
        aggregation = getattr(tf.VariableAggregation, aggregation.upper())
        options |= {"experimental_autocast": False, "aggregation": aggregation}
    return layer.add_weight(trainable=trainable, **options)


def add_counter(layer, name, initializer="zeros", aggregation="sum"):
    """A weight of a layer that counts, int64, and does not train."""
    return add_weight(layer, name, (), initializer, "int64", trainable=False, aggregation=aggregation)


def constant(value):
    """An initializer that returns this value, for variables that must not be assigned in ``build``."""

    def initializer(shape, dtype=None, partition_shape=None, partition_offset=None):
        if partition_shape is None:
            return tf.broadcast_to(tf.cast(value, dtype), shape)
        whole = np.broadcast_to(value, shape)  # a strategy that cuts a table makes it some rows at a time
        rows = slice(partition_offset[0], partition_offset[0] + partition_shape[0])
        return tf.cast(whole[rows], dtype)

    return initializer


def stored_numbers(store):
    """The arrays of a saved layer. tf-keras saves bfloat16 as raw bytes, and cannot load those by itself."""
    if IS_KERAS_3:
        return store
    arrays = {name: np.asarray(store[name]) for name in store}
    half = tf.bfloat16.as_numpy_dtype
    return {name: array.view(half) if array.dtype == "V2" else array for name, array in arrays.items()}


def own_weights(layer):
    """The weights of a layer itself, without those of layers in it."""
    kind = "variables" if IS_KERAS_3 else "weights"
    lists = [getattr(layer, f"_{name}_{kind}", []) for name in ("trainable", "non_trainable")]
    return [weight for weights in lists for weight in weights]


def how_weights_are_made(layer, kinds):
    """For a config: the ``kinds_of`` inputs that a layer was called on, and how many weights it has."""
    return {"inputs": kinds, "num_weights": sum(len(own_weights(part)) for part in layers_of(layer))}


def make_weights(layer, config):
    """Calls a layer on symbols of its inputs, by ``how_weights_are_made``, if its ``build`` makes too few."""
    kinds = config.get("inputs")
    if kinds is None or how_weights_are_made(layer, kinds)["num_weights"] == config["num_weights"]:
        return

    def symbol(kind):
        dtype, shape = json.loads(kind)
        return keras.Input(batch_shape=shape, dtype=dtype)

    layer(tf.nest.map_structure(symbol, keras.saving.deserialize_keras_object(kinds)))


def unreadable_weight(model):
    """A weight of bfloat16 that tf-keras saves but cannot load, as a layer of its own holds it; or None."""
    own = [] if IS_KERAS_3 else layers_of(model)
    plain = [part for part in own if type(part).load_own_variables is keras.layers.Layer.load_own_variables]
    weights = [weight for part in plain for weight in own_weights(part)]
    return next((weight for weight in weights if weight.dtype == "bfloat16"), None)


def variables_of(model):
    """The ``tf.Variable`` of each weight of a model. tf-keras also lists vocabularies, which are left out."""
    return [tf_variable(weight) for weight in model.weights if hasattr(weight, "shape")]


def weights_of(model):
    """The weights of a model as Keras holds them, without the variables of its metrics."""
    metrics = [layer for layer in layers_of(model) if isinstance(layer, keras.metrics.Metric)]
    metrics = {metric.name: metric for metric in [*metrics, *model.metrics]}
    of_metrics = {id(variable) for metric in metrics.values() for variable in metric.variables}
    # tf-keras also lists vocabularies, which have no shape.
    return [own for own in model.variables if id(own) not in of_metrics and hasattr(own, "shape")]


def layer_and_name(variable):
    """The name of a weight and of its layer; the layers around that layer may differ in a loaded model."""
    return "/".join(getattr(variable, "path", variable.name).split("/")[-2:])
