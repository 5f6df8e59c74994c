"""Initial values in blocks: as many and as large as those of the whole table, and no block like another."""

import numpy as np
import pytest
import tensorflow as tf

from tfxc._keras import keras
from tfxc.layers import block_initializer
from tfxc.layers.block_initializer import in_blocks

ROWS, DIM = 1000, 16


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(block_initializer, "_BLOCK_ELEMENTS", 300 * DIM)


def made(initializer, shape=(ROWS, DIM)):
    table = in_blocks(initializer)(shape, dtype="bfloat16")
    assert table.dtype == tf.bfloat16 and table.shape == shape
    return table.numpy().astype(np.float32)


@pytest.mark.parametrize(
    "name",
    ["GlorotUniform", "GlorotNormal", "HeNormal", "LecunUniform", "RandomNormal", "TruncatedNormal"],
)
def test_the_numbers_of_the_whole(name):
    initializer = getattr(keras.initializers, name)(seed=1)
    found, whole = made(initializer), np.asarray(initializer((ROWS, DIM)))
    for first in range(0, ROWS, 300):  # each block
        np.testing.assert_allclose(found[first : first + 100].std(), whole.std(), rtol=0.1)
    np.testing.assert_allclose(np.abs(found).max(), np.abs(whole).max(), rtol=0.3)
    assert len(np.unique(found, axis=0)) == ROWS
    np.testing.assert_array_equal(made(initializer), found)
    assert (made(getattr(keras.initializers, name)(seed=2)) != found).mean() > 0.9


def test_fans_of_the_whole_shape():
    scaled = keras.initializers.VarianceScaling(2.0, "fan_out", "uniform", seed=3)
    np.testing.assert_allclose(np.abs(made(scaled)).max(), np.sqrt(3 * 2.0 / DIM), rtol=0.01)


def test_without_a_seed_two_tables_differ():
    normal = keras.initializers.RandomNormal
    assert (made(normal()) != made(normal())).mean() > 0.9


def test_other_initializers_are_asked_for_the_whole():
    assert (made(keras.initializers.Constant(0.25)) == 0.25).all()
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    found = made(lambda shape, dtype: tf.constant(values), (3, 2))
    np.testing.assert_array_equal(found, values)
