import numpy as np
import pytest
import tensorflow as tf
from loss_checks import binary_reference, logits_for, no_hits, sampled_losses, softplus
from sampler_checks import built

from tfxc.losses import GBCE, BinaryCrossentropy
from tfxc.samplers import InBatch
from tfxc.scored import MASKED_LOGIT, Scored


def beta(alpha, t):
    return alpha * (t * (1 - 1 / alpha) + 1 / alpha)


@pytest.mark.parametrize("t", [0.0, 0.4, 0.75, 1.0])
def test_uniform_by_hand(t):
    logits, labels = logits_for(2, 7), tf.constant([[4], [1]])
    negatives = Scored(tf.constant([[0.5, 9.0, -1.0], [0.3, 0.2, 0.1]]), tf.math.log(3 / 7))
    hits = tf.constant([[-1, 0, -1], [-1, -1, -1]])
    own = tf.gather(logits, labels, batch_dims=1)
    positives = Scored(own, tf.fill([2, 1], tf.math.log(3 / 7)))
    got = GBCE(calibration=t).sampled(positives, negatives, labels >= 0, hits)
    drawn = [softplus([0.5, -1.0]).sum(), softplus([0.3, 0.2, 0.1]).sum()]
    want = (beta(3 / 7, t) * softplus(-own[:, 0]) + drawn) / 4
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_several_labels_and_padding():
    positives = Scored(tf.constant([[1.0, 2.0], [3.0, 9.0], [0.0, 0.0]]), tf.math.log([[0.4, 1.0]] * 3))
    negatives = Scored(tf.constant([[0.5, 0.5]] * 3), tf.math.log([0.4, 1.0]))
    is_label = tf.constant([[True, True], [True, False], [False, False]])
    alpha = np.array([0.4, 1.0])
    own, drawn = beta(alpha, 0.75) * softplus([[-1.0, -2.0], [-3.0, -9.0]]), 2 * softplus(0.5)
    want = [(own[0].sum() + drawn) / 4, (own[1, 0] + drawn) / 3, drawn / 2]
    found = GBCE().sampled(positives, negatives, is_label, no_hits(negatives))
    np.testing.assert_allclose(found, want, rtol=1e-5)


def test_over_all_classes_it_is_the_binary_crossentropy():
    logits, labels = logits_for(5, 7), np.array([[0], [6], [3], [3], [1]])
    want, _ = binary_reference(logits, labels)
    np.testing.assert_allclose(GBCE(reduction="none")(labels, logits), want, rtol=1e-5)
    np.testing.assert_allclose(GBCE()(labels, logits), BinaryCrossentropy()(labels, logits), rtol=1e-6)


def test_edges():
    everything = Scored(tf.constant([[0.5]]), tf.math.log([[3.0]]))  # the only class there is
    none = Scored(tf.fill([1, 3], MASKED_LOGIT), tf.math.log([3.0]))
    found = GBCE().sampled(everything, none, tf.constant([[True]]), no_hits(none))
    np.testing.assert_allclose(found, [2.5 * softplus(-0.5) / 4], rtol=1e-6)
    sampler = built(InBatch(None, counts=np.ones(4)), 4, 2)
    labels = tf.constant([[-1], [-1]])
    losses = sampled_losses(GBCE(), sampler, tf.zeros([2, 2]), tf.constant(logits_for(2, 4)), labels)
    np.testing.assert_array_equal(losses, [0, 0])


@pytest.mark.parametrize("calibration", [-0.1, 1.5])
def test_the_calibration_is_checked(calibration):
    with pytest.raises(ValueError, match=rf"calibration must be in \[0, 1\], but got {calibration}"):
        GBCE(calibration=calibration)
