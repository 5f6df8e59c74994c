"""A SavedModel of stock TensorFlow ops: loadable where tfxc is not installed."""

import inspect
import json
import os
import shutil

import tensorflow as tf

from tfxc._keras import layers_of, tf_variable
from tfxc.ops.library import stock_ops

_K = "k"
_EXCLUDE = "exclude"


def export_classifier(model, path):
    """Writes the encoder and head of an ``ExtremeClassifier`` as a SavedModel.

    The one signature is ``serving_default(inputs..., k=10, exclude=[[-1]]) -> ids, scores``: the encoder's
    inputs by name; ``k`` int32, how many classes (default the model's k, at most L); ``exclude`` int32
    [B, X] class ids padded with -1, or [1, X] for all rows. Outputs: int32 ``ids`` and float32 ``scores``
    [B, k], best first. TensorFlow Serving and ``saved_model_cli run`` fill in inputs that are left out; in
    Python, ``tf.saved_model.load(path).serve(inputs...)`` does. Only stock ops, no sampler, no optimizer, the
    table once. Class names, if the model has them, lie in ``assets.extra/class_names.json``.

    A failed export leaves an earlier one at the path whole.

    Args:
        model: a built ``ExtremeClassifier``.
        path: folder to write; for TensorFlow Serving the last part is a version number, "served/1".

    Raises:
        ValueError: if the encoder's inputs are not known yet.

    Example:
        >>> import tempfile
        >>> encoder = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16)])
        >>> model = tfxc.ExtremeClassifier(encoder, head=tfxc.layers.DenseHead(1000))
        >>> path = tempfile.mkdtemp() + "/1"
        >>> export_classifier(model, path)
        >>> loaded = tf.saved_model.load(path)
        >>> loaded.serve(tf.zeros([2, 8]), k=3)["ids"].shape
        TensorShape([2, 3])
    """
    path = os.fspath(path)
    module = tf.Module()
    module.serve = _serving_function(model)
    layers = [model.encoder, model.head]
    module.kept = [tf_variable(weight) for layer in layers for weight in layer.weights]
    module.tables = _lookup_tables(model.encoder)
    aside = f"{path.rstrip('/')}.writing"
    shutil.rmtree(aside, ignore_errors=True)
    try:
        tf.saved_model.save(module, aside, signatures={"serving_default": module.serve})
        if model.class_names is not None:
            _write_names(model.class_names, os.path.join(aside, "assets.extra"))
        _replace_folder(aside, path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _write_names(class_names, folder):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "class_names.json"), "w", encoding="utf-8") as file:
        json.dump([str(name) for name in class_names], file, ensure_ascii=False)


def _serving_function(model):
    names, specs, structure = _encoder_inputs(model.encoder)
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    # Tensors as defaults become the signature's defaults, which TensorFlow Serving fills in.
    defaults = {_K: tf.constant(model.k), _EXCLUDE: tf.constant([[-1]])}
    parameters += [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=value)
        for name, value in defaults.items()
    ]

    def serve(*args):
        *values, k, exclude = args
        inputs = tf.nest.pack_sequence_as(structure, values)
        batch_size = tf.shape(values[0])[0]
        exclude = tf.broadcast_to(exclude, [batch_size, tf.shape(exclude)[1]])
        with stock_ops():
            return model.rank(inputs, k, exclude)

    serve.__signature__ = inspect.Signature(parameters)
    optional = [tf.TensorSpec([], tf.int32, _K), tf.TensorSpec([None, None], tf.int32, _EXCLUDE)]
    return tf.function(serve, input_signature=[*specs, *optional], autograph=False)


def _encoder_inputs(encoder):
    """Names, specs (batch size free) and structure of the encoder's inputs."""
    inputs = getattr(encoder, "inputs", None)
    structure = getattr(encoder, "input", inputs[0] if inputs else None)  # Keras 3's Sequential has no input
    if structure is None:
        raise ValueError(
            "The encoder's inputs are not known: export needs a functional or Sequential encoder that "
            "starts with keras.Input(...). Wrap a subclassed one: keras.Model(inputs, encoder(inputs))."
        )
    tensors = tf.nest.flatten(structure)
    keys = sorted(structure) if isinstance(structure, dict) else [t.name.split(":")[0] for t in tensors]
    if {_K, _EXCLUDE} & set(keys):
        raise ValueError(
            f"Encoder inputs {keys} clash with the signature's own inputs k and exclude: rename."
        )
    specs = [
        tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype, key)
        for tensor, key in zip(tensors, keys, strict=True)
    ]
    return keys, specs, structure


def _lookup_tables(encoder):
    """Resources that an encoder's lookup layers own, which a SavedModel must hold as well."""
    return [layer.lookup_table for layer in layers_of(encoder) if hasattr(layer, "lookup_table")]


def _replace_folder(new, path):
    old = f"{path.rstrip('/')}.old"
    shutil.rmtree(old, ignore_errors=True)
    if os.path.exists(path):
        os.rename(path, old)
    os.rename(new, path)
    shutil.rmtree(old, ignore_errors=True)
