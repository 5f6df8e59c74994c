import contextlib

import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import DIM, NUM_CLASSES, SAMPLERS, dense_encoder, features, learnable, make_model
from long_cases import long_after

import tfxc
from tfxc._keras.weights import tf_variable
from tfxc.ops import library

HEADS = {
    "dense": lambda: tfxc.layers.DenseHead(NUM_CLASSES, use_bias=True),
    "sparse": lambda: tfxc.layers.UniformSparseHead(NUM_CLASSES, fan_in=4, seed=1),
    "mach": lambda: tfxc.layers.MACHHead(NUM_CLASSES, 8, 3, seed=1),
    "encoded": lambda: tfxc.layers.EncodedHead(dense_encoder(), features(NUM_CLASSES)),
}


CASES = [("dense", "none", False), ("sparse", "mixture", False), ("mach", "none", True)]
CASES += [("dense", "none", True), ("dense", "in batch", False), ("mach", "none", False)]
CASES = long_after(1, *CASES, ("encoded", "in batch", False), ("dense", "lsh", False))


@pytest.fixture
def checked_numerics():
    tf.debugging.enable_check_numerics()
    yield
    tf.debugging.disable_check_numerics()


@pytest.mark.both_keras
@pytest.mark.traced
@pytest.mark.parametrize(("head", "sampler", "is_stock"), CASES)
def test_training_and_evaluation_mean_their_infinite_numbers(head, sampler, is_stock, checked_numerics):
    sampler = tfxc.samplers.LSH(4) if sampler == "lsh" else SAMPLERS[sampler]()
    x, y = learnable(16)
    left_out = {"features": x, "exclude": np.tile(np.arange(NUM_CLASSES - 3), [16, 1])}
    grouped = tfxc.metrics.NDCGAtK(5, by=np.arange(NUM_CLASSES))  # of groups without a label: NaN
    with library.stock_ops() if is_stock else contextlib.nullcontext():
        model = make_model(sampler, head=HEADS[head](), metrics=[grouped])
        model.fit(x, y, validation_data=(left_out, y), verbose=0)
        best = model.predict(left_out, verbose=0)
        ranked = model.rank(x, 5, exclude=left_out["exclude"])
    for scores, ids in ((best["scores"], best["ids"]), (ranked["scores"], ranked["ids"])):
        assert np.all(np.isneginf(scores) == (np.asarray(ids) < 0)) and np.isneginf(scores)[:, 3:].all()


def test_a_metric_means_infinite_scores(checked_numerics):
    metric = tfxc.metrics.RecallAtK(2)
    metric.update_state([[1, 2]], [[np.nan, 1.0, -np.inf]])
    assert float(metric.result()) == 0.5


@pytest.mark.traced
def test_an_index_means_its_infinite_scores(checked_numerics):
    head = HEADS["dense"]()
    head.build((None, DIM))
    index = tfxc.search.InvertedIndex()
    assert index.tune(head, features(8), k=3) >= 0.95
    best = index.top_k(head.effective_query(features(2)), 3, allow=[[4, 7]])
    assert np.isneginf(best.scores).tolist() == [[False, False, True]] * 2


@pytest.mark.traced
def test_an_export_holds_no_checks(checked_numerics, tmp_path):
    model, index = make_model(head=HEADS["dense"]()), tfxc.search.InvertedIndex()
    index.build_from(model.head)
    model.export(tmp_path, index=index)
    tf.debugging.disable_check_numerics()
    loaded = tf.saved_model.load(str(tmp_path))
    assert loaded.serve(features(2))["ids"].shape == (2, model.k)
    best = loaded.serve(features(2), allow=tf.constant([[1]]))
    assert best["ids"][:, 0].numpy().tolist() == [1, 1] and np.isneginf(best["scores"][:, 1:]).all()


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.parametrize("head", long_after(1, *HEADS))
def test_a_nan_of_training_is_found(head, checked_numerics):
    x, y = learnable(16)
    model = make_model(head=HEADS[head]())
    weight = tf_variable(model.head.trainable_weights[0])
    weight.assign(tf.fill(weight.shape, np.float32(1e38)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="Infinity or NaN"):
        model.fit(x, y, verbose=0)
