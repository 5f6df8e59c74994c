"""Slots of single entries are reset, in stock optimizers and in those of the house."""

import numpy as np
import pytest
import tensorflow as tf

from tfxc import optimizers
from tfxc._keras import add_weight, keras, tf_variable
from tfxc.optimizer_slots import reset_slots, slots_of

CASES = {
    "Adam": (lambda: keras.optimizers.Adam(0.1), 2),
    "momentum": (lambda: keras.optimizers.SGD(0.1, momentum=0.9), 1),
    "RMSprop": (lambda: keras.optimizers.RMSprop(0.1), 1),
    "LazyAdam": (lambda: optimizers.LazyAdam(0.1), 2),
    "RowSparseSGD": (lambda: optimizers.RowSparseSGD(0.1), 0),
    "RowwiseAdagrad": (lambda: optimizers.RowwiseAdagrad(0.1), 0),  # its slot is one number a row
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sparse", [False, True])
def test_only_the_given_entries_are_reset(name, sparse):
    make, num_slots = CASES[name]
    layer, optimizer = keras.layers.Layer(), make()
    other = add_weight(layer, "other", (3, 4), initializer="ones")
    weight = add_weight(layer, "weight", (3, 4), initializer="ones")
    assert slots_of(optimizer, weight) == []
    dense = tf.fill([3, 4], 2.0)
    gradient = tf.IndexedSlices(dense, tf.range(3), tf.constant([3, 4])) if sparse else dense
    optimizer.build([other, weight])
    optimizer.apply_gradients([(dense, other), (gradient, weight)])
    slots = slots_of(optimizer, weight)
    assert len(slots) == num_slots
    before = [slot.numpy() for slot in slots]
    reset_slots(optimizer, weight, np.array([[0, 2], [3, 1], [1, 0]]))
    gone = np.array([[1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 0, 0]], bool)
    for slot, old in zip(slots, before, strict=True):
        assert (old != 0).all()
        np.testing.assert_array_equal(slot, np.where(gone, 0, old))
    for slot in slots_of(optimizer, other):
        assert (slot.numpy() != 0).all()
    assert (tf_variable(weight).numpy() < 1).all()


def test_a_weight_of_another_model_is_left_alone():
    layer, optimizer = keras.layers.Layer(), keras.optimizers.Adam()
    weight, stranger = (add_weight(layer, name, (2, 2)) for name in "ab")
    optimizer.build([weight])
    assert slots_of(optimizer, stranger) == []
