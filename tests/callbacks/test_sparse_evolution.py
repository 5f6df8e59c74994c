import numpy as np
import pytest
import tensorflow as tf
from backup_checks import STEPS, Again, assert_same, made
from classifier_checks import NUM_CLASSES, learnable, make_model

from tfxc import losses, optimizers
from tfxc._keras import IS_KERAS_3, keras
from tfxc._keras.weights import tf_variable
from tfxc.callbacks import SparseEvolution
from tfxc.layers import UniformSparseHead


class Recorder(keras.layers.Dense):
    def rewire(self, fraction, optimizer):
        assert optimizer is not None
        self.fractions = [*getattr(self, "fractions", []), round(fraction, 6)]
        return {"moved": 7, "dropped_magnitude": 0.25}


def sparse_model(fan_in=4, optimizer=None):
    head = UniformSparseHead(NUM_CLASSES, fan_in, use_bias=True, seed=0)
    return make_model(None, losses.SquaredHinge(), head, optimizer=optimizer)


def recorded(callback, epochs=3, num_steps=4, **options):
    layer = Recorder(1)
    model = keras.Sequential([keras.Input((2,)), layer])
    model.compile("sgd", loss="mse", **options)
    x = tf.zeros([num_steps, 2])
    history = model.fit(x, x[:, :1], batch_size=1, epochs=epochs, callbacks=[callback], verbose=0).history
    return getattr(layer, "fractions", []), history


@pytest.mark.traced
@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({"every": "epoch"}, [0.1] * 2),
        ({"every": 5}, [0.1] * 2),
        ({"every": 5, "stop_after": 9}, [0.1]),
        ({"every": "epoch", "stop_after": 1}, [0.1]),
        ({"every": 4, "stop_after": 16, "schedule": "cosine"}, [0.085355, 0.05, 0.014645]),
    ],
)
def test_when_and_how_much(options, want):
    fractions, history = recorded(SparseEvolution(0.1, **options))
    assert fractions == want
    assert sum(history["rewire/moved"]) == 7 * len(want) and max(history["rewire/seconds"]) < 1
    assert set(history["rewire/dropped_magnitude"]) <= {0.0, 0.25}


def test_the_magnitude_is_that_of_all_that_moved_in_the_epoch(monkeypatch):
    seen, names = iter([(2, 0.5), (6, 0.1), (0, 0.0)]), ("moved", "dropped_magnitude")
    monkeypatch.setattr(Recorder, "rewire", lambda *args: dict(zip(names, next(seen), strict=True)))
    _, history = recorded(SparseEvolution(every=2), epochs=1, num_steps=6)
    assert history["rewire/moved"] == [8]
    np.testing.assert_allclose(history["rewire/dropped_magnitude"], [0.2])


def test_connections_move_while_a_model_trains():
    (x, y), model = learnable(64), sparse_model()
    before = tf_variable(model.head.indices).numpy()
    callback = SparseEvolution(0.25, every="epoch")
    history = model.fit(x, y, epochs=3, callbacks=[callback], verbose=0).history
    assert history["rewire/moved"] == [0, NUM_CLASSES, NUM_CLASSES]
    assert history["rewire/dropped_magnitude"][1] > 0
    assert (np.sort(before, 1) != np.sort(tf_variable(model.head.indices).numpy(), 1)).any()


def test_the_model_that_is_validated_is_the_one_that_is_saved_and_returned(tmp_path):
    (x, y), model = learnable(64), sparse_model()
    path = tmp_path / "{epoch}.keras"
    callbacks = [SparseEvolution(0.5, every="epoch"), keras.callbacks.ModelCheckpoint(str(path))]
    options = {"validation_data": (x, y), "callbacks": callbacks, "verbose": 0}
    losses_of_epochs = model.fit(x, y, epochs=2, **options).history["val_loss"]
    for epoch, loss in enumerate(losses_of_epochs, 1):
        saved = keras.models.load_model(tmp_path / f"{epoch}.keras")
        np.testing.assert_allclose(saved.evaluate(x, y, verbose=0), loss, rtol=1e-6)
    np.testing.assert_allclose(model.evaluate(x, y, verbose=0), losses_of_epochs[-1], rtol=1e-6)


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.both_keras
def test_interrupted_between_epochs_and_in_one_it_goes_on_to_the_bit(tmp_path):
    again = Again(made(make_head=lambda: UniformSparseHead(NUM_CLASSES, 4, seed=3)))

    def script(folder, *args):
        return again.run(folder, *args, callbacks=[SparseEvolution(0.5, every="epoch")], batch_size=10)

    expected = script(tmp_path / "whole", 3)
    assert [moved > 0 for moved in expected[1]["rewire/moved"]] == [False, True, True]
    # The second goes on from the first step of an epoch, the third from the sixth.
    for save_freq, stop in (("epoch", STEPS + 2), (3, STEPS + 7)):
        assert script(tmp_path / "killed", save_freq, stop) is None
    assert_same(script(tmp_path / "killed", 3), expected)


def test_a_single_epoch_in_which_nothing_moves_is_told_of():
    with pytest.warns(UserWarning, match="moves no connection in a fit of one epoch.*every=1000"):
        assert recorded(SparseEvolution(every="epoch"), epochs=1)[0] == []


def test_bad_arguments():
    wrong = {"fraction": (0.0, 1.5), "every": (0, "step"), "schedule": ("linear", "cosine")}
    for name, values in {**wrong, "stop_after": (0, 2.5)}.items():
        for value in values:
            with pytest.raises(ValueError, match=name):
                SparseEvolution(**{name: value})


def test_heads_within_models_are_found_each_once():
    inner, outer = Recorder(3), Recorder(1)
    nested = [keras.Sequential([keras.Input((2,)), inner]) for _ in range(2)]
    inputs = keras.Input((2,))
    model = keras.Model(inputs, outer(keras.layers.Add()([part(inputs) for part in nested])))
    model.compile("sgd", loss="mse")
    rows, callbacks = (tf.zeros([2, 2]), tf.zeros([2, 1])), [SparseEvolution(every=2)]
    model.fit(*rows, batch_size=1, callbacks=callbacks, verbose=0)
    assert inner.fractions == outer.fractions == [0.1]


def test_a_model_without_a_sparse_head():
    with pytest.raises(ValueError, match="needs a model with a sparse head"):
        make_model().fit(*learnable(8), callbacks=[SparseEvolution(every="epoch")], verbose=0)


def test_a_head_that_reads_everything_is_told_of():
    with pytest.warns(UserWarning, match="moves no connection.*all of the 6 inputs"):
        fitted = sparse_model(6).fit(*learnable(8), callbacks=[SparseEvolution(every=1)], verbose=0)
    assert fitted.history["rewire/moved"] == [0]


def test_a_frozen_head_keeps_its_connections():
    model = sparse_model()
    model.head.trainable = False
    model.compile(model.optimizer, loss=losses.SquaredHinge())
    before = model.head.get_weights()
    with pytest.warns(UserWarning, match="moves no connection of .*, which is frozen"):
        history = model.fit(*learnable(8), callbacks=[SparseEvolution(every=1)], verbose=0).history
    assert history["rewire/moved"] == [0]
    tf.nest.map_structure(np.testing.assert_array_equal, before, model.head.get_weights())


class ByAnother(keras.Sequential):
    other = keras.optimizers.SGD(0.1)

    def train_step(self, data):
        weights = self.trainable_variables
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(data[0]) ** 2)
        self.other.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def test_a_head_that_another_optimizer_trains_is_refused():
    model = ByAnother([keras.Input((8,)), UniformSparseHead(NUM_CLASSES, 3, seed=0)])
    model.compile()
    x = np.ones((8, 8), np.float32)
    with pytest.warns(UserWarning, match="took no step in this epoch"):
        model.fit(x, x[:, 0], epochs=1, callbacks=[SparseEvolution(every=1)], verbose=0)
    with pytest.raises(ValueError, match="does not train 'uniform_sparse_head.*MultiOptimizer"):
        model.fit(x, x[:, 0], epochs=2, callbacks=[SparseEvolution(every="epoch")], verbose=0)


@pytest.mark.parametrize("optimizer", [keras.optimizers.Adam, optimizers.LazyAdam])
def test_a_training_goes_on_with_a_new_optimizer(optimizer):
    x = np.ones((8, 8), np.float32)
    model = keras.Sequential([keras.Input((8,)), UniformSparseHead(NUM_CLASSES, 3, seed=0)])
    model.compile(optimizer(1e-2), loss=losses.SquaredHinge())
    callbacks = [SparseEvolution(every="epoch")]
    moved = model.fit(x, np.arange(8), initial_epoch=2, epochs=4, callbacks=callbacks, verbose=0)
    assert moved.history["rewire/moved"] == [NUM_CLASSES] * 2


def test_an_optimizer_of_unknown_slots_is_found_when_training_starts():
    class Own(keras.optimizers.Optimizer):
        def __init__(self):
            super().__init__(**({"learning_rate": 0.1} if IS_KERAS_3 else {}), name="own")

    with pytest.raises(TypeError, match="tfxc does not know which variables Own keeps for a weight"):
        sparse_model(optimizer=Own()).fit(*learnable(8), callbacks=[SparseEvolution()], verbose=0)
