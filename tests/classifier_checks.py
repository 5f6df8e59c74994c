import functools

import numpy as np
import tensorflow as tf
from scipy import special

import tfxc
from tfxc._keras import keras
from tfxc.samplers import MIDX, InBatch, LearnedMIDX, LogUniform, Mixture, Softmax, Uniform, Unigram

DIM, NUM_CLASSES = 6, 25
COUNTS = np.arange(1, NUM_CLASSES + 1)
SAMPLERS = {
    "none": lambda: None,
    "uniform": lambda: Uniform(8),
    "shared": lambda: LogUniform(8, shared=True),
    "unigram": lambda: Unigram(8, counts=COUNTS),
    "in batch": lambda: InBatch(None, counts=COUNTS),
    "midx": lambda: MIDX(8, num_codewords=4),
    "softmax": lambda: Softmax(8),
    "learned midx": lambda: LearnedMIDX(8, num_codewords=4),
    "mixture": lambda: Mixture([MIDX(4, num_codewords=4), Uniform(4, shared=True)]),
}


log_softmax = functools.partial(special.log_softmax, axis=-1)


def dense_encoder(width=DIM):
    return keras.Sequential([keras.Input((DIM,), name="features"), keras.layers.Dense(width)])


def item_encoder(num_items=NUM_CLASSES, masked=True):
    """Histories [B, T] of item ids, 0 for padding, to queries [B, T, D] by a table named items."""
    history = keras.Input((None,), dtype="int32", name="history")
    query = keras.layers.Embedding(num_items + 1, DIM, mask_zero=masked, name="items")(history)
    return keras.Model(history, keras.layers.Dense(DIM)(query))


class Subclassed(keras.Model):
    """An encoder whose inputs are not known, of an array or of a dict with one."""

    def __init__(self, key=None, layer=None):
        super().__init__()
        self.key = key
        self.layer = layer or keras.layers.Dense(DIM)

    def call(self, inputs):
        return self.layer(inputs if self.key is None else inputs[self.key])


def make_model(
    sampler=None, loss=None, head=None, encoder=None, k=5, optimizer=None, metrics=None, **options
):
    head = head or tfxc.layers.DenseHead(NUM_CLASSES, use_bias=True)
    model = tfxc.ExtremeClassifier(encoder or dense_encoder(), head=head, sampler=sampler, k=k)
    optimizer, loss = optimizer or tfxc.optimizers.LazyAdam(0.05), loss or tfxc.losses.SoftmaxCrossentropy()
    model.compile(optimizer, loss=loss, metrics=metrics, **options)
    return model


def features(num, seed=0):
    return np.random.default_rng(seed).normal(size=(num, DIM)).astype(np.float32)


def learnable(num, seed=0, num_classes=NUM_CLASSES):
    x = features(num, seed)
    directions = np.random.default_rng(99).normal(size=(DIM, num_classes))
    return x, np.argmax(x @ directions, axis=1)


def repeated(times, *arrays):
    return [np.concatenate([array] * times) for array in arrays]


def all_logits(model, x):
    """The logits [..., L] of encoder inputs, in float64."""
    return model.head(model.encoder(x, training=False)).numpy().astype(np.float64)


def ranking(logits, k, exclude=None):
    """Ids [N, k], best first, excluded ones passed over."""
    logits = np.array(logits)
    for row, ids in enumerate([] if exclude is None else exclude):
        logits[row, [i for i in ids if i >= 0]] = -np.inf
    return np.argsort(-logits, axis=1, kind="stable")[:, :k]


def weights_of(model):
    parts = [part for part in (model.encoder, model.head, model.sampler) if part is not None]
    return [tf.convert_to_tensor(weight).numpy() for part in parts for weight in part.weights]
