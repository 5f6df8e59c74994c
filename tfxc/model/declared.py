"""A model of weights that have no values yet: for the graph of one whose weights lie elsewhere."""

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import UninitializedVariable

from tfxc._keras import keras
from tfxc._keras.layers import is_made_of_layers, layers_of
from tfxc._keras.weights import variables_of
from tfxc.model.adapted import copy_adapted
from tfxc.ops.remote import with_servers
from tfxc.ops.table_files import whole_tables


def declared(model):
    """The same encoder and head anew, for one machine; weights take no memory, having no values.

    Args:
        model: a built ``ExtremeClassifier`` whose encoder is functional or Sequential.

    Returns:
        The model, without a sampler; and a list, a pair (``tf.Variable``, ``Table``) a weight: one of the new
        model, and where its values lie.

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
            "This is the scope of a strategy with parameter servers, in which all that is made lies on them, "
            "and what is exported is read by one machine. Call export after the scope."
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
    # A Normalization is built from the values of its weights, and it needs them no more.
    kept = isinstance(layer, keras.layers.Normalization)
    return layer if kept else type(layer).from_config(layer.get_config())


def _declare(next_creator, **options):
    """A variable without a value, where a layer says its shape beforehand, as it does of weights."""
    if options.get("shape") is None:
        return next_creator(**options)
    return UninitializedVariable(
        **{name: options.get(name) for name in ("name", "shape", "dtype", "trainable")}
    )
