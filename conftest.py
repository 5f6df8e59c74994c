"""The names that docstring examples may use without importing them."""

import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


@pytest.fixture(autouse=True)
def example_names(doctest_namespace):
    """TensorFlow, NumPy, Keras and the package, in every docstring example."""
    import numpy as np
    import tensorflow as tf

    import tfxc
    from tfxc._keras import keras

    doctest_namespace.update({"np": np, "tf": tf, "keras": keras, "tfxc": tfxc})
