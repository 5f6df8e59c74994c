"""The one place that knows which Keras runs, and that touches what Keras keeps to itself.

tfxc follows ``tf.keras``: Keras 3 by default, ``tf_keras`` when the environment sets
``TF_USE_LEGACY_KERAS=1``, which TensorFlow Recommenders needs. All other modules import ``keras`` from here.
The modules of this folder hold whatever the two Keras do differently.
"""

import os

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

# tf-keras saves to a folder in TensorFlow's format when the path does not end in ".keras".
SAVES_TO_FOLDERS = not IS_KERAS_3

register = keras.saving.register_keras_serializable(package="tfxc")
unpack_x_y_sample_weight = keras.utils.unpack_x_y_sample_weight


def refuse_keras_3(what):
    """Raises ValueError under Keras 3, for what only tf-keras can do; ``what`` names it in the error."""
    if IS_KERAS_3:
        raise ValueError(
            f"Keras 3 does not train with {what}. Set the environment variable TF_USE_LEGACY_KERAS=1 before "
            "TensorFlow is imported, and install tf_keras; or train by tfxc.head_loss in a loop of your own."
        )
