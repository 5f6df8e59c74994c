import warnings

import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import dense_encoder

import tfxc
from tfxc import layers, losses, optimizers, samplers
from tfxc._keras import keras
from tfxc.model import memory

L, D = 1000, 16


def compiled(head, sampler=None, encoder=None, optimizer=None, loss=None):
    encoder = encoder or keras.Sequential([keras.Input((8,)), keras.layers.Dense(D)])
    model = tfxc.ExtremeClassifier(encoder, head, sampler=sampler)
    model.compile(optimizer or optimizers.LazyAdam(), loss=loss or losses.SoftmaxCrossentropy())
    return model


def test_a_dense_head():
    report = tfxc.memory_report(compiled(layers.DenseHead(L)))
    own = 4 * (8 * D + D)
    assert report.encoder == own and report.tables == 4 * L * D and report.indices == 0
    assert 2 * (report.tables + own) <= report.slots <= 2 * (report.tables + own) + 100  # and counters
    assert report.step == report.tables + own
    assert report.peak == report.encoder + report.tables + report.slots + report.step
    assert report.save == 3 * (report.encoder + report.tables + report.slots)
    shown = {line[:30].strip(): line[30:].strip() for line in str(report).splitlines()}
    assert "class tables" in shown and shown["sum of these, about"] == f"{report.peak / 2**20:,.1f} MB"


@pytest.mark.parametrize(
    ("sampler", "rows"),
    [
        (samplers.Uniform(10, seed=0), 4 * (2 + 10)),
        (samplers.Uniform(10, shared=True, seed=0), 4 * 2 + 10),
        (samplers.InBatch(10), 4 * 2 + 10),  # from the labels of the batch
    ],
    ids=["own", "shared", "batch"],
)
def test_with_a_sampler_a_step_has_rows(sampler, rows):
    report = tfxc.memory_report(compiled(layers.DenseHead(L), sampler), batch_size=4, num_labels=2)
    assert report.step == rows * 4 * D + report.encoder


def shared_pair():
    return [sampler(10, shared=True) for sampler in (samplers.Uniform, samplers.LogUniform)]


@pytest.mark.parametrize(
    ("parts", "num_drawn", "shared"),
    [
        (lambda: [samplers.Uniform(10), samplers.InBatch()], 10 + 4 * 2, False),
        (lambda: [samplers.Uniform(10, shared=True), samplers.InBatch()], 10 + 4 * 2, True),
        (lambda: [samplers.Uniform(10, shared=True), samplers.Uniform(5)], 10 + 5, False),
        (lambda: [samplers.InBatch(3), samplers.Mixture(shared_pair())], 3 + 10 + 10, True),
    ],
    ids=["own and batch", "shared and batch", "shared and own", "nested"],
)
def test_a_mixture_has_the_rows_of_its_parts(parts, num_drawn, shared):
    model = compiled(layers.DenseHead(L), samplers.Mixture(parts()))
    draw = model.sampler.sample(samplers.Step(tf.zeros([4, D]), tf.constant([[1, 2]] * 4)))
    assert draw.ids.shape == ([num_drawn] if shared else [4, num_drawn])
    report = tfxc.memory_report(model, batch_size=4, num_labels=2)
    rows = 4 * 2 + num_drawn * (1 if shared else 4)
    assert report.step == rows * 4 * D + report.encoder


def test_an_item_encoder_may_have_a_weight_without_rows():
    class Scale(keras.layers.Layer):
        def build(self, input_shape):
            self.scale = self.add_weight(name="scale", shape=(), initializer="ones")

        def call(self, inputs):
            return inputs * self.scale

    item_encoder = keras.Sequential([keras.Input((3,)), keras.layers.Dense(D), Scale()])
    head = layers.EncodedHead(item_encoder, np.ones([L, 3], np.float32))
    report = tfxc.memory_report(compiled(head, samplers.InBatch()))
    own = 4 * (3 * D + D + 1)  # each is trained whole, however many candidates there are
    assert report.tables == own and report.step == own + report.encoder


def test_features_of_an_encoded_head_are_kept(tmp_path, monkeypatch):
    texts = keras.layers.TextVectorization(output_sequence_length=1, vocabulary=["tea"])
    price, name = keras.Input((300,), name="price"), keras.Input((), dtype="string", name="name")
    word = keras.layers.Flatten()(keras.layers.Embedding(3, D)(texts(name)))
    item = keras.layers.Add()([keras.layers.Dense(D)(price), word])
    item_encoder = keras.Model({"price": price, "name": name}, item)
    features = {"price": np.zeros([L, 300], np.float32), "name": np.full(L, "tea")}
    model = compiled(layers.EncodedHead(item_encoder, features))
    report = tfxc.memory_report(model)
    kept = 4 * L * 300 + L * (24 + 3)
    assert report.indices == kept + 4 * L * D + 8  # beside them the cache and its age
    assert report.save == 3 * (report.encoder + report.tables + report.indices + report.slots)
    monkeypatch.setattr(memory, "_LARGE_SAVE", 3 * kept)
    with pytest.warns(UserWarning, match="Checkpoint"):
        model.save(tmp_path / "model.keras")


def test_a_bfloat16_table_is_half_as_large_and_its_gradients_are_not():
    for dtype, size in (("float32", 4), ("bfloat16", 2)):
        head = layers.DenseHead(L, table_dtype=dtype)
        report = tfxc.memory_report(compiled(head, optimizer=optimizers.RowwiseAdagrad(0.1)))
        assert report.tables == size * L * D and report.step == 4 * L * D + report.encoder
        assert 4 * L <= report.slots <= 4 * L + 4 * (8 * D + D) + 100  # a number a class
    model = compiled(layers.DenseHead(L, table_dtype="bfloat16"), samplers.Uniform(10, seed=0))
    report = tfxc.memory_report(model, batch_size=4)
    assert report.step == 4 * (1 + 10) * 4 * D + report.encoder


@pytest.mark.parametrize("group_size", [1, 16])
def test_connections_are_indices(group_size):
    head = layers.UniformSparseHead(L, fan_in=4, group_size=group_size, seed=0)
    report = tfxc.memory_report(compiled(head, loss=losses.SquaredHinge()))
    connections = 4 * 4 * -(-L // group_size)
    assert report.tables == 4 * 4 * L and report.step == report.tables + report.encoder
    assert report.indices == connections + 2 * 4 * D * D + 3 * 8  # directions, moments and counters


def test_a_tied_table_counts_once():
    parts = keras.layers.Embedding(L, D, name="items"), keras.layers.Lambda(lambda x: x[:, 0])
    encoder = keras.Sequential([keras.Input((3,), dtype="int32"), *parts])
    report = tfxc.memory_report(compiled(layers.DenseHead(L, tied_to="items"), encoder=encoder))
    assert report.encoder == 4 * L * D and report.tables == 0
    assert report.step == 2 * 4 * L * D  # over all classes


@pytest.mark.both_keras
def test_the_slots_are_those_of_training():
    model = compiled(layers.DenseHead(L))
    before = tfxc.memory_report(model)
    model.fit(np.ones((4, 8), np.float32), np.arange(4), verbose=0)
    assert tfxc.memory_report(model) == before


def test_what_it_needs():
    class Encoder(keras.Model):
        def call(self, inputs):
            return inputs

    for model, options, message in (
        (tfxc.ExtremeClassifier(Encoder(), layers.DenseHead(5)), {}, "needs a built model"),
        (layers.DenseHead(5), {}, "takes an ExtremeClassifier, but got DenseHead"),
        (None, {"batch_size": 0}, "batch_size must be an integer"),
        (None, {"num_labels": 0}, "num_labels must be an integer"),
    ):
        with pytest.raises(ValueError, match=message):
            tfxc.memory_report(model, **options)


def test_saving_a_large_model_warns_before_it_starts(tmp_path, monkeypatch):
    model = tfxc.ExtremeClassifier(dense_encoder(), layers.DenseHead(L))
    model(tf.ones([1, *model.encoder.input_shape[1:]]))
    path = tmp_path / "model.keras"
    monkeypatch.setattr(memory, "_LARGE_SAVE", 1000)
    with warnings.catch_warnings(action="error"), pytest.raises(UserWarning, match="Checkpoint"):
        model.save(path)
    assert not path.exists()
    with pytest.warns(UserWarning, match="Checkpoint"):
        model.save(path)
    assert path.exists()
