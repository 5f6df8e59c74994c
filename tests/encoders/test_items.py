"""The table of item vectors, with a row for padding before those of the classes."""

import numpy as np
import tensorflow as tf

from tfxc._keras import keras
from tfxc.encoders.items import item_vectors


def test_the_table_has_a_row_for_padding_first():
    items, vectors = item_vectors(num_classes=7, max_length=3, dim=2, table_dtype="float32")
    model = keras.Model(items, vectors)
    table = model.get_layer("item_embedding").get_weights()[0]
    assert table.shape == (8, 2)
    np.testing.assert_array_equal(model(tf.constant([[0, 7, 1]]))[0], table[[0, 7, 1]])
