import numpy as np
import tensorflow as tf

from tfxc._keras import keras
from tfxc.optimizers import LazySGD


def test_equals_keras_sgd_on_sparse_and_dense_gradients():
    rng = np.random.default_rng(0)
    ours = [tf.Variable(tf.ones([5, 3])), tf.Variable(tf.ones([2])), tf.Variable(1.0)]
    theirs = [tf.Variable(variable) for variable in ours]
    optimizers = [LazySGD(0.1), keras.optimizers.SGD(0.1)]
    for _ in range(4):
        gradients = [
            tf.IndexedSlices(tf.constant(rng.normal(size=(4, 3)), tf.float32), tf.constant([3, 0, 3, 3])),
            tf.constant(rng.normal(size=2), tf.float32),
            tf.constant(rng.normal(), tf.float32),
        ]
        for optimizer, variables in zip(optimizers, (ours, theirs), strict=True):
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
    for variable, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(variable.numpy(), other.numpy(), rtol=1e-5)
