import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable

from tfxc import optimizers
from tfxc._keras import IS_KERAS_3, keras
from tfxc._keras.weights import add_weight
from tfxc.optimizers.slots import reset_slots, slots_of

MEAN, ZERO = "the mean of the row's others", "zero"
ADAM = {"momentum": ZERO, "velocity": MEAN}

# How to make it, and what a reset sets each of its slots to.
CASES = {
    "Adadelta": (keras.optimizers.Adadelta, {"squared_gradient": MEAN, "squared_update": MEAN}),
    "Adafactor": (keras.optimizers.Adafactor, {"velocity": MEAN}),
    "Adagrad": (keras.optimizers.Adagrad, {"accumulator": MEAN}),
    "Adam": (keras.optimizers.Adam, ADAM),
    "Adam, amsgrad": (lambda: keras.optimizers.Adam(amsgrad=True), {**ADAM, "velocity_hat": MEAN}),
    "Adam, average": (lambda: keras.optimizers.Adam(use_ema=True), {**ADAM, "average": ZERO}),
    "Adamax": (keras.optimizers.Adamax, {"momentum": ZERO, "norm": MEAN}),
    "AdamW": (keras.optimizers.AdamW, ADAM),
    "Ftrl": (keras.optimizers.Ftrl, {"accumulator": MEAN, "linear": ZERO}),
    "Lion": (keras.optimizers.Lion, {"momentum": ZERO}),
    "Nadam": (keras.optimizers.Nadam, ADAM),
    "RMSprop": (keras.optimizers.RMSprop, {"velocity": MEAN}),
    "RMSprop, all": (
        lambda: keras.optimizers.RMSprop(momentum=0.9, centered=True),
        {**ADAM, "average_gradient": ZERO},
    ),
    "SGD": (lambda: keras.optimizers.SGD(momentum=0.9), {"momentum": ZERO}),
    "LazyAdam": (optimizers.LazyAdam, ADAM),
    "LazySGD": (optimizers.LazySGD, {}),
    "RowwiseAdagrad": (optimizers.RowwiseAdagrad, {}),  # its slot is one number a row
}
if IS_KERAS_3:
    accumulating = {"gradient_accumulation_steps": 2}
    CASES |= {
        "Adam, accumulating": (lambda: keras.optimizers.Adam(**accumulating), {**ADAM, "gradient": ZERO}),
        "Adam, scaled": (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()), ADAM),
        "LazyAdam, scaled": (lambda: keras.optimizers.LossScaleOptimizer(optimizers.LazyAdam()), ADAM),
        "Lamb": (keras.optimizers.Lamb, ADAM),
        "Muon": (keras.optimizers.Muon, {"momentum": ZERO}),
        "ScheduleFreeAdamW": (keras.optimizers.ScheduleFreeAdamW, {"weight": ZERO, "velocity": MEAN}),
    }


@pytest.mark.both_keras
@pytest.mark.parametrize("name", CASES)
def test_only_the_given_entries_are_reset(name):
    make, resets = CASES[name]
    layer, optimizer, random = keras.layers.Layer(), make(), np.random.default_rng(0)
    other = add_weight(layer, "other", (3, 4), initializer="ones")
    weight = add_weight(layer, "kernel", (3, 4), initializer="ones")
    assert slots_of(optimizer, weight) == {}
    optimizer.build([other, weight])
    assert slots_of(optimizer, add_weight(layer, "stranger", (3, 4))) == {}
    slots = slots_of(optimizer, weight)
    assert {name for name, slot in slots.items() if slot.shape == (3, 4)} == set(resets)
    every = [variable for variable in as_tensors(optimizer) if variable.shape == (3, 4)]
    assert len(every) == 2 * len(resets)  # none is overlooked
    for variable in every:
        variable.assign(random.uniform(1, 2, (3, 4)))
    before = {name: slot.numpy() for name, slot in slots.items()}
    others = {name: slot.numpy() for name, slot in slots_of(optimizer, other).items()}
    reset_slots(optimizer, weight, np.array([[0, 2], [3, 1], [1, 0]]))
    gone = np.array([[1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 0, 0]], bool)
    for name, old in before.items():
        if name in resets:
            mean = np.array([[old[row, ~gone[row]].mean()] for row in range(3)])
            old = np.where(gone, mean if resets[name] == MEAN else 0, old)
        np.testing.assert_allclose(slots[name], old, rtol=1e-6, err_msg=name)
    for name, slot in slots_of(optimizer, other).items():
        np.testing.assert_array_equal(slot, others[name])


def test_the_mean_of_small_moments_is_theirs_beside_a_large_one_and_of_no_others_that_of_all():
    optimizer, weight = keras.optimizers.Adam(), add_weight(keras.layers.Layer(), "kernel", (1, 4))
    optimizer.build([weight])
    velocity = slots_of(optimizer, weight)["velocity"]
    velocity.assign([[1e-3, 3e-11, 5e-11, 4e-11]])
    reset_slots(optimizer, weight, np.array([[0]]))
    np.testing.assert_allclose(velocity.numpy(), [[4e-11, 3e-11, 5e-11, 4e-11]], rtol=1e-5)
    reset_slots(optimizer, weight, np.array([[0, 3, 2, 1]]))
    np.testing.assert_allclose(velocity.numpy(), [[4e-11] * 4], rtol=1e-5)


def as_tensors(optimizer):
    variables = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    return [variable.value if IS_KERAS_3 else variable for variable in variables]


@pytest.mark.skipif(not IS_KERAS_3, reason="tf-keras has no MultiOptimizer")
def test_those_of_the_part_of_a_multi_optimizer_of_keras():
    layer, lazy = keras.layers.Layer(), optimizers.LazyAdam()
    kernel, table, frozen = (add_weight(layer, name, (3, 2)) for name in ("kernel", "table", "frozen"))
    parts = keras.optimizers.OptimizerMap(keras.optimizers.Adagrad(), {".*table": lazy})
    optimizer = keras.optimizers.MultiOptimizer(parts)
    optimizer.build([kernel, table])
    assert slots_of(optimizer, table)["velocity"] is lazy.slots_of(table)["velocity"]
    assert list(slots_of(optimizer, kernel)) == ["accumulator"]
    assert slots_of(optimizer, frozen) == {}


def test_an_optimizer_of_ones_own():
    class Own(keras.optimizers.Optimizer):
        def __init__(self):
            super().__init__(**({"learning_rate": 0.1} if IS_KERAS_3 else {}), name="own")

    weight = add_weight(keras.layers.Layer(), "weight", (2, 2))
    with pytest.raises(TypeError, match=r"which variables Own keeps for a weight.*slots_of\(variable\)"):
        reset_slots(Own(), weight, np.array([[0], [1]]))

    class Known(Own):
        def slots_of(self, variable):
            return {"velocity": velocity}

    velocity = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    reset_slots(Known(), weight, np.array([[0], [1]]))
    assert velocity.numpy().tolist() == [[2.0, 2.0], [3.0, 3.0]]


@pytest.mark.both_keras
@pytest.mark.skipif(IS_KERAS_3, reason="Keras 3 has no parameter servers")
def test_those_of_shards_are_reset_as_of_the_whole():
    random, columns = np.random.default_rng(0), np.array([[0], [3], [1], [1], [2]])
    moments = {name: random.random((5, 4)).astype(np.float32) for name in ADAM}
    whole = tf.Variable(tf.ones([5, 4]))
    table = ShardedVariable([tf.Variable(tf.ones([3 - i, 4]), name=f"kernel/part_{i}") for i in (0, 1)])
    found = []
    for weight, parts in ((whole, [whole]), (table, table.variables)):
        optimizer = optimizers.LazyAdam()
        optimizer.build(parts)
        slots = [slots_of(optimizer, part) for part in parts]
        for slot, first in zip(slots, (0, 3), strict=False):
            for name, values in moments.items():
                slot[name].assign(values[first : first + slot[name].shape[0]])
        reset_slots(optimizer, weight, columns)
        found.append([np.concatenate([slot[name] for slot in slots]) for name in ADAM])
    np.testing.assert_array_equal(*found)
    assert (found[0][0] == 0).sum() == 5
