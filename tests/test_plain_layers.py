"""Heads, losses and metrics as plain parts of Sequential and functional models, without ExtremeClassifier."""

import classifier_checks as checks
import numpy as np
import pytest
import tensorflow as tf
from long_cases import long_after

import tfxc
from tfxc._keras import IS_KERAS_3, keras
from tfxc.layers import DenseHead, UniformSparseHead
from tfxc.losses import BinaryCrossentropy, SoftmaxCrossentropy, SquaredHinge
from tfxc.metrics import NDCGAtK, RecallAtK

HEADS = {
    "dense": lambda: DenseHead(checks.NUM_CLASSES, use_bias=True),
    "sparse": lambda: UniformSparseHead(checks.NUM_CLASSES, fan_in=8, use_bias=True, seed=1),
}
EVERY_HEAD = pytest.mark.parametrize("name", long_after(1, "dense", "sparse"))


def compiled(head, loss=None, **options):
    hidden = [keras.layers.Dense(32, activation="relu"), keras.layers.Dense(16)]
    model = keras.Sequential([keras.Input((checks.DIM,)), *hidden, head])
    options = {"metrics": [RecallAtK(2)], **options}
    model.compile(tfxc.optimizers.LazyAdam(0.02), loss=loss or SoftmaxCrossentropy(), **options)
    return model


@pytest.mark.traced
@pytest.mark.both_keras
@EVERY_HEAD
def test_a_sequential_model_trains_evaluates_and_is_saved(name, reloaded):
    model, (x, y) = compiled(HEADS[name]()), checks.learnable(128)
    assert model.output_shape == (None, checks.NUM_CLASSES)
    model.fit(*checks.repeated(20, x, y), batch_size=32, verbose=0)
    logits = model(x).numpy().astype(np.float64)
    hit = (checks.ranking(logits, 2) == y[:, np.newaxis]).any(1)
    assert hit.mean() > 0.6
    loaded = reloaded(model)
    np.testing.assert_array_equal(loaded(x), model(x))
    if name != "dense":
        return  # what it is compiled with sees the logits alone
    result = model.evaluate(x, y, return_dict=True, verbose=0)
    want = -checks.log_softmax(logits)[np.arange(128), y].mean()
    np.testing.assert_allclose(result["loss"], want, rtol=1e-4)
    np.testing.assert_allclose(result["recall_at_2"], hit.mean(), rtol=1e-6)
    assert loaded.evaluate(x, y, return_dict=True, verbose=0) == result


@pytest.mark.parametrize("loss", long_after(1, SquaredHinge(), BinaryCrossentropy()), ids=["hinge", "binary"])
def test_several_labels(loss):
    model, labels = compiled(HEADS["dense"](), loss), np.array([[3, -1], [1, 7], [-1, -1], [24, 0]])
    x = checks.features(4)
    want = loss(labels, model(x))
    np.testing.assert_allclose(model.evaluate(x, labels, verbose=0)[0], want, rtol=1e-5)
    if loss.name != "binary_crossentropy":
        return  # Keras differentiates one as the other
    model.fit(*checks.repeated(40, x, labels), batch_size=4, verbose=0)
    assert model.evaluate(x, labels, verbose=0)[1] == 1.0


def test_class_weight_and_sample_weight():
    x, y = checks.features(8), np.array([0, 1, 2, 3, 3, 2, 1, 0])
    by_class = {i: 1.0 + i for i in range(checks.NUM_CLASSES)}
    weights = np.array([by_class[label] for label in y])
    model = compiled(HEADS["dense"](), metrics=[], weighted_metrics=[RecallAtK(2)])
    log_probs = checks.log_softmax(model(x).numpy().astype(np.float64))
    want = np.mean(weights * -log_probs[np.arange(8), y])
    result = model.evaluate(x, y, sample_weight=weights, return_dict=True, verbose=0)
    hit = (checks.ranking(log_probs, 2) == y[:, np.newaxis]).any(1)
    np.testing.assert_allclose(result["loss"], want, rtol=1e-5)
    np.testing.assert_allclose(result["recall_at_2"], np.average(hit, weights=weights), rtol=1e-5)
    history = model.fit(x, y, class_weight=by_class, batch_size=8, verbose=0).history
    np.testing.assert_allclose(history["loss"], want, rtol=1e-5)


@pytest.mark.long
def test_sequences():
    history = np.array([[0, 0, 4, 9], [3, 1, 2, 8], [7, 7, 7, 7]])
    labels = np.array([[5, 6, 9, 1], [1, 2, -1, 0], [7, 7, 3, -1]])
    table = keras.layers.Embedding(10, checks.DIM, mask_zero=True)
    layers = [table, keras.layers.Dense(checks.DIM), DenseHead(checks.NUM_CLASSES)]
    model = keras.Sequential([keras.Input((4,), dtype="int32"), *layers])
    model.compile(tfxc.optimizers.LazyAdam(0.05), SoftmaxCrossentropy(), metrics=[NDCGAtK(3)])
    keep = (history > 0) & (labels >= 0)
    logits = model.predict(history, verbose=0).astype(np.float64)[keep]
    want = -checks.log_softmax(logits)[np.arange(keep.sum()), labels[keep]]
    rank = np.argmax(checks.ranking(logits, checks.NUM_CLASSES) == labels[keep][:, np.newaxis], axis=1)
    ndcg = np.where(rank < 3, 1 / np.log2(rank + 2), 0)
    result = model.evaluate(history, labels, return_dict=True, verbose=0)
    np.testing.assert_allclose([result["loss"], result["ndcg_at_3"]], [want.mean(), ndcg.mean()], rtol=1e-4)
    model.fit(*checks.repeated(30, history, labels), batch_size=3, verbose=0)
    assert model.evaluate(history, labels, verbose=0)[0] < 0.5 * want.mean()


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.both_keras
def test_one_output_of_several():
    inputs, (x, item) = keras.Input((checks.DIM,)), checks.learnable(128)
    query, targets = checks.dense_encoder()(inputs), {"item": item, "price": x[:, :1].copy()}
    heads = DenseHead(checks.NUM_CLASSES, name="item"), keras.layers.Dense(1, name="price")
    model = keras.Model(inputs, {head.name: head(query) for head in heads})
    loss, shares = {"item": SoftmaxCrossentropy(), "price": "mse"}, {"item": 1.0, "price": 0.5}
    options = {"loss_weights": shares, "metrics": {"item": [RecallAtK(1)]}}
    model.compile(tfxc.optimizers.LazyAdam(0.05), loss=loss, **options)
    outputs = {name: output.numpy() for name, output in model(x).items()}
    log_probs = checks.log_softmax(outputs["item"].astype(np.float64))
    of_price = np.square(outputs["price"] - targets["price"]).mean()
    want = -log_probs[np.arange(128), item].mean() + 0.5 * of_price
    result = model.evaluate(x, targets, return_dict=True, verbose=0)
    np.testing.assert_allclose(result["loss"], want, rtol=1e-5)
    model.fit(x, targets, batch_size=16, epochs=10, verbose=0)
    trained = model.evaluate(x, targets, return_dict=True, verbose=0)
    assert trained["item_recall_at_1"] > 0.7 and trained["loss"] < 0.5 * want


@pytest.mark.both_keras
@EVERY_HEAD
def test_mixed_precision_keeps_weights_and_logits_in_float32(name):
    policy = "mixed_bfloat16" if IS_KERAS_3 else keras.mixed_precision.Policy("mixed_bfloat16")
    config = {**HEADS[name]().get_config(), "dtype": policy}
    model = compiled(type(HEADS[name]()).from_config(config))
    assert model(checks.features(2)).dtype == tf.float32
    assert {tf.as_dtype(weight.dtype) for weight in model.trainable_weights} == {tf.float32}
