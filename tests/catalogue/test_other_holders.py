import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import DIM, NUM_CLASSES, dense_encoder, features

import tfxc
from tfxc._keras import keras

NAMES = [f"item {i}" for i in range(NUM_CLASSES)]
pytestmark = pytest.mark.both_keras


def named(encoder, head=None):
    head = head or tfxc.layers.DenseHead(NUM_CLASSES, tied_to="items", row_offset=1)
    model = tfxc.ExtremeClassifier(encoder, head, class_names=NAMES)
    model.compile(tfxc.optimizers.LazyAdam(0.05), loss=tfxc.losses.SoftmaxCrossentropy(), run_eagerly=True)
    return model


def item_encoder():
    history = keras.Input((3,), dtype="int32")
    vectors = keras.layers.Embedding(NUM_CLASSES + 1, DIM, name="items")(history)
    return keras.Model(history, keras.layers.Dense(DIM)(keras.layers.Flatten()(vectors)))


@pytest.mark.parametrize("holder", ["classifier", "model", "sequential"])
def test_a_model_that_would_lose_its_weights_is_named_before_anything_moves(holder):
    encoder = item_encoder()
    model = named(encoder)
    other = {
        "classifier": lambda: named(encoder, tfxc.layers.DenseHead(NUM_CLASSES)),
        "model": lambda: keras.Model(encoder.inputs, encoder.layers[1].output),
        "sequential": lambda: keras.Sequential([encoder, keras.layers.Dense(2)]),
    }[holder]()
    before = [weight.numpy() for weight in model.weights]
    with pytest.raises(ValueError, match=f"{other.name}' holds items/embeddings.* as well"):
        tfxc.change_classes(model, NAMES[1:])
    tf.nest.map_structure(np.testing.assert_array_equal, model.weights, before)
    del other
    assert tfxc.change_classes(model, NAMES[1:]).head.num_classes == NUM_CLASSES - 1


def test_an_encoder_without_items_stays_whole_for_others(tmp_path):
    encoder, x = dense_encoder(), features(4)
    head = tfxc.layers.DenseHead(NUM_CLASSES)
    model, other = named(encoder, head), named(encoder, tfxc.layers.DenseHead(NUM_CLASSES))
    before = other.predict(x, verbose=0)["ids"]
    changed = tfxc.change_classes(model, NAMES[1:])
    np.testing.assert_array_equal(changed.encoder(x), encoder(x))
    other.save(tmp_path / "other.keras")
    loaded = keras.models.load_model(tmp_path / "other.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0)["ids"], before)
    with pytest.raises(ValueError, match="moved this weight into the model that it returned"):
        head.get_weights()


def test_what_is_empty_can_be_neither_read_nor_saved(tmp_path):
    encoder = item_encoder()
    tfxc.change_classes(named(encoder), NAMES[1:])
    for use in (
        lambda: encoder(np.ones([2, 3], "int32")),
        lambda: encoder.save(tmp_path / "encoder.keras"),
        lambda: encoder.save_weights(tmp_path / "encoder.weights.h5"),
        lambda: tf.train.Checkpoint(encoder=encoder).write(str(tmp_path / "checkpoint")),
        lambda: encoder.layers[1].embeddings.assign(np.ones([NUM_CLASSES + 1, DIM])),
        encoder.get_weights,
    ):
        with pytest.raises(ValueError, match="moved this weight into the model that it returned"):
            use()
