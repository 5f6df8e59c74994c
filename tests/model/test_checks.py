import contextlib
import re
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import DIM, NUM_CLASSES, dense_encoder, features, learnable, make_model, weights_of

import tfxc
from tfxc import layers, losses, optimizers
from tfxc._keras import IS_KERAS_3, keras
from tfxc.losses import SoftmaxCrossentropy
from tfxc.metrics import CoverageAtK, NDCGAtK, PSPAtK
from tfxc.model.checks import require_finite, require_finite_step
from tfxc.samplers import (
    DNS,
    LSH,
    MIDX,
    RFF,
    HardNegatives,
    InBatch,
    LogUniform,
    SearchedHardNegatives,
    Softmax,
    Sphere,
    Uniform,
    Unigram,
)

BIASES = {"use_bias": True, "bias_initializer": keras.initializers.Constant(-1.0)}


@pytest.mark.long
@pytest.mark.traced
def test_xla_is_switched_off_with_a_warning():
    with pytest.warns(UserWarning, match="jit_compile=True has no effect"):
        model = make_model(Uniform(4), jit_compile=True)
    model.fit(features(4), np.arange(4), verbose=0)


POOR = {  # by loss, what ranks no better than Unigram draws
    SoftmaxCrossentropy: {"RFF", "InBatch(4)"},
    partial(SoftmaxCrossentropy, "partition"): {"RFF", "InBatch(4)", "DNS", "Sphere"},
    losses.SoftmaxAtK: {"RFF", "InBatch(4)", "Sphere"},
    losses.BinaryCrossentropy: {"RFF", "InBatch(4)", "DNS", "LSH", "Sphere", "SearchedHardNegatives"},
    losses.GBCE: {"RFF", "InBatch(4)", "DNS", "LSH", "Sphere", "HardNegatives", "LogUniform"},
    losses.SquaredHinge: {"RFF", "InBatch(4)", "LSH", "Sphere", "SearchedHardNegatives", "MIDX", "Softmax"},
}
DRAWS = {
    "InBatch(4)": InBatch(4),
    "DNS": DNS(4, num_candidates=8),
    "HardNegatives": HardNegatives(2, 2),
    "SearchedHardNegatives": SearchedHardNegatives(2, 2),
    **{kind.__name__: kind(4) for kind in (LSH, RFF, Sphere, MIDX, LogUniform, Softmax, Unigram)},
    "InBatch()": InBatch(),
}


@pytest.mark.parametrize("sampler", DRAWS)
@pytest.mark.parametrize("loss", POOR)
def test_draws_that_train_poorly_are_warned_of(sampler, loss, recwarn):
    make_model(DRAWS[sampler], loss(), head=layers.DenseHead(NUM_CLASSES, **BIASES))
    expected = [True] * (sampler in POOR[loss])
    assert ["no better than one of Unigram" in str(warning.message) for warning in recwarn] == expected


@pytest.mark.parametrize("sampler", DRAWS)
def test_a_sparse_head_is_warned_of_draws_from_its_projections(sampler, recwarn):
    make_model(DRAWS[sampler], head=layers.UniformSparseHead(NUM_CLASSES, fan_in=4, **BIASES))
    assert len(recwarn) == (sampler in {"LSH", "RFF", "Sphere", "SearchedHardNegatives", "InBatch(4)"})


@pytest.mark.parametrize(
    "loss, sampler, start",
    [
        (losses.BinaryCrossentropy(), MIDX(4), r"was 47 .*np.log\(labels_per_query / num_classes\)\)"),
        (losses.SquaredHinge(), None, r"was 57 .*Constant\(-1.0\)"),
        (losses.GBCE(), None, "num_classes"),
        (losses.GBCE(), MIDX(4), None),
        (SoftmaxCrossentropy(), MIDX(4), None),
    ],
)
@pytest.mark.parametrize("biases", [{}, {"use_bias": True}, BIASES])
@pytest.mark.parametrize("make", [layers.DenseHead, partial(layers.UniformSparseHead, fan_in=4)])
def test_biases_that_start_at_0_are_warned_of(make, biases, loss, sampler, start, recwarn):
    make_model(sampler, loss, head=make(NUM_CLASSES, **biases))
    found = [str(warning.message) for warning in recwarn if "do not start there" in str(warning.message)]
    assert len(found) == (start is not None and biases is not BIASES)
    assert all(re.search(start, own) for own in found)


def test_biases_of_buckets_are_warned_of_and_those_that_have_trained_are_not(recwarn):
    model = make_model(None, head=layers.DenseHead(NUM_CLASSES, use_bias=True))
    model.head.bias.assign(np.full(NUM_CLASSES, -2.0))
    model.compile("adam", losses.BinaryCrossentropy())
    assert not len(recwarn)
    for options in ({}, {"bias_initializer": BIASES["bias_initializer"]}):
        head = layers.MACHHead(NUM_CLASSES, 5, 2, activation="sigmoid", **options)
        make_model(None, losses.BinaryCrossentropy(), head=head)
    (told,) = [str(warning.message) for warning in recwarn]
    assert "labels_per_query / num_buckets" in told and "use_bias" not in told  # buckets always have biases


def test_a_model_that_refused_an_optimizer_is_not_trained_by_it():
    model = make_model(Uniform(4))
    with pytest.raises(ValueError, match="scales the loss, as under the mixed_float16 policy"):
        model.compile(keras.optimizers.SGD(1.0, loss_scale_factor=128.0), loss=SoftmaxCrossentropy())
    with pytest.raises(ValueError, match="call compile"):
        model.fit(features(4), np.arange(4), verbose=0)


@pytest.mark.both_keras
def test_an_optimizer_from_outside_of_the_scope_is_refused():
    optimizer, keras_own = optimizers.LazyAdam(), keras.optimizers.Adam()
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = make_model()
    refused = pytest.raises(ValueError, match="not made in the scope of the model's MirroredStrategy: make")
    with refused:
        model.compile(optimizer, loss=SoftmaxCrossentropy())
    with refused if IS_KERAS_3 else contextlib.nullcontext():
        model.compile(keras_own, loss=SoftmaxCrossentropy())


@pytest.mark.both_keras
def test_class_weights_are_refused():
    model = make_model()
    with pytest.raises(ValueError, match=r"sample_weight=weights\[labels\]"):  # the tenth argument
        model.fit(features(4), np.arange(4), 4, 1, 0, None, 0.0, None, True, {0: 2.0})
    for train in (model.fit, model.train_on_batch):
        with pytest.raises(ValueError, match=r"sample_weight=weights\[labels\]"):
            train(features(4), np.arange(4), class_weight={0: 2.0})


def test_metrics_that_do_not_take_ranked_ids_are_refused():
    model, other = make_model(), r"must be of tfxc\.metrics.* got .*(accur|AUC).*PrecisionAtK\(1\)"
    for name in ("metrics", "weighted_metrics"):
        for given, message in (
            ("accuracy", other),
            ([keras.metrics.AUC()], other),
            ([NDCGAtK(5, name="loss")], "hold a metric called 'loss', which would hide"),
            ({"ids": NDCGAtK(5)}, r"must be a list, \[NDCGAtK\(10\)\], but got .'ids'"),
        ):
            with pytest.raises(ValueError, match=f"^{name} {message}"):
                model.compile("sgd", loss=SoftmaxCrossentropy(), **{name: given})


@pytest.mark.both_keras
@pytest.mark.parametrize("argument", ["metrics", "weighted_metrics"])
def test_metrics_of_other_classes_are_refused(argument):
    for metric in (CoverageAtK(5, num_classes=40), PSPAtK(3, np.full(NUM_CLASSES + 1, 0.5))):
        message = rf"{metric.name} is made for {metric.num_classes} classes, but the head has {NUM_CLASSES}"
        with pytest.raises(ValueError, match=message):
            make_model().compile("adam", SoftmaxCrossentropy(), **{argument: [metric]})
    make_model(metrics=[CoverageAtK(5, num_classes=NUM_CLASSES), PSPAtK(3, np.full(NUM_CLASSES, 0.5))])


@pytest.mark.both_keras
@pytest.mark.skipif(IS_KERAS_3, reason="Keras 3 has none of them")
def test_legacy_optimizers_are_refused():
    with pytest.raises(ValueError, match=r"tfxc\.optimizers, .*LazyAdam\(1e-3\).*but got Adam of .*legacy"):
        make_model(optimizer=keras.optimizers.legacy.Adam())


@pytest.mark.both_keras
def test_data_without_an_example_are_refused():
    model, x, y = make_model(run_eagerly=True), features(4), np.arange(4)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(2)
    for call in (
        lambda: model.fit(x[:0], y[:0]),
        lambda: model.fit(None, y),
        lambda: model.predict(None),
        lambda: model.fit(data.take(0)),
        lambda: model.fit(x, y, validation_data=(x[:0], y[:0])),
        lambda: model.fit(x, y, validation_data=data.take(0)),
        lambda: model.evaluate(x[:0], y[:0]),
        lambda: model.predict({"features": x[:0], "exclude": np.zeros((0, 2), int)}),
        lambda: model.predict(data.take(0)),
    ):
        with pytest.raises(ValueError, match="(x|validation_data) holds no example: check what selects them"):
            call()
    none = data.skip(2).filter(lambda x, y: True)
    for call in (
        lambda: model.fit(none, verbose=0),
        lambda: model.evaluate(none, verbose=0),
        lambda: model.predict(none.map(lambda x, y: x), verbose=0),
    ):
        # tf-keras says by itself that there was no batch.
        told = "x holds no example: the data end before the first batch" if IS_KERAS_3 else None
        with pytest.raises(ValueError, match=told):
            call()
    assert "val_loss" not in model.fit(x, y, validation_data=none, verbose=0).history


def test_parts_of_different_lengths_are_told():
    x = {"features": features(4), "exclude": np.zeros((1, 2), int), "example_ids": tf.range(4)}
    with pytest.raises(ValueError, match=r"as many rows in .* {'features': 4, 'exclude': 1, 'example_i"):
        make_model().predict(x, verbose=0)


@pytest.mark.parametrize("call", ["fit", "evaluate", "predict"])
def test_sequences_that_hold_no_batches_are_refused(call):
    sequences = tfxc.data.Sequences.from_lists([[1, 2]], tfxc.data.Vocabulary(range(NUM_CLASSES)))
    with pytest.raises(ValueError, match="x must hold batches, but is Sequences .*sequence_training_dataset"):
        getattr(make_model(), call)(sequences)


@pytest.mark.both_keras
def test_labels_that_seem_padded_with_a_class_are_told(recwarn):
    model, x = make_model(loss=losses.BinaryCrossentropy(), run_eagerly=True), features(4)
    padded = np.array([[5, 0, 0], [7, 3, 1], [2, 0, 0], [4, 6, 0]])
    for labels in (np.where(padded == 0, -1, padded), padded[:, :1], padded):
        assert not any("as if padded" in str(told.message) for told in recwarn)
        model.fit(x, labels, verbose=0)
    assert any("50% of the rows of labels hold class 0 several" in str(told.message) for told in recwarn)
    recwarn.clear()
    positions = make_model(encoder=keras.Sequential([keras.Input((3, DIM)), keras.layers.Dense(DIM)]))
    positions.fit(np.ones([4, 3, DIM]), padded, verbose=0)
    assert not any("as if padded" in str(told.message) for told in recwarn)


def test_loss_weights_are_refused():
    for given in (3.0, [0.5]):
        with pytest.raises(ValueError, match=r"loss_weights .*sample_weight=.*head_loss"):
            make_model(loss_weights=given)


@pytest.mark.both_keras
@pytest.mark.parametrize("eager", [False, True])
def test_training_stops_before_the_weights_are_touched(eager):
    x, y = features(20), np.arange(20)
    model = make_model(run_eagerly=eager)
    model.fit(x, y, batch_size=10, verbose=0)
    before = weights_of(model)
    bad = np.where(np.arange(20)[:, np.newaxis] == 3, np.nan, x)
    with pytest.raises(tf.errors.InvalidArgumentError, match="query of training step 3 is nan at row 3 of"):
        model.fit(bad, y, batch_size=20, shuffle=False, verbose=0)
    weight = np.full(20, np.inf, np.float32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="^The loss of training step 3 is .*clipnorm"):
        model.fit(x, y, batch_size=20, sample_weight=weight, verbose=0)
    tf.nest.map_structure(np.testing.assert_array_equal, weights_of(model), before)
    model.fit(x, y, verbose=0)


def test_moving_averages_do_not_see_what_is_not_finite():
    layers = [keras.Input((2, DIM)), keras.layers.BatchNormalization(), keras.layers.Flatten()]
    model = make_model(encoder=keras.Sequential([*layers, keras.layers.Dense(DIM)]))
    x, y = np.ones([4, 2, DIM], np.float32), np.arange(4)
    x[2, 1, 0] = np.nan
    before = weights_of(model)
    with pytest.raises(tf.errors.InvalidArgumentError, match="The input of training step 1 is nan at row 2"):
        model.fit(x, y, shuffle=False, verbose=0)
    tf.nest.map_structure(np.testing.assert_array_equal, before, weights_of(model))


@keras.saving.register_keras_serializable(package="tests")
class SignedRoot(keras.layers.Layer):
    def call(self, inputs):
        return tf.sign(inputs) * tf.abs(inputs) ** 0.5


@pytest.mark.parametrize(
    ("kind", "eager"),
    [("dense", False), ("dense", True), ("embedding", False), ("tied", True), ("item encoder", True)],
)
def test_a_gradient_that_is_not_finite_does_not_reach_the_weights(kind, eager):
    x, y = np.abs(features(20)) + 0.1, np.arange(20)
    encoder, head, bad = dense_encoder(), None, x * (y != 3)[:, np.newaxis]
    name, root = "dense.*/kernel", [keras.layers.Dense(DIM, use_bias=False), SignedRoot()]
    if kind == "dense":
        encoder = keras.Sequential([keras.Input((DIM,)), *root])
    elif kind == "item encoder":
        items = np.arange(1.0, 76.0, dtype=np.float32).reshape(25, 3)
        head, bad = tfxc.layers.EncodedHead(keras.Sequential([keras.Input((3,)), *root]), items), x
    else:
        table = keras.layers.Embedding(26, DIM, embeddings_initializer="ones", name="items")
        layers = [keras.Input((1,), dtype="int32"), table, keras.layers.Flatten(), SignedRoot()]
        encoder = keras.Sequential(layers)
        head = tfxc.layers.DenseHead(25, tied_to="items", row_offset=1) if kind == "tied" else None
        x, bad, name = y[:, np.newaxis] + 1, y[:, np.newaxis] * (y != 3)[:, np.newaxis], "items/embeddings"
        table.embeddings.assign(np.concatenate([np.zeros([1, DIM]), np.ones([25, DIM])]))
    model = make_model(encoder=encoder, head=head, run_eagerly=eager)
    model.fit(x, y, batch_size=10, verbose=0)
    if kind == "item encoder":
        items[3] = 0
        head.features = tf.constant(items)
    before = weights_of(model)
    message = f"^The gradient of {name} in training step 3 is -?nan and the step was skipped.* batch 1"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        model.fit(bad, y, batch_size=20, shuffle=False, verbose=0)
    for value, wanted in zip(weights_of(model), before, strict=True):
        if value.shape:  # but the age of the cached class vectors
            np.testing.assert_array_equal(value, wanted)
    assert int(model.optimizer.iterations) == 2


@pytest.mark.long
def test_a_gradient_that_is_large_may_be_clipped():
    optimizer = tfxc.optimizers.LazySGD(1.0, global_clipnorm=1.0)
    model = make_model(optimizer=optimizer)
    before = weights_of(model)
    model.fit(features(5), np.arange(5), sample_weight=np.full(5, 1e15, np.float32), verbose=0)
    moved = [new - old for new, old in zip(weights_of(model), before, strict=True)]
    assert np.sqrt(sum(np.sum(part**2) for part in moved)) == pytest.approx(1, rel=1e-3)


def test_half_precision_inputs_are_summed_in_more():
    x = np.full([4, 1024], 200.0, np.float16)
    layers = [keras.Input((1024,), dtype="float16"), keras.layers.Rescaling(1e-4, dtype="float32")]
    encoder = [*layers, keras.layers.Dense(DIM), keras.layers.BatchNormalization()]
    model = make_model(encoder=keras.Sequential(encoder))
    model.fit(tf.data.Dataset.from_tensors((x, np.arange(4))), verbose=0)
    assert require_finite(tf.constant(x), "query", model.optimizer).dtype == tf.float16


def test_shapes():
    optimizer = keras.optimizers.SGD()
    for shape in ((), (0,), (3,), (0, 2), (3, 2)):
        assert require_finite(tf.ones(shape), "query", optimizer).shape == shape
        if 0 not in shape:
            with pytest.raises(tf.errors.InvalidArgumentError, match="inf"):
                require_finite(tf.fill(shape, float("-inf")), "query", optimizer)


def test_evaluation_goes_on():
    model = make_model(tfxc.samplers.Uniform(5))
    assert np.isnan(model.evaluate(features(5) * np.nan, np.arange(5), verbose=0))


NAMES = [f"item {i}" for i in range(NUM_CLASSES)]
MESSAGE = r"change_classes consumed this model; use what it returned: model = tfxc.change_classes\(model"


@pytest.mark.both_keras
def test_after_change_classes_each_use_of_the_old_model_says_so(tmp_path):
    model = tfxc.ExtremeClassifier(dense_encoder(), layers.DenseHead(NUM_CLASSES), class_names=NAMES)
    model.compile(optimizers.LazyAdam(0.05), loss=losses.SoftmaxCrossentropy())
    x, y = learnable(8)
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    checkpoint = tf.train.Checkpoint(model=model)
    good = (tmp_path / "model.keras").read_bytes()
    changed = tfxc.change_classes(model, NAMES[3:])
    uses = [
        *((method, x, y) for method in (model.fit, model.evaluate, model.train_on_batch)),
        *((method, x) for method in (model.predict, model.predict_on_batch, model)),
        (model.rank, x, 3),
        (model.get_weights,),
        (lambda: model.set_weights(changed.get_weights()),),
        (model.compile, "sgd", losses.SoftmaxCrossentropy()),
        (model.save, tmp_path / "model.keras"),
        (model.save_weights, tmp_path / "model.weights.h5"),
        (model.export, tmp_path / "served"),
        (tfxc.memory_report, model),
        (tfxc.change_classes, model, NAMES),
        (checkpoint.write, tmp_path / "checkpoint"),
    ]
    for use, *arguments in uses:
        with pytest.raises(ValueError, match=MESSAGE):
            use(*arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["model.keras"]
    assert (tmp_path / "model.keras").read_bytes() == good
    changed.fit(x, y % changed.head.num_classes, verbose=0)
    changed.save(tmp_path / "model.keras")


def test_rows_of_a_head_within_a_head_are_not_looked_at():
    """On a server they would travel for it."""
    head, wrapper = tfxc.layers.DenseHead(3), tfxc.layers.Head(3)
    head.build((None, 2))
    wrapper.head = head
    parts = {"encoder": keras.layers.Dense(2), "head": wrapper, "optimizer": keras.optimizers.SGD()}
    given = [tf.fill([3, 2], float("nan"))], head.trainable_variables, SimpleNamespace(**parts)
    require_finite_step(tf.constant(1.0), *given)
    with pytest.raises(tf.errors.InvalidArgumentError, match="The loss of training step 1 is nan"):
        require_finite_step(tf.constant(np.nan), *given)
