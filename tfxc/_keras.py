"""The one place that knows which Keras is running.

tfxc follows ``tf.keras``: Keras 3 by default, ``tf_keras`` when the environment
sets ``TF_USE_LEGACY_KERAS=1`` (TensorFlow Recommenders needs that one). Every
other module imports ``keras`` and these helpers from here.
"""

import os

import tensorflow as tf

IS_KERAS_3 = os.environ.get("TF_USE_LEGACY_KERAS") not in ("1", "true", "True")

if IS_KERAS_3:
    import keras

    if keras.backend.backend() != "tensorflow":
        raise ImportError(
            f"tfxc runs on Keras's TensorFlow backend, but Keras is configured for "
            f"{keras.backend.backend()!r}. Set KERAS_BACKEND=tensorflow before importing keras."
        )
else:
    import tf_keras as keras

# Keras 3 takes from a compiled loss a replica's share of the mean over all; tf-keras divides itself.
COMPILED_LOSS_IS_A_SHARE = IS_KERAS_3

register = keras.saving.register_keras_serializable(package="tfxc")
unpack_x_y_sample_weight = keras.utils.unpack_x_y_sample_weight


def tf_variable(variable):
    """The ``tf.Variable`` behind a weight (Keras 3 wraps it, tf-keras does not)."""
    return variable.value if IS_KERAS_3 and not isinstance(variable, tf.Variable) else variable


def add_weight(layer, name, shape, initializer="zeros", dtype="float32", trainable=True, aggregation="none"):
    """``layer.add_weight`` without autocast, so mixed precision never casts a whole table."""
    if IS_KERAS_3:
        options = {"autocast": False, "aggregation": aggregation}
    else:
        options = {
            "experimental_autocast": False,
            "aggregation": getattr(tf.VariableAggregation, aggregation.upper()),
        }
    return layer.add_weight(
        name=name,
        shape=shape,
        initializer=initializer,
        dtype=dtype,
        trainable=trainable,
        **options,
    )


def constant(value):
    """An initializer that gives this value: variables must be right from the start, not assigned in build."""

    def initializer(shape, dtype=None):
        return tf.broadcast_to(tf.cast(value, dtype), shape)

    return initializer


def compiled_labels(labels):
    """Labels as a compiled loss or metric gets them, whole numbers again where Keras 3 only builds.

    Under a distribution strategy it first runs loss and metrics on symbols for the mean of the replicas'
    batches, for the shapes alone: there, and only there, integer ids come as floats.
    """
    if not IS_KERAS_3 or not tf.is_tensor(labels) or not labels.dtype.is_floating:
        return labels
    with keras.SymbolicScope() as scope:
        return tf.cast(labels, tf.int32) if scope.original_scope is not None else labels


def adopt_own_loss_and_metrics(model):
    """After ``compile``: what a model with its own loss and ranked ids as predictions needs.

    Keras's loss container and its trackers would never get data; and Keras 3 cannot report metrics that
    training does not update unless they are built.
    """
    if IS_KERAS_3:
        model._compile_loss = None
        model._loss_tracker = None
        if model._compile_metrics is not None:
            ids = tf.zeros([1, 1], tf.int32)
            model._compile_metrics.build(ids, ids)
    else:
        model.compiled_loss = None
