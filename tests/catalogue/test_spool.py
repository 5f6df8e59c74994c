import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import DIM, NUM_CLASSES, dense_encoder, features

import tfxc
from tfxc._keras import keras
from tfxc.catalogue import spool
from tfxc.catalogue.spool import Spool, blocks_of


@pytest.fixture(params=[8, 1 << 25])
def block_bytes(request, monkeypatch):
    monkeypatch.setattr(spool, "_BLOCK_BYTES", request.param)


VALUES = [
    np.arange(12, dtype=np.float32).reshape(6, 2),
    np.arange(5, dtype=np.uint16),
    np.int64(7),
    np.arange(6, dtype=np.float64).reshape(3, 1, 2),
]


@pytest.mark.usefixtures("block_bytes")
def test_variables_come_back_as_they_were(tmp_path):
    variables = [tf.Variable(value) for value in VALUES] + [tf.Variable(tf.ones([4, 1], tf.bfloat16))]
    put = Spool(str(tmp_path), variables)
    put.free()
    assert tf.size(variables[0]) == 0
    put.restore()
    tf.nest.map_structure(np.testing.assert_array_equal, variables, [*VALUES, np.ones([4, 1])])


@pytest.mark.usefixtures("block_bytes")
def test_blocks_are_all_rows_or_those_asked_for_and_rows_go_where_they_are_sent(tmp_path):
    source, other, some = tf.Variable(VALUES[0]), tf.Variable(tf.zeros([4, 2])), np.array([4, 0, 4])
    np.testing.assert_array_equal(np.concatenate(list(blocks_of(source))), VALUES[0])
    np.testing.assert_array_equal(np.concatenate(list(blocks_of(source, some))), VALUES[0][some])
    Spool(str(tmp_path), [source]).copy(0, other, np.array([3, -1, 0, -1, -1, 1]))
    np.testing.assert_array_equal(other.numpy(), [[4, 5], [10, 11], [0, 0], [0, 1]])


def test_a_variable_of_a_shape_that_is_not_known_before(tmp_path):
    new, old = (tf.Variable(np.zeros([2, 0], np.float32), shape=[2, None]) for _ in range(2))
    old.assign(np.ones([2, 3]))
    put = Spool(str(tmp_path), [old])
    put.free()
    put.copy(0, new)
    put.restore()
    assert new.numpy().tolist() == old.numpy().tolist() == [[1, 1, 1]] * 2


NAMES = [f"item {i}" for i in range(NUM_CLASSES)]


def named(encoder, head=None):
    head = head or tfxc.layers.DenseHead(NUM_CLASSES, tied_to="items", row_offset=1)
    model = tfxc.ExtremeClassifier(encoder, head, class_names=NAMES)
    model.compile(tfxc.optimizers.LazyAdam(0.05), loss=tfxc.losses.SoftmaxCrossentropy(), run_eagerly=True)
    return model


def item_encoder():
    history = keras.Input((3,), dtype="int32")
    vectors = keras.layers.Embedding(NUM_CLASSES + 1, DIM, name="items")(history)
    return keras.Model(history, keras.layers.Dense(DIM)(keras.layers.Flatten()(vectors)))


@pytest.mark.both_keras
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


@pytest.mark.both_keras
def test_an_encoder_without_items_stays_whole_for_others(reloaded):
    encoder, x = dense_encoder(), features(4)
    head = tfxc.layers.DenseHead(NUM_CLASSES)
    model, other = named(encoder, head), named(encoder, tfxc.layers.DenseHead(NUM_CLASSES))
    before = other.predict(x, verbose=0)["ids"]
    changed = tfxc.change_classes(model, NAMES[1:])
    np.testing.assert_array_equal(changed.encoder(x), encoder(x))
    loaded = reloaded(other)
    np.testing.assert_array_equal(loaded.predict(x, verbose=0)["ids"], before)
    with pytest.raises(ValueError, match="moved this weight into the model that it returned"):
        head.get_weights()


@pytest.mark.both_keras
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
