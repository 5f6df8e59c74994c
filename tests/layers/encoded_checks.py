"""Heads whose class vectors come from features, and what these are to be."""

import numpy as np
import tensorflow as tf
from classifier_checks import dense_encoder

import tfxc
from tfxc import samplers
from tfxc._keras import keras
from tfxc._keras.weights import tf_variable
from tfxc.layers import EncodedHead
from tfxc.losses import SoftmaxCrossentropy

NUM_CLASSES, DIM = 25, 6
FEATURES = np.random.default_rng(7).normal(size=(NUM_CLASSES, 3)).astype(np.float32)


def tower():
    return keras.Sequential([keras.Input((3,), name="price"), keras.layers.Dense(DIM)])


def head_of(item_encoder=None, features=FEATURES, **options):
    head = EncodedHead(item_encoder or tower(), features, **options)
    head.build((None, DIM))
    if head.free_vectors:
        tf_variable(head.free).assign(tf.random.normal([NUM_CLASSES, DIM]))
    return head


def vectors_of(head):
    vectors = head.item_encoder(head.features).numpy()
    return vectors + tf_variable(head.free).numpy() if head.free_vectors else vectors


def model_of(head=None, sampler=None, encoder=None, optimizer=None, class_names=None, **options):
    """A compiled model; by default of ``InBatch``, and of no sampler for ``sampler=False``."""
    head = head or EncodedHead(tower(), FEATURES)
    sampler = samplers.InBatch() if sampler is None else sampler or None
    model = tfxc.ExtremeClassifier(encoder or dense_encoder(), head, sampler, k=3, class_names=class_names)
    optimizer = optimizer or tfxc.optimizers.LazyAdam(0.05)
    model.compile(optimizer, **{"loss": SoftmaxCrossentropy(), **options})
    return model


def check_cache(head):
    """The cached class vectors are those of the present weights and features."""
    np.testing.assert_allclose(tf_variable(head.cache), vectors_of(head), rtol=1e-5)
