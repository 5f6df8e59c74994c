"""Checkpoints on one machine; those of shards are in test_servers.py."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import NUM_CLASSES, dense_encoder, learnable, make_model
from long_cases import long_after

import tfxc
from tfxc._keras import keras
from tfxc._keras.weights import tf_variable, weights_of

# The contents of a checkpoint depend on Keras; the way its files are written, kept and checked does not.
both_keras = pytest.mark.both_keras


def fitted(**options):
    keras.utils.set_random_seed(1)
    model = make_model(tfxc.samplers.MIDX(8, num_codewords=4), run_eagerly=True, **options)
    model.fit(*learnable(64), verbose=0)
    return model


def assert_same_weights(again, model):
    for a, b in zip(weights_of(again), weights_of(model), strict=True):
        np.testing.assert_array_equal(tf_variable(a), tf_variable(b))


def assert_goes_on_alike(again, model, x, y):
    histories = [own.fit(x, y, shuffle=False, verbose=0).history["loss"] for own in (model, again)]
    np.testing.assert_allclose(*histories, rtol=1e-5)


@both_keras
def test_it_restores_weights_slots_and_counters(tmp_path):
    model = fitted()
    tfxc.cluster.Checkpoint(model, tmp_path).save(2)
    again = make_model(tfxc.samplers.MIDX(8, num_codewords=4, seed=model.sampler.seed), run_eagerly=True)
    assert tfxc.cluster.Checkpoint(again, tmp_path).restore() == 2
    assert_same_weights(again, model)
    assert int(again.optimizer.iterations.numpy()) == int(model.optimizer.iterations.numpy()) > 0
    assert_goes_on_alike(again, model, *learnable(64))


@pytest.mark.parametrize("path", ["gs://bucket/run", Path("gs://bucket/run")])
def test_a_folder_elsewhere_is_refused(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="bucket/run' is not a path of this machine"):
        tfxc.cluster.Checkpoint(make_model(), path)
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@both_keras
def test_it_restores_the_counters_and_rates_of_each_part_of_a_multi_optimizer(tmp_path):
    def made(rate):
        head = tfxc.layers.DenseHead(NUM_CLASSES)
        schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.1)
        third = keras.layers.Dense(16)
        optimizer = tfxc.optimizers.MultiOptimizer(
            tfxc.optimizers.LazyAdam(rate),
            (tfxc.optimizers.LazyAdam(schedule), head),
            (tfxc.optimizers.LazySGD(rate), third),
        )
        encoder = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), third])
        return make_model(head=head, encoder=encoder, optimizer=optimizer)

    model = made(0.01)
    x, y = np.ones((8, 8), np.float32), np.arange(8)
    model.fit(x, y, batch_size=4, verbose=0)
    tfxc.cluster.Checkpoint(model, tmp_path).save(1)
    again = made(0.5)
    tfxc.cluster.Checkpoint(again, tmp_path).restore()
    parts = again.optimizer.optimizers
    assert [int(part.iterations.numpy()) for part in (again.optimizer, *parts)] == [2] * 4
    assert [float(parts[i].learning_rate.numpy()) for i in (0, 2)] == pytest.approx([0.01] * 2)
    assert_goes_on_alike(again, model, x, y)


@pytest.mark.long
@both_keras
def test_a_normalization_computes_by_what_was_restored(tmp_path):
    x, y = learnable(64)

    def made(adapted):
        normalized = keras.layers.Normalization()
        if adapted:
            normalized.adapt(10 + 5 * x)
        encoder = keras.Sequential([keras.Input(x.shape[1:]), normalized, keras.layers.Dense(8)])
        return make_model(encoder=encoder)

    model, again = made(True), made(False)
    tfxc.cluster.Checkpoint(model, tmp_path).save(1)
    for traced in (again.predict, lambda x, verbose: again.rank(x, 5), again.evaluate):
        traced(x, *[y] * (traced == again.evaluate), verbose=0)
    again.fit(x, y, verbose=0)
    tfxc.cluster.Checkpoint(again, tmp_path).restore()
    wanted = model.predict(x, verbose=0)["scores"]
    np.testing.assert_allclose(again.predict(x, verbose=0)["scores"], wanted, rtol=1e-5)
    np.testing.assert_allclose(again.rank(x, 5)["scores"], wanted, rtol=1e-5)
    for call in ("evaluate", "fit"):
        losses = [getattr(own, call)(x, y, verbose=0) for own in (model, again)]
        losses = [own if call == "evaluate" else own.history["loss"] for own in losses]
        np.testing.assert_allclose(*losses, rtol=1e-5)


@both_keras
def test_what_a_lookup_has_adapted_to_is_not_in_it(tmp_path):
    def made(words):
        word, lookup = keras.Input((1,), dtype="string"), keras.layers.StringLookup()
        lookup.adapt(words)
        query = keras.layers.Flatten()(keras.layers.Embedding(5, 8)(lookup(word)))
        return make_model(encoder=keras.Model(word, query))

    model, again = made(["tea", "milk"]), made(["rum"])
    tfxc.cluster.Checkpoint(model, tmp_path).save(1)
    assert tfxc.cluster.Checkpoint(again, tmp_path).restore() == 1
    assert_same_weights(again, model)


class Scale(keras.layers.Layer):
    def build(self, input_shape):
        self.scale = self.add_weight(name="scale", shape=(), initializer="ones")
        self.nothing = self.add_weight(name="nothing", shape=(0, 3), trainable=False)
        super().build(input_shape)

    def call(self, inputs):
        return inputs * self.scale + tf.reduce_sum(tf.convert_to_tensor(self.nothing))


@pytest.mark.long
@pytest.mark.traced  # outside of graphs, Nadam of tf-keras goes on otherwise in its first step
@both_keras
@pytest.mark.parametrize(
    "optimizer", long_after(2, tfxc.optimizers.LazyAdam, keras.optimizers.Nadam, keras.optimizers.Adafactor)
)
def test_weights_and_slots_that_are_scalars_and_tables_without_a_row(tmp_path, optimizer):
    def made(seed):
        keras.utils.set_random_seed(seed)
        encoder = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8), Scale()])
        return make_model(encoder=encoder, optimizer=optimizer(0.1))

    x, y = learnable(64)
    model, again = made(1), made(2)
    model.fit(x, y, verbose=0)
    tfxc.cluster.Checkpoint(model, tmp_path).save(1)
    assert tfxc.cluster.Checkpoint(again, tmp_path).restore() == 1
    assert_goes_on_alike(again, model, x, y)


@pytest.mark.long
def test_large_tables_come_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(tfxc.cluster.placement, "BLOCK_BYTES", 100)
    model = fitted()
    tfxc.cluster.Checkpoint(model, tmp_path).save(0)
    reader = tf.train.load_checkpoint(str(tmp_path / "epoch-000000" / "variables"))
    tables = [model.head.table.numpy(), model.head.bias.numpy()]
    saved = [reader.get_tensor(name) for name in reader.get_variable_to_shape_map()]
    for table in tables:
        assert any(np.array_equal(table, own) for own in saved)
    again = make_model(tfxc.samplers.MIDX(8, num_codewords=4))
    assert tfxc.cluster.Checkpoint(again, tmp_path).restore() == 0
    np.testing.assert_array_equal(again.head.table.numpy(), tables[0])


@pytest.mark.long
def test_the_last_two_stay_and_what_a_kill_left_does_not_count(tmp_path):
    checkpoint = tfxc.cluster.Checkpoint(fitted(), tmp_path)
    assert checkpoint.restore() == 0
    for epoch in (1, 2, 3):
        checkpoint.save(epoch)
    (tmp_path / "writing-epoch-000004").mkdir()
    assert checkpoint.restore() == 3
    checkpoint.save(4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch-000003", "epoch-000004"]


class Killed(BaseException):
    """Where a process ends."""


def killed_at(function, last):
    calls = iter(range(1, last))

    def call(*args, **options):
        if next(calls, None) is None:
            raise Killed
        return function(*args, **options)

    return call


@pytest.mark.long
def test_a_kill_while_the_only_one_is_written_anew_leaves_one(tmp_path, monkeypatch):
    monkeypatch.setattr(tfxc.atomic_write, "_exchange", lambda one, other: False)
    model = make_model()
    table = model.head.table
    for module, name, last in ((os, "rename", 1), (os, "rename", 2), (shutil, "rmtree", 1)):
        folder = tmp_path / f"{name} {last}"
        checkpoint = tfxc.cluster.Checkpoint(model, folder)
        table.assign(tf.zeros_like(table))
        checkpoint.save(1)
        table.assign(tf.ones_like(table))
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(module, name, killed_at(getattr(module, name), last))
            checkpoint.save(1)
        again = make_model()
        assert tfxc.cluster.Checkpoint(again, folder).restore() == 1
        assert (again.head.table.numpy() == (name == "rmtree")).all()  # then the new one has its name
        checkpoint.save(2)
        checkpoint.save(3)
        assert sorted(path.name for path in folder.iterdir()) == ["epoch-000002", "epoch-000003"]


@pytest.mark.long
def test_an_epoch_below_those_that_are_there_is_refused(tmp_path):
    checkpoint = tfxc.cluster.Checkpoint(fitted(), tmp_path)
    checkpoint.save(999_999)
    checkpoint.save(1_000_000)
    message = "holds the checkpoint of epoch 1000000, beside which one of epoch 1 "
    with pytest.raises(ValueError, match=message):
        checkpoint.save(1)
    checkpoint.save(1_000_000)
    assert checkpoint.restore() == 1_000_000
    for epoch in (-1, 1.5, "2"):
        with pytest.raises(ValueError, match="epoch must be an integer of at least 0"):
            checkpoint.save(epoch)
    assert len(list(tmp_path.iterdir())) == 2


def flipped(content):
    return content[:-10] + bytes([content[-10] ^ 1]) + content[-9:]


def cut(content):
    return content[:20]


def damage_files(folder, pattern, change):
    for path in list(folder.glob(pattern)):
        if change is None:
            path.unlink()
        else:
            path.write_bytes(change(path.read_bytes()))


DAMAGES = ("*data*", flipped), ("*index", cut), ("*", None), ("*data*", cut), ("notes", cut), ("notes", None)


@pytest.mark.long
@pytest.mark.parametrize(("pattern", "change"), long_after(3, *DAMAGES))
def test_of_a_damaged_one_the_one_before_is_used(tmp_path, pattern, change):
    model = fitted()
    checkpoint = tfxc.cluster.Checkpoint(model, tmp_path)
    checkpoint.save(1)
    before = [np.array(tf_variable(weight)) for weight in weights_of(model)]
    model.fit(*learnable(64), verbose=0)
    checkpoint.save(2)
    damage_files(tmp_path / "epoch-000002", pattern, change)
    with pytest.warns(UserWarning, match="epoch-000002 is cut short or damaged"):
        assert checkpoint.restore() == 1
    for weight, old in zip(weights_of(model), before, strict=True):
        np.testing.assert_array_equal(tf_variable(weight), old)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch-000001", "epoch-000002.damaged"]
    damage_files(tmp_path / "epoch-000001", pattern, change)
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="could be read: epoch-000001.*anew"):
        checkpoint.restore()


def test_an_epoch_may_be_damaged_more_than_once(tmp_path):
    checkpoint = tfxc.cluster.Checkpoint(make_model(), tmp_path)
    checkpoint.save(1)
    for _ in range(2):
        checkpoint.save(2)
        damage_files(tmp_path / "epoch-000002", "*data*", cut)
        with pytest.warns(UserWarning, match="damaged"):
            assert checkpoint.restore() == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch-000001", "epoch-000002.damaged"]


@pytest.mark.long
@both_keras
def test_another_model_is_named(tmp_path):
    tfxc.cluster.Checkpoint(fitted(), tmp_path).save(1)
    other = make_model(head=tfxc.layers.DenseHead(NUM_CLASSES + 1))
    with pytest.raises(ValueError, match="of another model"):
        tfxc.cluster.Checkpoint(other, tmp_path).restore()


def named(names):
    head = tfxc.layers.DenseHead(NUM_CLASSES)
    return tfxc.ExtremeClassifier(dense_encoder(), head=head, class_names=names)


def test_classes_of_other_names_or_in_another_order_are_refused(tmp_path):
    names = [f"item {number}" for number in range(NUM_CLASSES)]
    tfxc.cluster.Checkpoint(named(names), tmp_path).save(1)
    for others in (names[::-1], [*names[1:], "new"]):
        model = named(others)
        before = model.head.table.numpy()
        with pytest.raises(ValueError, match="epoch-000001 is of another model: .* other class names"):
            tfxc.cluster.Checkpoint(model, tmp_path).restore()
        np.testing.assert_array_equal(model.head.table.numpy(), before)
    for alike in (names, None):
        assert tfxc.cluster.Checkpoint(named(alike), tmp_path).restore() == 1


class Names(keras.Model):
    def __init__(self):
        super().__init__()
        self.head, self.negatives = tfxc.layers.DenseHead(30), tfxc.samplers.MIDX(4, num_codewords=2, seed=1)
        self.sampler = "of negatives"
        self.head.build((None, 4))
        self.negatives.build((30, 4))
        self.built = True


@both_keras
def test_a_sampler_is_known_by_its_kind_not_by_its_name(tmp_path):
    model = Names()
    model.negatives.refresh(model.head)
    tfxc.cluster.Checkpoint(model, tmp_path).save(1)
    again = Names()
    tfxc.cluster.Checkpoint(again, tmp_path).restore()
    assert_same_weights(again, model)


@both_keras
def test_a_model_that_is_not_built_is_refused(tmp_path):
    model = tfxc.ExtremeClassifier(keras.Sequential([keras.layers.Dense(3)]), tfxc.layers.DenseHead(5))
    with pytest.raises(ValueError, match="not built"):
        tfxc.cluster.Checkpoint(model, tmp_path)


@both_keras
def test_a_model_that_is_consumed_is_refused(tmp_path):
    names = [f"item {number}" for number in range(NUM_CLASSES)]
    model = named(names)
    checkpoint = tfxc.cluster.Checkpoint(model, tmp_path)
    checkpoint.save(1)
    tfxc.change_classes(model, names[3:])
    uses = checkpoint.restore, lambda: checkpoint.save(2), lambda: tfxc.cluster.Checkpoint(model, tmp_path)
    for use in uses:
        with pytest.raises(ValueError, match="change_classes consumed this model; use what it returned"):
            use()
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-000001"]
