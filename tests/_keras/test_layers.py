import copy

import numpy as np
import pytest
import tensorflow as tf

import tfxc
from tfxc._keras import keras
from tfxc._keras import layers as house


@pytest.mark.parametrize(
    "use",
    [
        lambda encoder: tfxc.ExtremeClassifier(encoder, tfxc.layers.DenseHead(3)),
        lambda encoder: tfxc.layers.EncodedHead(encoder, np.ones((3, 2), np.float32)),
        lambda encoder: tfxc.encoders.GradCache(encoder, 2),
    ],
)
def test_a_model_of_another_keras_is_refused(use):
    class Other:  # Keras would call it, and find no weights in it
        def __call__(self, inputs, training=None):
            return inputs

    for encoder in (Other(), lambda: keras.layers.Dense(2)):
        with pytest.raises(ValueError, match=rf"encoder must be a Keras model, .*of {keras.__name__};"):
            use(encoder)


def test_a_layer_that_another_one_replaced_is_not_in_the_model():
    model = keras.Model()
    model.own = before = keras.layers.Dense(2)
    model.own = after = keras.layers.Dense(3)
    house.forget_layer(model, before)
    assert house.layers_of(model) == [model, after]


def test_an_untracked_layer_is_not_its_holders(tmp_path):
    layer, other = keras.layers.Dense(2), keras.layers.Dense(3)
    other.build((None, 4))
    layer.box = house.Untracked(other)
    layer.build((None, 1))
    assert layer.box.value is other
    assert house.layers_of(layer) == [layer]
    assert len(layer.weights) == 2
    checkpoint = tf.train.Checkpoint(layer=layer)
    names = [name for name, _ in tf.train.list_variables(checkpoint.write(str(tmp_path / "state")))]
    assert not any("box" in name for name in names)
    layers = [keras.layers.Layer(name="a")]  # copied, it goes with what is copied
    first, box = copy.deepcopy((layers, house.Untracked(layers)))
    assert box.value is first is not layers


def test_layers_of_a_nest():
    inner = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3, name="deep")])
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.Dense(1, name="top")(inner(inputs)))
    assert house.layers_of(model)[0] is model
    assert {"deep", "top"} <= {layer.name for layer in house.layers_of(model)}


def test_who_reads_a_layer_also_within_a_nested_model():
    dense, inner = keras.layers.Dense(3), keras.Input((3,))
    assert house.readers_of(dense) == []
    hidden = dense(keras.Input((2,)))
    keras.layers.Add()([keras.layers.Softmax()(hidden), hidden])
    keras.Model(inner, keras.layers.ReLU()(inner))(hidden)
    found = [type(reader).__name__ for reader in house.readers_of(dense)]
    assert sorted(found) == ["Add", "ReLU", "Softmax"]


def test_the_shape_a_layer_was_called_with():
    class Subclassed(keras.Model):
        def call(self, inputs):
            return inputs["a"]

    model = Subclassed()
    assert house.shape_called_with(model) is None
    model({"a": tf.zeros([4, 2])})
    assert tuple(house.shape_called_with(model)["a"]) == (4, 2)


def test_how_an_input_is_declared_and_one_of_another_width():
    for options in ({}, {"sparse": True}, {"ragged": True}):
        for form in ("sparse", "ragged"):
            assert house.is_declared_as(keras.Input((None,), **options), form) == (form in options)
    layer = house.layer_of(keras.Input((4, 2), sparse=True, name="own"))
    again = keras.layers.InputLayer.from_config(house.config_of_width(layer, 3))
    assert again.output.shape[1:] == (4, 3) and again.name == "own"
    assert house.is_declared_as(again.output, "sparse")


def test_the_mask_a_layer_leaves():
    embedded = keras.layers.Embedding(5, 2, mask_zero=True)(tf.constant([[0, 3]]))
    assert house.mask_of(embedded).numpy().tolist() == [[False, True]]
    assert house.mask_of(tf.zeros([1, 2])) is None


def test_a_layer_that_calls_other_layers_its_embeddings_has_no_table():
    class Named(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.embeddings = keras.layers.Embedding(3, 2)

        def call(self, ids):
            return self.embeddings(ids)

    named = Named()
    assert house.embeddings_of(keras.Sequential([named])) == [named.embeddings]
