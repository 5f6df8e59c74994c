import numpy as np
import pytest
import tensorflow as tf

from tfxc._keras import IS_KERAS_3, keras, weights


class Holder(keras.layers.Layer):
    def build(self, input_shape):
        rows = weights.constant([[1.0, 2, 3], [4, 5, 6]])
        self.table = weights.add_weight(self, "table", (2, 3), rows, aggregation="sum")

    def call(self, inputs):
        self.read = tf.convert_to_tensor(self.table).dtype
        return inputs


def test_a_weight_is_neither_cast_nor_copied_and_begins_right():
    layer = Holder(dtype="mixed_bfloat16")
    layer(tf.zeros([1, 1]))
    assert layer.read == tf.float32
    variable = weights.tf_variable(layer.table)
    assert weights.is_weight(layer.table) and not weights.is_weight(variable.read_value())
    assert isinstance(variable, tf.Variable) and variable.trainable
    np.testing.assert_array_equal(variable, [[1, 2, 3], [4, 5, 6]])
    assert weights.layer_and_name(layer.table).split(":")[0] == f"{layer.name}/table"
    assert weights.tf_variable(variable) is variable


def test_how_replicas_aggregate_a_weight():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        layer = Holder()
        layer.build(None)
        found = str(getattr(layer.table, "aggregation", None))
    assert found in ("sum", "VariableAggregation.SUM", "VariableAggregationV2.SUM")


def test_the_rows_of_a_shard():
    make = weights.constant(np.arange(8.0).reshape(4, 2))
    np.testing.assert_array_equal(make((4, 2), tf.float32, (2, 2), (1, 0)), [[2, 3], [4, 5]])


def test_numbers_of_bfloat16_come_back_from_a_file():
    half = np.array([1.5, -2.0], tf.bfloat16.as_numpy_dtype)
    stored = {"half": half if IS_KERAS_3 else half.view("V2"), "whole": np.float32([1.0])}
    found = weights.stored_numbers(stored)
    np.testing.assert_array_equal(np.float32(found["half"]), [1.5, -2.0])
    np.testing.assert_array_equal(found["whole"], [1.0])


def test_weights_are_those_with_numbers_and_not_of_metrics():
    words = keras.layers.StringLookup(vocabulary=["a", "b"])
    inputs = keras.Input((1,), dtype="string")
    model = keras.Model(inputs, keras.layers.Embedding(3, 2)(words(inputs)))
    assert [variable.shape for variable in weights.variables_of(model)] == [(3, 2)]
    model.own = keras.metrics.Mean()
    assert [weight.shape for weight in weights.weights_of(model)] == [(3, 2)]


@pytest.mark.parametrize("name", ["half", "whole"])
def test_a_file_holds_numbers_that_are_read(name, tmp_path):
    dtype = {"half": "bfloat16", "whole": "float32"}[name]

    class Table(keras.layers.Layer):
        def build(self, input_shape):
            self.table = weights.add_weight(self, "table", (2,), "ones", dtype)

        def call(self, inputs):
            return inputs

        def load_own_variables(self, store):
            super().load_own_variables(weights.stored_numbers(store))

    models = [keras.Sequential([keras.Input((1,)), Table()]) for _ in range(2)]
    weights.tf_variable(models[0].layers[0].table).assign(tf.constant([1.5, -2.0], dtype))
    models[0].save_weights(tmp_path / "own.weights.h5")
    models[1].load_weights(tmp_path / "own.weights.h5")
    found = tf.cast(weights.tf_variable(models[1].layers[0].table), tf.float32)
    np.testing.assert_array_equal(found, [1.5, -2.0])
