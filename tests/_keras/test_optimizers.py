import pytest
import tensorflow as tf

from tfxc._keras import IS_KERAS_3, keras
from tfxc._keras import optimizers as house
from tfxc._keras.weights import tf_variable


class Own(keras.optimizers.Optimizer):
    def __init__(self, learning_rate=None, name="own", **options):
        house.start_optimizer(self, learning_rate, name, **options)

    def build(self, variables):
        super().build(variables)
        self._built = True  # as optimizers of tf-keras do
        self.sums = [house.add_slot(self, variable, "sum", variable.shape, 2.0) for variable in variables]

    def update_step(self, gradient, variable, learning_rate=None):
        index = house.variable_index(self, variable)
        self.constraint = house.constraint_of(self, index, variable)
        tf_variable(self.sums[index]).assign_add(tf.cast(gradient, tf.float32))
        step = tf.cast(gradient, tf.float32) * tf.cast(self.learning_rate, tf.float32)
        tf_variable(variable).assign_sub(tf.cast(step, variable.dtype))

    def get_config(self):
        config = super().get_config()
        return {**config, "learning_rate": house.serialized_learning_rate(self, config)}


def test_the_variable_of_a_learning_rate_which_a_config_keeps():
    optimizer = keras.optimizers.SGD(0.5)
    house.learning_rate_variable(optimizer).assign(0.25)
    assert float(optimizer.learning_rate) == 0.25
    follows = keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 10))
    assert house.learning_rate_variable(follows) is None
    own = Own(0.5)
    house.learning_rate_variable(own).assign(0.125)
    assert float(own.get_config()["learning_rate"]) == 0.125


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_optimizer_of_ones_own_keeps_slots_of_float32(dtype):
    # Those of tf-keras multiply by float32.
    positive = keras.constraints.NonNeg() if IS_KERAS_3 or dtype == "float32" else None
    layer = keras.layers.Layer()
    table = layer.add_weight(name="t", shape=(2,), dtype=dtype, initializer="ones", constraint=positive)
    bias = layer.add_weight(name="b", shape=(2,), dtype=dtype, initializer="ones")
    optimizer = Own(0.5)
    gradient = tf.ones([2], dtype)
    optimizer.apply_gradients([(gradient, bias), (gradient, table)])
    assert optimizer.constraint is positive
    house.build_optimizer(optimizer, [bias, table])  # changes nothing
    assert [house.variable_index(optimizer, own) for own in (bias, table)] == [0, 1]
    assert house.variable_index(optimizer, tf.Variable(1.0)) is None
    slots = [tf_variable(slot) for slot in optimizer.sums]
    assert [slot.numpy().tolist() for slot in slots] == [[3.0, 3.0]] * 2
    assert slots[0].dtype == tf.float32 and "sum" in slots[0].name
    listed = house.variables_of_optimizer(optimizer)
    assert all(any(slot is own for own in listed) for slot in slots)
    assert tf.cast(tf_variable(table), tf.float32).numpy().tolist() == [0.5, 0.5]


def test_every_call_is_counted():
    accumulating = {"gradient_accumulation_steps": 2} if IS_KERAS_3 else {}
    optimizer, table = keras.optimizers.SGD(0.5, **accumulating), tf.Variable([1.0])
    for _ in range(2):
        optimizer.apply_gradients([(tf.constant([1.0]), table)])
    assert int(house.steps_variable(optimizer)) == 2


def test_what_a_step_changes_is_listed():
    optimizer, table = keras.optimizers.Nadam(), tf.Variable([1.0])
    house.build_optimizer(optimizer, [table])
    listed = house.variables_of_optimizer(optimizer)
    before = [variable.numpy() for variable in listed]
    optimizer.apply_gradients([(tf.constant([1.0]), table)])
    # Two moments, the product of the momentum and the counter.
    assert sum((old != new.numpy()).any() for old, new in zip(before, listed, strict=True)) == 4
    assert len(house.unlisted_variables(optimizer)) == (0 if IS_KERAS_3 else 1)
