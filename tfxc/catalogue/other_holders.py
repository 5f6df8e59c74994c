"""Finds other models that hold weights of a model."""

import gc

from tfxc._keras import keras
from tfxc._keras.layers import layers_of
from tfxc._keras.weights import layer_and_name, own_weights, tf_variable


def refuse_other_holders(model, variables):
    """Raises ValueError where a living model beside the given one holds one of its ``tf.Variable``s."""
    moved = set(map(id, variables))
    if _other_holder(model, moved) is not None:
        gc.collect()  # it may be a model that nobody holds any more
    found = _other_holder(model, moved)
    if found is not None:
        other, weight = found
        raise ValueError(
            f"The {type(other).__name__} {other.name!r} holds {layer_and_name(weight)} as well, which would "
            "move out of both: delete that model first, or load the given one from a file."
        )


def _other_holder(model, moved):
    """A layer or model that is no part of the given one, and the weight that it shares; None without one."""
    parts = layers_of(model)
    parts += [part._functional for part in parts if hasattr(part, "_functional")]  # a Sequential makes it
    parts = set(map(id, parts))
    for other in gc.get_objects():
        if not issubclass(type(other), keras.layers.Layer) or id(other) in parts:
            continue
        if getattr(other, "is_consumed", False):
            continue
        for layer in layers_of(other):
            for weight in own_weights(layer):
                if id(tf_variable(weight)) in moved:
                    return other, weight
    return None
