import copy
import functools
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
import tensorflow as tf
from classifier_checks import (
    DIM,
    NUM_CLASSES,
    SAMPLERS,
    Subclassed,
    all_logits,
    dense_encoder,
    features,
    item_encoder,
    learnable,
    log_softmax,
    make_model,
    ranking,
    weights_of,
)
from long_cases import long_after

import tfxc
from tfxc._keras import keras
from tfxc.layers import DenseHead, EmbeddingBag
from tfxc.losses import BinaryCrossentropy, SoftmaxCrossentropy
from tfxc.metrics import NDCGAtK, PrecisionAtK, PSPAtK, RecallAtK
from tfxc.samplers import MIDX, Uniform


@pytest.mark.both_keras
def test_the_documented_program():
    num_classes, (x, y) = 50, learnable(32)
    encoder = dense_encoder()
    model = tfxc.ExtremeClassifier(
        encoder,  # any Keras model: inputs -> [B, D] or [B, T, D]
        head=tfxc.layers.DenseHead(num_classes),
        sampler=tfxc.samplers.MIDX(num_negatives=100, num_codewords=64),
        k=10,
    )
    model.compile(
        tfxc.optimizers.LazyAdam(1e-3),
        loss=tfxc.losses.SoftmaxCrossentropy(),
        metrics=[tfxc.metrics.NDCGAtK(10), tfxc.metrics.RecallAtK(10)],
    )
    refresh = tfxc.callbacks.SamplerRefresh()
    history = model.fit(x, y, validation_data=(x, y), callbacks=[refresh], epochs=2, verbose=0).history
    expected = {"loss", "val_loss", "val_ndcg_at_10", "val_recall_at_10", "sampler/index_age"}
    assert set(history) == expected | {"sampler/refresh_seconds", "sampler/refresh_share"}
    assert all(np.isfinite(values).all() and len(values) == 2 for values in history.values())
    predicted = model.predict(x, verbose=0)
    assert predicted["ids"].shape == predicted["scores"].shape == (32, 10)
    assert predicted["ids"].dtype == np.int32 and predicted["scores"].dtype == np.float32


@pytest.mark.parametrize(
    ("name", "loss"), [("none", SoftmaxCrossentropy()), ("midx", BinaryCrossentropy())], ids=["none", "midx"]
)
def test_evaluation_is_exact_and_draws_nothing(loss, name):
    rows = [[3], [1, 7, 7], [], [24, 0], [5], [2, 4]]
    padded = tf.ragged.constant(rows, tf.int32).to_tensor(-1).numpy()
    x, weights = features(6), np.array([1, 2, 0.5, 0, 3, 1.0])
    model = make_model(SAMPLERS[name](), loss, metrics=[NDCGAtK(4), RecallAtK(7)])
    before = weights_of(model)
    logits = all_logits(model, x)
    values = []
    for row, positives in zip(logits, [sorted(set(row)) for row in rows], strict=True):
        if loss.name == "binary_crossentropy":
            values.append(np.logaddexp(0, row).sum() - row[positives].sum())
        else:
            values.append(-np.mean(log_softmax(row)[positives]) if positives else 0.0)
    got = model.evaluate(x, padded, batch_size=4, return_dict=True, verbose=0)
    np.testing.assert_allclose(got["loss"], np.mean(values), rtol=1e-5)
    ids = ranking(logits, 7)
    recall, ndcg = [], []
    for row, best in zip(rows, ids, strict=True):
        hit = np.isin(best, row)
        if row:
            ideal = (1 / np.log2(np.arange(2, 6)))[: len(set(row))].sum()
            ndcg.append((hit[:4] / np.log2(np.arange(2, 6))).sum() / ideal)
            recall.append(hit.sum() / len(set(row)))
    np.testing.assert_allclose(got["ndcg_at_4"], np.mean(ndcg), rtol=1e-5)
    np.testing.assert_allclose(got["recall_at_7"], np.mean(recall), rtol=1e-5)
    weighted = model.evaluate(x, padded, batch_size=4, sample_weight=weights, return_dict=True, verbose=0)
    np.testing.assert_allclose(weighted["loss"], np.mean(weights * values), rtol=1e-5)
    for old, new in zip(before, weights_of(model), strict=True):
        np.testing.assert_array_equal(old, new)  # the sampler's counter too


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.parametrize("form", long_after(1, "sparse", "ragged"))
def test_metrics_of_labels_whose_width_a_graph_does_not_know(form):
    """Keras 3 knows the size of these batches, as they fill the epoch."""
    x, rows = features(8), [[3], [1, 7], [2, 4, 9], [24]] * 2
    ragged = tf.ragged.constant(rows, tf.int32)
    labels = {"ragged": ragged, "sparse": ragged.to_sparse()}[form]
    metrics = [NDCGAtK(4), PSPAtK(4, np.linspace(0.1, 1, NUM_CLASSES))]
    model = make_model(metrics=metrics)
    want = model.evaluate(x, ragged.to_tensor(-1).numpy(), batch_size=4, verbose=0)
    np.testing.assert_allclose(model.evaluate(x, labels, batch_size=4, verbose=0), want, rtol=1e-6)
    history = model.fit(x, labels, batch_size=4, validation_data=(x, labels), verbose=0).history
    for metric in metrics:
        assert np.isfinite(history[f"val_{metric.name}"]).all()


def test_predict_ranks_all_classes_and_passes_over_the_excluded():
    model, x = make_model(SAMPLERS["midx"](), metrics=[RecallAtK(3)]), features(7)
    exclude = np.random.default_rng(0).integers(-1, NUM_CLASSES, size=(7, 4))
    logits = all_logits(model, x)
    predicted = model.predict(x, batch_size=3, verbose=0)
    np.testing.assert_array_equal(predicted["ids"], ranking(logits, 5))
    scores = np.take_along_axis(logits, ranking(logits, 5), 1)
    np.testing.assert_allclose(predicted["scores"], scores, rtol=1e-4)
    inputs = {"features": x, "exclude": exclude}
    ids = ranking(logits, 5, exclude)
    np.testing.assert_array_equal(model.predict(inputs, batch_size=3, verbose=0)["ids"], ids)
    labels = ids[:, 2]  # third best of what is left
    recall = model.evaluate(inputs, labels, batch_size=3, return_dict=True, verbose=0)["recall_at_3"]
    assert recall == 1.0 > model.evaluate(x, labels, return_dict=True, verbose=0)["recall_at_3"]
    with pytest.raises(tf.errors.InvalidArgumentError, match="excluded class id is outside"):
        model.evaluate({"features": x, "exclude": exclude + NUM_CLASSES}, labels, verbose=0)


def test_rank_takes_lists_and_ragged_filters():
    model, x = make_model(), features(2)
    for name in ("exclude", "allow"):
        ragged = model.rank(x, 2, **{name: tf.ragged.constant([[3, 8, 2], [4]])})["ids"]
        np.testing.assert_array_equal(ragged, model.rank(x, 2, **{name: [[3, 8, 2], [4, -1, -1]]})["ids"])
    np.testing.assert_array_equal(model.rank(x.tolist(), 4)["ids"], model.rank(x, 4)["ids"])
    best = ranking(all_logits(model, x), 1)
    inputs = {"features": x.tolist(), "exclude": best.tolist()}
    np.testing.assert_array_equal(model.rank(inputs, 4)["ids"], ranking(all_logits(model, x), 4, best))
    with pytest.raises(ValueError, match=r"exclude both among the inputs and beside them: .* \[B, X\]"):
        model.rank(inputs, 4, exclude=[[3]])
    words = keras.layers.TextVectorization(vocabulary=["red", "rose"], output_mode="multi_hot")
    texts = keras.Sequential([keras.Input((), dtype="string"), words, keras.layers.Dense(DIM)])
    assert make_model(encoder=texts).rank(["red rose"], 2)["ids"].shape == (1, 2)


@pytest.mark.traced
def test_rank_is_one_graph_for_every_k_and_filter():
    model, x = make_model(), features(7)
    logits, allow = all_logits(model, x), [[3, 8, 2]]
    for k in (1, 2, NUM_CLASSES):
        np.testing.assert_array_equal(model.rank(x, k)["ids"], ranking(logits, k))
    ranked = model._ranking.value
    assert ranked.experimental_get_tracing_count() == 1
    got = model.rank(tf.constant(x[:2]), tf.constant(2), exclude=[[8], [2]], allow=allow)["ids"].numpy()
    for row, (ids, out) in enumerate(zip(got, (8, 2), strict=True)):
        assert ids.tolist() == sorted(set(allow[0]) - {out}, key=lambda i: -logits[row, i])
    model.head.set_weights([-weight for weight in model.head.get_weights()])
    np.testing.assert_array_equal(model.rank(x, 4)["ids"], ranking(-logits, 4))  # by the weights of now
    with pytest.raises(ValueError, match=r"k must be an integer in \[1, 25\]"):
        model.rank(x, 26)
    with pytest.raises(ValueError, match=r"k must be an int or an integer scalar tensor, but got 2\.5"):
        model.rank(x, 2.5)


@pytest.mark.traced
def test_rank_filters_by_attributes_in_one_graph():
    model, x = make_model(), features(3)
    attributes = tfxc.search.Attributes({"kind": np.arange(NUM_CLASSES) % 5, "price": np.arange(25.0)})
    for where, passes in (
        ({"where_kind": [[1, 3]]}, np.isin(np.arange(25) % 5, [1, 3])),
        ({"where_kind": [[2]], "where_price_max": [[12]]}, (np.arange(25) % 5 == 2) & (np.arange(25) <= 12)),
        ({}, np.ones(25, bool)),
    ):
        logits = np.where(passes, all_logits(model, x), -np.inf)
        best = ranking(logits, 5)
        want = np.where(np.take_along_axis(logits, best, 1) > -np.inf, best, -1)
        np.testing.assert_array_equal(model.rank(x, 5, attributes=attributes, **where)["ids"], want)
    assert model._ranking.value.experimental_get_tracing_count() <= 3


@pytest.mark.long
def test_batches_one_by_one_read_class_vectors_of_now():
    encoder = keras.Sequential([keras.Input((3,)), keras.layers.Dense(DIM)])
    head = tfxc.layers.EncodedHead(encoder, np.random.default_rng(1).normal(size=(NUM_CLASSES, 3)))
    model, x, y = make_model(head=head), features(20), np.arange(20)
    for use in (lambda x: model.rank(x, 5), model.predict_on_batch, model):
        model.train_on_batch(x, y)
        ids = use(x)["ids"]
        np.testing.assert_array_equal(ids, model.predict(x, verbose=0)["ids"])
        model.train_on_batch(x, y)
        loss = model.test_on_batch(x, y)
        loss = loss[0] if isinstance(loss, list) else loss
        np.testing.assert_allclose(loss, model.evaluate(x, y, verbose=0), rtol=1e-5)


def test_another_k_and_number_of_probes_count_after_the_first_time():
    head = tfxc.layers.MACHHead(NUM_CLASSES, 20, 2, num_probes=1, seed=0)  # few classes stand in a bucket
    model, x = make_model(head=head, metrics=[RecallAtK(5)]), features(20)
    y = head.top_k(model.queries(x), 5, num_probes=5).ids[:, 4].numpy()
    probed = model.predict(x, verbose=0)["ids"], model.rank(x, 5)["ids"], model.evaluate(x, y, verbose=0)
    model.head.num_probes, model.k = None, 7
    exact = model.predict(x, verbose=0)["ids"], model.rank(x, 5)["ids"], model.evaluate(x, y, verbose=0)
    assert exact[0].shape == (20, 7)
    np.testing.assert_array_equal(exact[0][:, :5], exact[1])
    np.testing.assert_array_equal(exact[1], head.top_k(model.queries(x), 5).ids)
    assert (exact[1].numpy() != probed[1].numpy()).any() and exact[2] != probed[2]


@pytest.mark.both_keras
def test_every_form_of_labels_trains_alike():
    ragged = tf.ragged.constant([[3], [1, 7], [], [24, 0, 2]], tf.int64)
    padded = ragged.to_tensor(-1)

    def trained(labels):
        keras.utils.set_random_seed(1)
        model = make_model(Uniform(4), BinaryCrossentropy())
        data = tf.data.Dataset.from_tensors((features(4), labels))
        model.fit(data, verbose=0)
        return [*weights_of(model), model.evaluate(data, verbose=0)]

    wanted = trained(padded)
    for labels in (ragged, ragged.to_sparse(), tf.cast(padded, tf.int16)):
        for one, two in zip(trained(labels), wanted, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-6, err_msg=type(labels).__name__)


@pytest.mark.long
def test_labels_may_change_their_form():
    """Keras then traces one step for all: the rank of the labels is not known in it."""
    model, x, y = make_model(Uniform(4)), features(4), np.arange(4)
    losses = [model.evaluate(x, labels, verbose=0) for labels in (y, y[:, np.newaxis], np.stack([y, y], 1))]
    np.testing.assert_allclose(losses, losses[:1] * 3, rtol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="one-hot or multi-hot"):
        model.evaluate(x, np.eye(NUM_CLASSES, dtype=int)[:4], verbose=0)
    history = np.array([[1, 2], [3, 4]])
    model = make_model(Uniform(4), encoder=item_encoder())
    for labels in (history, history[:, :, np.newaxis], np.stack([history, history], 2)):
        assert np.isfinite(model.fit(history, labels, verbose=0).history["loss"][0])


HISTORY = np.array([[0, 0, 4, 9], [3, 1, 2, 8], [7, 7, 7, 7]])
NEXT = np.array([[5, 6, 9, 1], [1, 2, -1, 0], [7, 7, 3, -1]])


@pytest.mark.long
@pytest.mark.both_keras
def test_sequences():
    history, labels, encoder = HISTORY, NEXT, item_encoder()
    model = make_model(SAMPLERS["shared"](), encoder=encoder, metrics=[RecallAtK(4)], run_eagerly=True)
    keep = (history > 0) & (labels >= 0)
    logits = all_logits(model, history)[keep]
    values = -log_softmax(logits)[np.arange(keep.sum()), labels[keep]]
    # In batches of 2 and 1, which differ in how many positions count: each counts alike.
    options = {"batch_size": 2, "return_dict": True, "verbose": 0}
    got = model.evaluate(history, labels, **options)
    np.testing.assert_allclose(got["loss"], values.mean(), rtol=1e-5)
    hit = (ranking(logits, 4) == labels[keep][:, np.newaxis]).any(1)
    np.testing.assert_allclose(got["recall_at_4"], hit.mean(), rtol=1e-6)
    weights = np.array([0.5, 2.0, 1.0])
    weighted = model.evaluate(history, labels, sample_weight=weights, **options)
    rows = np.nonzero(keep)[0]
    np.testing.assert_allclose(weighted["loss"], (weights[rows] * values).mean(), rtol=1e-5)
    last = model.predict(history, verbose=0)["ids"]
    np.testing.assert_array_equal(last, ranking(all_logits(model, history)[:, -1], 5))
    padded_right = model.predict(np.array([[4, 9, 0, 0]]), verbose=0)["ids"]
    np.testing.assert_array_equal(padded_right, ranking(all_logits(model, np.array([[4, 9]]))[:, -1], 5))
    exclude = {"history": history, "exclude": np.array([[1, -1], [2, 3], [-1, -1]])}
    assert 1 not in model.predict(exclude, verbose=0)["ids"][0]
    model.evaluate(exclude, labels, verbose=0)


@pytest.mark.parametrize("name", ["midx", "none"])
def test_sequences_train(name):
    model = make_model(SAMPLERS[name](), encoder=item_encoder())
    several = np.stack([NEXT, np.roll(NEXT, 1)], axis=-1)
    assert np.isfinite(model.fit(HISTORY, several, verbose=0).history["loss"][0])
    assert model.fit(HISTORY, np.full_like(several, -1), verbose=0).history["loss"] == [0.0]


def test_fewer_classes_than_k():
    head = DenseHead(5)
    model = tfxc.ExtremeClassifier(dense_encoder(), head)  # k=10
    model.compile("sgd", loss=SoftmaxCrossentropy(), metrics=[RecallAtK(10), PrecisionAtK(10)])
    x, y = features(4), np.array([0, 4, 2, 2])
    assert model.k == 10 and model.predict(x, verbose=0)["ids"].shape == (4, 5)
    result = model.evaluate(x, y, return_dict=True, verbose=0)
    assert result["recall_at_10"] == 1 and result["precision_at_10"] == pytest.approx(0.1)


def ways_to_take_labels(model):
    def validate(x, y):
        return model.fit(x, np.arange(2), validation_data=(x, y), verbose=0)

    fit, evaluate = functools.partial(model.fit, verbose=0), functools.partial(model.evaluate, verbose=0)
    return fit, evaluate, validate, model.train_on_batch, model.test_on_batch


model_of_all = functools.cache(make_model)


OF_FRAMES = [pd.Series([3, 1], [9, 8], dtype) for dtype in ("Int64", "int64[pyarrow]")]
OF_FRAMES += [OF_FRAMES[0].astype("category"), pa.chunked_array([[3], [1]])]


@pytest.mark.parametrize("labels", [pa.array([3, 1]), *long_after(0, *OF_FRAMES)])
def test_labels_of_arrow_and_of_every_pandas_type_of_integers(labels):
    model, x = model_of_all(), features(2)
    assert model.evaluate(x, labels, verbose=0) == model.evaluate(x, np.array([3, 1]), verbose=0)
    for step in ways_to_take_labels(model):
        step(x, labels)


@pytest.mark.parametrize(
    ("labels", "what"),
    [
        (np.array(["tea", "rum"]), "strings"),
        (np.array(["tea", "rum"], object), "strings"),
        (["tea", "rum"], "strings"),
        ([["tea"], ["rum"]], "strings"),
        (pd.Series(["tea", "rum"], dtype=object), "strings"),
        (pd.Series(["tea", "rum"], dtype="category"), "strings"),
        ([[1, 2], [3]], "a list of int"),
        ((1, 2), "a tuple of int"),
        (list(np.arange(2)), "a list of int64"),
        ([[], [3]], "a list of list"),
        (pd.Series([[1, 2], [3]]), "objects such as list"),
        (pd.Series([np.arange(2), np.arange(1)]), "objects such as ndarray"),
        (np.array([2, None]), "objects such as int"),
    ],
)
def test_labels_that_are_names_or_no_array_are_refused(labels, what):
    remedy = r"turn .*tfxc\.data\.Vocabulary" if what == "strings" else "pass np.array.*tf.ragged.constant"
    for step in ways_to_take_labels(make_model()):
        with pytest.raises(ValueError, match=f"but are {what}: {remedy}"):
            step(features(2), labels)


def test_a_dataset_is_taken_without_a_warning():
    dataset = tf.data.Dataset.from_tensor_slices((features(4), np.arange(4))).batch(2)
    with warnings.catch_warnings(action="error"):
        make_model().fit(dataset, verbose=0)


ZEROS = np.zeros(4, int)


@pytest.mark.parametrize(
    ("y", "weights", "message"),
    [
        (np.eye(NUM_CLASSES)[:4], None, "integer class ids, but have dtype float"),
        (np.zeros((4, 2, 2), int), None, r"need labels of shape \[B\] or \[B, P\]"),
        (np.eye(NUM_CLASSES, dtype=int)[:4], None, "one-hot or multi-hot"),
        (np.zeros((4, 2), int), np.ones((4, 2)), "a number for each example"),
        ({"label": ZEROS}, None, r"one array of class ids, but are a dict of \['label'\]: pass that"),
        ((ZEROS, ZEROS), None, "one array of class ids, but are a tuple of 2 tensors"),
        (ZEROS, {"features": np.ones(4)}, r"sample_weight must be an array.* a dict of \['features'\]"),
    ],
)
def test_labels_and_weights_of_another_form_are_refused(y, weights, message):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=message):
        make_model().fit(features(4), y, sample_weight=weights, verbose=0)


@pytest.mark.both_keras
@pytest.mark.parametrize("form", [list, tuple, lambda weights: pd.Series(weights, dtype="Float64"), pa.array])
def test_weights_may_come_as_lists_and_of_data_frames(form):
    x, y, weights = features(4), np.arange(4), np.linspace(0, 2, 4, dtype=np.float32)
    model, given = make_model(run_eagerly=True), form(weights.tolist())
    want = model.evaluate(x, y, sample_weight=weights, verbose=0)
    assert model.evaluate(x, y, sample_weight=given, verbose=0) == want
    assert model.test_on_batch(x, y, given) == pytest.approx(want)
    assert model.train_on_batch(x, y, given) == pytest.approx(want)
    model.fit(x, y, sample_weight=given, validation_data=(x, y, given), verbose=0)


@pytest.mark.both_keras
def test_metrics_are_weighted_by_fractions():
    x, y, weights = features(40), np.arange(40) % NUM_CLASSES, np.linspace(0, 0.9, 40, dtype=np.float32)
    metrics = {"metrics": [RecallAtK(5)], "weighted_metrics": [RecallAtK(5, name="weighted")]}
    model = make_model(**metrics)
    found = model.evaluate(x, y, sample_weight=weights, batch_size=16, verbose=0, return_dict=True)
    hit = (model.predict(x, verbose=0)["ids"] == y[:, np.newaxis]).any(1)
    assert found["recall_at_5"] == pytest.approx(hit.mean(), rel=1e-5)
    assert found["weighted"] == pytest.approx(np.sum(hit * weights) / weights.sum(), rel=1e-5)


@pytest.mark.both_keras
@pytest.mark.parametrize("name", ["metrics", "weighted_metrics"])
def test_a_single_metric_is_a_list_of_one_and_without_metrics_there_are_none_of_before(name, reloaded):
    model, x, y = make_model(**{name: RecallAtK(5)}, run_eagerly=True), features(4), np.arange(4)
    for one in (model, reloaded(model)):
        assert set(one.evaluate(x, y, return_dict=True, verbose=0)) == {"loss", "recall_at_5"}
    model.compile("sgd", loss=SoftmaxCrossentropy())
    assert set(model.evaluate(x, y, return_dict=True, verbose=0)) == {"loss"}
    assert [metric.name for metric in model.metrics] == ["loss"]


def test_what_is_refused_comes_with_its_remedy():
    model = make_model()
    with pytest.raises(ValueError, match=r"call compile\(\.\.\.\) before fit"):
        tfxc.ExtremeClassifier(dense_encoder(), DenseHead(NUM_CLASSES)).fit(features(4), np.arange(4))
    for loss in ("sparse_categorical_crossentropy", keras.losses.BinaryCrossentropy(), None):
        with pytest.raises(ValueError, match=r"one of tfxc\.losses"):
            model.compile("sgd", loss=loss)
    with pytest.raises(ValueError, match="k must be an integer of at least 1, but got 0"):
        make_model(k=0)
    with pytest.raises(ValueError, match="needs labels"):
        make_model().fit(features(4), verbose=0)
    encoder, head = dense_encoder(), DenseHead(3)
    for parts, message in [
        ((None, head), "encoder must be a Keras model.* but got None"),
        ((encoder, 3), "head must be one of tfxc.layers.* but got 3"),
        ((encoder, DenseHead), "head must be one of tfxc.layers"),
        ((encoder, head, tfxc.samplers.MIDX), "sampler must be None or one of tfxc.samplers"),
        ((encoder, head, None, 5, ["a", "b"]), "Got 2 class_names for a head of 3"),
        ((encoder, head, None, 5, "abc"), "class_names must be a list of names in the order .* but are str"),
        ((encoder, head, None, 5, ["a", None]), "class_names hold none for class 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            tfxc.ExtremeClassifier(*parts)
    # Several titles may be alike, as real labels are.
    assert tfxc.ExtremeClassifier(encoder, head, class_names=["painting"] * 3).class_names


@pytest.mark.parametrize("name", ["midx", "none"])
def test_batch_of_one_and_one_class(name):
    sampler = None if name == "none" else MIDX(3, num_codewords=2)
    model = make_model(sampler, head=DenseHead(1), k=1, metrics=[RecallAtK(1)], run_eagerly=True)
    callbacks = [tfxc.callbacks.SamplerRefresh()] if sampler else []
    history = model.fit(features(3), np.zeros(3, int), batch_size=1, callbacks=callbacks, verbose=0)
    # Every one of the three draws is the positive: one of four equal candidates, and no gradient.
    want = 0 if sampler is None else np.log(4)
    np.testing.assert_allclose(history.history["loss"], want, atol=1e-6)
    assert model.predict(features(1), verbose=0)["ids"].tolist() == [[0]]
    np.testing.assert_allclose(model.evaluate(features(1), np.zeros(1, int), verbose=0), [0, 1], atol=1e-6)


@pytest.mark.long
@pytest.mark.both_keras
@pytest.mark.parametrize(
    "form", long_after(1, scipy.sparse.csr_matrix, tf.sparse.from_dense, scipy.sparse.coo_array)
)
def test_sparse_inputs_of_a_subclassed_encoder(form):
    encoder, x = Subclassed(layer=EmbeddingBag(6, DIM)), form(np.eye(6, dtype=np.float32))
    model = make_model(encoder=encoder)
    model.fit(x, np.arange(6), batch_size=2, verbose=0, shuffle=False)
    np.testing.assert_array_equal(model.rank(x, 3)["ids"], model.predict(x, verbose=0)["ids"][:, :3])


class Sum(keras.layers.Layer):
    def call(self, first, second=None):
        return first if second is None else first + second

    def compute_output_spec(self, first, second=None):
        return keras.KerasTensor(first.shape, first.dtype)


@pytest.mark.long
def test_an_optional_input_may_be_none():
    x, y = learnable(8)
    first, second = keras.Input((DIM,), name="first"), keras.Input((DIM,), name="also", optional=True)
    query = keras.layers.Dense(DIM)(Sum()(first, second))
    model = make_model(Uniform(4), encoder=keras.Model({"first": first, "also": second}, query))
    inputs = {"first": x, "also": None}  # in the order of names, None comes first
    assert np.isfinite(model.fit(inputs, y, verbose=0).history["loss"]).all()
    logits = log_softmax(all_logits(model, inputs))
    want = -logits[np.arange(8), y].mean()
    np.testing.assert_allclose(model.evaluate(inputs, y, verbose=0), want, rtol=1e-5)
    np.testing.assert_array_equal(model.predict(inputs, verbose=0)["ids"], ranking(logits, 5))
    np.testing.assert_array_equal(model.rank(inputs, 5)["ids"], ranking(logits, 5))

    class Bare(keras.Model):
        def call(self, inputs):
            return inputs["first"] if inputs["also"] is None else inputs["also"]

    assert make_model(encoder=Bare()).predict(inputs, verbose=0)["ids"].shape == (8, 5)
    assert np.isfinite(make_model(encoder=Bare()).fit(inputs, y, verbose=0).history["loss"]).all()


@pytest.mark.both_keras
def test_ragged_inputs_of_a_subclassed_encoder():
    class Mean(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(DIM)

        def call(self, bags):
            return self.dense(tf.reduce_mean(bags, 1))

    model = make_model(encoder=Mean())
    bags = tf.RaggedTensor.from_row_lengths(np.random.default_rng(0).normal(size=(9, 3)), [2, 3, 4])
    history = model.fit(tf.cast(bags, tf.float32), np.arange(3), verbose=0)
    assert np.isfinite(history.history["loss"]).all()


@pytest.mark.both_keras
def test_an_optimizer_given_by_name_keeps_its_learning_rate(reloaded):
    model = make_model(optimizer="adam")
    model.optimizer.learning_rate = 0.125
    loaded = reloaded(model)
    assert float(tf.convert_to_tensor(loaded.optimizer.learning_rate)) == 0.125


@pytest.mark.both_keras
def test_class_names_are_the_models_own_and_kept_with_it(reloaded):
    names = [f"clase {i}ñ" for i in range(NUM_CLASSES)]
    for given in (list(names), np.array(names), pd.Series(names, index=range(NUM_CLASSES)[::-1])):
        model = tfxc.ExtremeClassifier(dense_encoder(), DenseHead(NUM_CLASSES), class_names=given)
        given[3] = "another"
        assert [model.class_names[i] for i in range(NUM_CLASSES)] == names
    assert reloaded(model).class_names == names
    assert copy.deepcopy(model).class_names == names
    assert names[3] not in str(model.get_config())


def test_the_query_is_prepared_once_a_step(monkeypatch):
    calls, query = [], DenseHead.effective_query
    monkeypatch.setattr(DenseHead, "effective_query", lambda *given: calls.append(1) or query(*given))
    model = make_model(Uniform(3), run_eagerly=True)
    model.train_on_batch(features(4), tf.zeros([4], tf.int32))
    assert len(calls) == 1
