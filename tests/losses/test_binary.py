import loss_checks as checks
import numpy as np
import pytest
import tensorflow as tf
from sampler_checks import built, refreshed

from tfxc._keras import keras
from tfxc.losses import BinaryCrossentropy
from tfxc.samplers import MIDX, Mixture, Uniform, Unigram
from tfxc.scored import MASKED_LOGIT, Scored

NUM_CLASSES = 9


@pytest.mark.parametrize("labels", checks.CASES.values(), ids=checks.CASES)
@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_value_and_gradient(labels, scale):
    checks.check_over_classes(BinaryCrossentropy(), checks.binary_reference, labels, scale, atol=1e-4)


@pytest.mark.parametrize("labels", [[2], [0, 5], [-1, -1]])
def test_smoothed_as_keras_smooths_and_estimated_by_draws(labels):
    logits, query = checks.logits_for(1, NUM_CLASSES)[0], np.array([0.5, -1.0], np.float32)
    targets = np.isin(np.arange(NUM_CLASSES), labels).astype(np.float32)
    keras_loss = keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.2)
    loss, given = BinaryCrossentropy(label_smoothing=0.2), np.array(labels, np.int32)
    exact = lambda x: loss.call(given[np.newaxis], x)  # noqa: E731
    value, gradient = checks.value_and_gradient(exact, logits[np.newaxis])
    np.testing.assert_allclose(value[0], NUM_CLASSES * keras_loss(targets, logits), rtol=1e-5)
    sampler = built(Uniform(4, seed=3), NUM_CLASSES, 2)
    mean, error = checks.sampled_statistics(loss, sampler, query, logits, given, copies=20_000)
    assert (np.abs(mean - np.concatenate([value, gradient[0]])) <= 5 * error + 1e-6).all()


def test_sampled_by_hand():
    positives = Scored(tf.constant([[1.0, 2.0], [3.0, 9.0]]), tf.zeros([2, 2]))
    logits = tf.constant([[0.5, 2.0, MASKED_LOGIT], [0.5, -1.0, 3.0]])
    negatives = Scored(logits, tf.math.log([0.1, 0.5, 0.2]))
    is_label, hits = tf.constant([[True, True], [True, False]]), tf.constant([[-1, 1, -1], [-1, -1, 0]])
    losses = BinaryCrossentropy().sampled(positives, negatives, is_label, hits)
    first = checks.softplus(-1) + checks.softplus(-2) + checks.softplus(0.5) / 0.1
    second = checks.softplus(-3) + checks.softplus(0.5) / 0.1 + checks.softplus(-1) / 0.5
    np.testing.assert_allclose(losses, [first, second], rtol=1e-6)


@pytest.mark.parametrize("labels", [[0, 8, -1], [-1, -1, -1]])
def test_the_sampled_loss_and_gradient_are_unbiased(labels):
    query, logits = np.array([0.6, 0.8], np.float32), checks.logits_for(1, NUM_CLASSES, 1.5)[0]
    unigram = Unigram(5, counts=np.arange(1, NUM_CLASSES + 1), seed=3)
    mixture = Mixture([MIDX(6, num_codewords=2, seed=1), Uniform(3, seed=2), unigram])
    sampler = refreshed(mixture, logits[:, np.newaxis] * query / np.sum(query**2))
    labels = np.array(labels, np.int32)
    given = BinaryCrossentropy(), sampler, query, logits, labels
    mean, error = checks.sampled_statistics(*given, copies=30_000)
    want = np.append(*checks.binary_reference(logits[np.newaxis], [labels]))
    # 3.5 standard errors of 10 numbers: a right estimate fails for one seed in 200; ours is fixed.
    np.testing.assert_array_less(np.abs(mean - want), 3.5 * error + 1e-5)
    assert error[0] < 0.02 * want[0]


def test_empty_slots_add_nothing():
    def losses(logits):
        negatives = Scored(tf.where([[True, True, False]], MASKED_LOGIT, logits), tf.zeros([3]))
        positives, is_label = Scored(logits[:, :0], tf.zeros([1, 0])), tf.zeros([1, 0], bool)
        return BinaryCrossentropy().sampled(positives, negatives, is_label, checks.no_hits(negatives))

    values, gradients = checks.value_and_gradient(losses, np.array([[5.0, 6.0, 0.0]], np.float32))
    np.testing.assert_allclose(values, [np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(gradients, [[0, 0, 0.5]])
