"""The head of a benchmark whose weights lie anywhere."""

import numpy as np
import tensorflow as tf
from _unstructured_head import UnstructuredHead
from classifier_checks import DIM, NUM_CLASSES, features, make_model

from tfxc._keras.weights import tf_variable


def test_weights_lie_anywhere_give_the_logits_and_move():
    head = UnstructuredHead(NUM_CLASSES, fan_in=2)
    model = make_model(head=head, run_eagerly=True)
    model.fit(features(20), np.arange(20), verbose=0)
    query = tf.constant(features(3))
    for _ in range(2):
        dense, pairs = np.zeros(NUM_CLASSES * DIM), tf_variable(head.pairs).numpy()
        dense[pairs] = tf_variable(head.kernel).numpy()[0]
        logits = query.numpy() @ dense.reshape(NUM_CLASSES, DIM).T + tf_variable(head.bias).numpy()
        np.testing.assert_allclose(head(query), logits, atol=1e-5)
        ids = tf.constant([[0, 3], [24, 7], [5, 5]])
        np.testing.assert_allclose(
            head.score(query, ids), np.take_along_axis(logits, ids.numpy(), 1), atol=1e-5
        )
        assert head.rewire(0.1, model.optimizer)["moved"] == 5
        moved = tf_variable(head.pairs).numpy()
        assert len(set(moved)) == 2 * NUM_CLASSES and (moved != pairs).sum() == 5
        assert (tf_variable(head.kernel).numpy()[0, moved != pairs] == 0).all()
    rows = np.bincount(pairs // DIM, minlength=NUM_CLASSES)
    assert rows.sum() == 2 * NUM_CLASSES and rows.min() < 2 < rows.max()
