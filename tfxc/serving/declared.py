"""A model whose weights have no values, for the graph of a model whose weights lie on other machines."""

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

from tfxc._keras import keras
from tfxc._keras.layers import is_made_of_layers, layers_of
from tfxc._keras.weights import variables_of
from tfxc.layers.adapted import copy_adapted
from tfxc.ops.remote import with_servers
from tfxc.ops.table_files import whole_tables


def declared(model):
    """The same encoder and head made anew for one machine; their weights have no values and take no memory.

    Args:
        model: a built ``ExtremeClassifier`` whose encoder is functional or Sequential.

    Returns:
        The model, without a sampler; and for each of its weights a pair (``tf.Variable``, ``Table``): the
        weight, and where its values lie.

    Raises:
        ValueError: for another encoder, or in the scope of a strategy with parameter servers.
    """
    if not is_made_of_layers(model.encoder):
        raise ValueError(
            f"The encoder is a {type(model.encoder).__name__}, which cannot be made anew: a functional or "
            "Sequential one can. Wrap it when you build the model: keras.Model(inputs, encoder(inputs))."
        )
    if with_servers():
        raise ValueError(
            "In the scope of a strategy with parameter servers, all that is made lies on them, but an "
            "export is for one machine. Call export outside of strategy.scope()."
        )
    with tf.variable_creator_scope(_declare):
        encoder = keras.models.clone_model(model.encoder, clone_function=_anew)
        head = type(model.head).from_config(model.head.get_config())
        alone = type(model)(encoder, head, k=model.k, class_names=model.class_names)
    for source, layer in zip(layers_of(model.encoder), layers_of(encoder), strict=True):
        copy_adapted(source, layer)
    weights = [*variables_of(alone.encoder), *variables_of(alone.head)]
    tables = whole_tables([*variables_of(model.encoder), *variables_of(model.head)])
    return alone, list(zip(weights, tables, strict=True))


def _anew(layer):
    # A Normalization is built from the values of its weights, and does not read them later.
    kept = isinstance(layer, keras.layers.Normalization)
    return layer if kept else type(layer).from_config(layer.get_config())


def _declare(next_creator, **options):
    """A variable without a value, if its creator tells the shape, as layers do for weights."""
    if options.get("shape") is None:
        return next_creator(**options)
    return UninitializedVariable(
        **{name: options.get(name) for name in ("name", "shape", "dtype", "trainable")}
    )
