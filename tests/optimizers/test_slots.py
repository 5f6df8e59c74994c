"""Slots of single entries are reset, in stock optimizers and in those of the house."""

import numpy as np
import pytest
import tensorflow as tf

from tfxc import optimizers
from tfxc._keras import add_weight, keras, tf_variable
from tfxc.optimizers.slots import reset_slots, slots_of

# How to make it, and of each slot whether it is a momentum.
CASES = {
    "Adam": (lambda: keras.optimizers.Adam(0.1), [True, False]),
    "momentum": (lambda: keras.optimizers.SGD(0.1, momentum=0.9), [True]),
    "RMSprop": (lambda: keras.optimizers.RMSprop(0.1), [False]),
    "LazyAdam": (lambda: optimizers.LazyAdam(0.1), [True, False]),
    "Adagrad": (lambda: keras.optimizers.Adagrad(0.1), [False]),
    "LazySGD": (lambda: optimizers.LazySGD(0.1), []),
    "RowwiseAdagrad": (lambda: optimizers.RowwiseAdagrad(0.1), []),  # its slot is one number a row
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sparse", [False, True])
def test_only_the_given_entries_are_reset(name, sparse):
    make, momenta = CASES[name]
    layer, optimizer = keras.layers.Layer(), make()
    other = add_weight(layer, "other", (3, 4), initializer="ones")
    weight = add_weight(layer, "weight", (3, 4), initializer="ones")
    assert slots_of(optimizer, weight) == []
    dense = tf.constant([[1.0, 2, 3, 4]] * 3)
    gradient = tf.IndexedSlices(dense, tf.range(3), tf.constant([3, 4])) if sparse else dense
    optimizer.build([other, weight])
    optimizer.apply_gradients([(dense, other), (gradient, weight)])
    slots = slots_of(optimizer, weight)
    assert len(slots) == len(momenta)
    before = [slot.numpy() for slot in slots]
    reset_slots(optimizer, weight, np.array([[0, 2], [3, 1], [1, 0]]))
    gone = np.array([[1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 0, 0]], bool)
    for slot, old, is_momentum in zip(slots, before, momenta, strict=True):
        assert (old != 0).all()
        fresh = 0 if is_momentum else [[old[row, ~gone[row]].mean()] for row in range(3)]
        np.testing.assert_allclose(slot, np.where(gone, fresh, old), rtol=1e-6)
    for slot in slots_of(optimizer, other):
        assert (slot.numpy() != 0).all()
    assert (tf_variable(weight).numpy() < 1).all()


def test_a_weight_of_another_model_is_left_alone():
    layer, optimizer = keras.layers.Layer(), keras.optimizers.Adam()
    weight, stranger = (add_weight(layer, name, (2, 2)) for name in "ab")
    optimizer.build([weight])
    assert slots_of(optimizer, stranger) == []


def test_a_row_reset_whole():
    layer, optimizer = keras.layers.Layer(), keras.optimizers.Adagrad(0.1)
    weight = add_weight(layer, "weight", (2, 2))
    optimizer.build([weight])
    reset_slots(optimizer, weight, np.array([[0, 1], [1, 0]]))
    assert (slots_of(optimizer, weight)[0].numpy() == 0).all()
