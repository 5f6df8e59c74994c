"""An export whose weights lie on parameter servers: as of one machine, which holds none of them."""

import os
import shutil

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import UninitializedVariable
from tensorflow.python.saved_model.fingerprinting_utils import write_fingerprint

from tfxc._keras import keras
from tfxc._keras.layers import is_made_of_layers, layers_of
from tfxc._keras.weights import variables_of
from tfxc.cluster.placement import is_on_servers, with_servers
from tfxc.cluster.sharded_head import ShardedHead
from tfxc.cluster.table_files import whole_tables, write_tables
from tfxc.layers.adapted import copy_adapted

_KEPT = "kept/{}/.ATTRIBUTES/VARIABLE_VALUE"  # what TensorFlow calls a weight of a module's list


def on_one_machine(model):
    """The model of which an export's graph is made, and the values of weights that lie elsewhere."""
    return declared(model) if is_on_servers(model) else (model, [])


def declared(model):
    """The same encoder and head anew, for one machine. Their weights have no values and take no memory.

    Returns the model, without a sampler, and pairs: a ``tf.Variable`` of it, the ``Table`` of its values.
    """
    if not is_made_of_layers(model.encoder):
        raise ValueError(
            f"The encoder is a {type(model.encoder).__name__}, which cannot be made anew: a functional or "
            "Sequential one can. Wrap it when you build the model: keras.Model(inputs, encoder(inputs))."
        )
    if with_servers():
        raise ValueError(
            "In the scope of a strategy with parameter servers all new weights lie on them, but one machine "
            "reads what is exported. Call export after the scope."
        )

    def anew(layer):
        # A Normalization is built from the values of its weights and does not read them afterwards.
        kept = isinstance(layer, keras.layers.Normalization)
        return layer if kept else type(layer).from_config(layer.get_config())

    with tf.variable_creator_scope(_declare):
        encoder = keras.models.clone_model(model.encoder, clone_function=anew)
        head = model.head.head if isinstance(model.head, ShardedHead) else model.head
        head = type(head).from_config(head.get_config())
        alone = type(model)(encoder, head, k=model.k, class_names=model.class_names)
    for source, layer in zip(layers_of(model.encoder), layers_of(encoder), strict=True):
        copy_adapted(source, layer)
    weights = [*variables_of(alone.encoder), *variables_of(alone.head)]
    tables = whole_tables([*variables_of(model.encoder), *variables_of(model.head)])
    return alone, list(zip(weights, tables, strict=True))


def _declare(next_creator, **options):
    """A variable without a value, if its creator states the shape, as a layer does for weights."""
    if options.get("shape") is None:
        return next_creator(**options)
    names = "name", "shape", "dtype", "trainable"
    return UninitializedVariable(**{name: options.get(name) for name in names})


def add_values(folder, kept, elsewhere):
    """Adds to a SavedModel, whose module lists its weights as ``kept``, the values of ``declared``."""
    tables = {id(variable): table for variable, table in elsewhere}
    numbered = enumerate(kept)
    tables = {_KEPT.format(number): tables[id(own)] for number, own in numbered if id(own) in tables}
    variables, written = (os.path.join(folder, name) for name in ("variables", "written"))
    os.rename(variables, written)
    os.mkdir(variables)
    here = os.path.join(written, "variables")
    write_tables(os.path.join(variables, "variables"), tables, [here])
    shutil.rmtree(written)
    write_fingerprint(folder)
