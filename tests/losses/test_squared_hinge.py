import numpy as np
import pytest
import tensorflow as tf
from loss_checks import CASES, check_over_classes, hinge_reference, value_and_gradient

from tfxc.losses import SquaredHinge
from tfxc.scored import MASKED_LOGIT, Scored


@pytest.mark.parametrize("labels", CASES.values(), ids=CASES)
@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_value_and_gradient(labels, scale):
    of_gradient = {"rtol": 1e-5, "atol": 1e-4}
    check_over_classes(SquaredHinge(), hinge_reference, labels, scale, atol=1e-3, of_gradient=of_gradient)


def test_beyond_the_margin_the_gradient_is_exactly_0():
    logits = np.array([[1.1, -1.1, 37.3, -5e8, 1.0, -1.0]], np.float32)
    losses, gradients = value_and_gradient(lambda x: SquaredHinge().call(np.array([[0, 2, 4]]), x), logits)
    assert losses.tolist() == [0.0] and not np.any(gradients)


def test_sampled_by_hand():
    positives = Scored(tf.constant([[0.5, 2.0], [-1.0, 9.0]]), tf.zeros([2, 2]))
    logits = tf.constant([[0.5, MASKED_LOGIT, 2.0], [0.5, -1.5, -1.0]])
    negatives = Scored(logits, tf.math.log([0.1, 0.5, 0.2]))
    is_label, hits = tf.constant([[True, True], [True, False]]), tf.constant([[-1, -1, 1], [-1, -1, 0]])
    losses = SquaredHinge().sampled(positives, negatives, is_label, hits)
    np.testing.assert_allclose(losses, [0.25 + 2.25 / 0.1, 4 + 2.25 / 0.1], rtol=1e-6)
