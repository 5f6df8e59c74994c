"""What the example encoders promise: padding and the future do not matter."""

import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from encoders import gru4rec, lstm, sasrec  # noqa: E402


@pytest.mark.parametrize("encode", [sasrec, gru4rec])
def test_a_query_depends_on_its_past_items_alone(encode):
    encoder = encode(num_classes=50, max_length=8, dim=8, num_blocks=2)
    items = np.zeros([1, 8], np.int32)
    items[0, 4:] = [3, 1, 4, 1]
    before = encoder(tf.constant(items)).numpy()
    later = items.copy()
    later[0, 7] = 9
    np.testing.assert_allclose(encoder(tf.constant(later))[0, 4:7], before[0, 4:7], atol=1e-6)
    table = encoder.get_layer("item_embedding")
    weights = table.get_weights()
    weights[0][0] += 5  # the vector of padding
    table.set_weights(weights)
    np.testing.assert_allclose(encoder(tf.constant(items))[0, 4:], before[0, 4:], atol=1e-6)
    assert np.abs(encoder(tf.constant(later))[0, 7] - before[0, 7]).max() > 1e-3


def test_lstm_layers_go_on_where_the_batch_before_stopped():
    encoder = lstm(num_classes=50, max_length=3, dim=8, num_blocks=2, batch_size=2)
    whole = lstm(num_classes=50, max_length=6, dim=8, num_blocks=2, batch_size=2)
    whole.set_weights(encoder.get_weights())
    items = np.random.default_rng(0).integers(1, 51, size=[2, 6]).astype(np.int32)
    halves = [encoder(tf.constant(part)).numpy() for part in np.split(items, 2, axis=1)]
    np.testing.assert_allclose(np.concatenate(halves, 1), whole(tf.constant(items)), atol=1e-6)
    for layer in encoder.layers:
        if getattr(layer, "stateful", False):
            layer.reset_states()
    again = encoder(tf.constant(items[:, :3])).numpy()
    np.testing.assert_allclose(again, halves[0], atol=1e-6)
    assert np.abs(encoder(tf.constant(items[:, :3])).numpy() - again).max() > 1e-4
