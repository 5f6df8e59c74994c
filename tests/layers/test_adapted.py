import numpy as np
import pytest
from classifier_checks import NUM_CLASSES, features, make_model
from long_cases import long_after

import tfxc
from tfxc._keras import keras
from tfxc.layers.adapted import copy_adapted


@pytest.mark.both_keras
@pytest.mark.parametrize(
    ("kind", "data", "asked"),
    [
        ("StringLookup", ["tea", "milk", "tea"], ["milk", "rum"]),
        ("IntegerLookup", [7, 9, 7], [9, 8]),
        ("Discretization", [[0.0], [1.0], [5.0], [9.0]], [[0.5], [8.0]]),
    ],
)
def test_it_answers_as_the_other(kind, data, asked):
    options = {"num_bins": 3} if kind == "Discretization" else {}
    source, layer = (getattr(keras.layers, kind)(**options) for _ in range(2))
    source.adapt(np.array(data))
    copy_adapted(source, layer)
    np.testing.assert_array_equal(layer(np.array(asked)), source(np.array(asked)))
    copy_adapted(keras.layers.Dense(2), keras.layers.Dense(2))  # which has nothing to copy


@pytest.mark.traced
@pytest.mark.parametrize("by", ["compile", "load_weights"])
def test_what_was_traced_follows_what_a_normalization_is_told(by, tmp_path):
    x = features(8)

    def made(shift):
        normalized = keras.layers.Normalization()
        normalized.adapt(10 + shift * x)
        encoder = keras.Sequential([keras.Input(x.shape[1:]), normalized, keras.layers.Dense(8)])
        return make_model(encoder=encoder)

    model, other = made(1), made(5)
    other.set_weights([*other.get_weights()[:3], *model.get_weights()[3:]])
    model.rank(x, 3), model.predict(x, verbose=0)
    if by == "compile":
        model.encoder.layers[0].adapt(10 + 5 * x)
        model.compile("sgd", loss=model.classification_loss)
    else:
        other.save_weights(tmp_path / "w.weights.h5")
        model.load_weights(tmp_path / "w.weights.h5")
    wanted = other.predict(x, verbose=0)["scores"][:, :3]
    for found in (model.rank(x, 3), model.predict(x, verbose=0)):
        np.testing.assert_allclose(found["scores"][:, :3], wanted, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:The training in .* is finished")
@pytest.mark.parametrize(
    "by", long_after(3, "load_weights", "checkpoint", "backup", "compile", "of a plain model")
)
def test_class_vectors_are_by_what_a_normalization_of_the_item_encoder_is_told(by, tmp_path):
    x, y, items = features(8), np.arange(8), features(NUM_CLASSES)

    def made(scale):
        normalized = keras.layers.Normalization()
        normalized.adapt(scale * items)
        layers = [keras.Input(x.shape[1:]), normalized, keras.layers.Dense(x.shape[1])]
        item_encoder = keras.Sequential(layers)
        return make_model(head=tfxc.layers.EncodedHead(item_encoder, items))

    model, other = made(1), made(10)
    model.predict(x, verbose=0)
    if by == "compile":
        model.head.item_encoder.layers[0].adapt(10 * items)
        model.compile("sgd", loss=model.classification_loss)
    elif by in ("load_weights", "of a plain model"):
        both = model, other
        if by == "of a plain model":
            both = [keras.Sequential([keras.Input(x.shape[1:]), own.head]) for own in both]
        both[1].save_weights(tmp_path / "w.weights.h5")
        both[0].load_weights(tmp_path / "w.weights.h5")
    elif by == "checkpoint":
        tfxc.cluster.Checkpoint(other, tmp_path).save(1)
        tfxc.cluster.Checkpoint(model, tmp_path).restore()
    else:
        for own in (other, model):  # the second goes on where the first ended
            own.fit(x, y, callbacks=[tfxc.callbacks.BackupAndRestore(tmp_path)], verbose=0)
    ids = np.arange(NUM_CLASSES)
    model.predict(x, verbose=0)
    np.testing.assert_allclose(model.head.class_vectors_of(ids), model.head.encode(ids), rtol=1e-5, atol=1e-6)
    assert float(model.head.item_encoder.layers[0].variance.numpy().mean()) > 10
