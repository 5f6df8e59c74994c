"""Softmax cross-entropy: all classes, and its two sampled estimators."""

import numpy as np
import pytest
import tensorflow as tf
from loss_checks import (
    CASES,
    logits_for,
    sampled_losses,
    sampled_statistics,
    softmax,
    softmax_reference,
    value_and_gradient,
)
from sampler_checks import log_count

from tfxc._keras import tf_variable
from tfxc.ids import count_hits, is_positive
from tfxc.layers import DenseHead
from tfxc.losses import SoftmaxCrossentropy
from tfxc.samplers import MIDX, InBatch, LogUniform, Uniform
from tfxc.scored import MASKED_LOGIT, Scored

LABELS = pytest.mark.parametrize("labels", CASES.values(), ids=CASES)


@LABELS
@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_value_and_gradient(labels, scale):
    logits = logits_for(5, 7, scale)
    losses, gradients = value_and_gradient(lambda x: SoftmaxCrossentropy().call(np.array(labels), x), logits)
    want, want_gradients = softmax_reference(logits, labels)
    np.testing.assert_allclose(losses, want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradients, want_gradients, atol=1e-5)


def test_labels_of_rank_one_and_one_class():
    logits = logits_for(3, 4)
    want, _ = softmax_reference(logits, [[2], [0], [3]])
    np.testing.assert_allclose(SoftmaxCrossentropy()([2, 0, 3], logits), want.mean(), rtol=1e-6)
    assert float(SoftmaxCrossentropy()([0], [[17.0]])) == 0


@pytest.mark.parametrize("kind", ["ragged", "sparse", "int16"])
def test_every_form_of_labels(kind):
    rows = [[1, 3], [], [2]]
    labels = tf.ragged.constant(rows, tf.int64)
    if kind == "sparse":
        labels = labels.to_sparse()
    elif kind == "int16":
        labels = tf.cast(labels.to_tensor(-1), tf.int16)
    want, _ = softmax_reference(logits_for(3, 4), rows)
    np.testing.assert_allclose(SoftmaxCrossentropy()(labels, logits_for(3, 4)), want.mean(), rtol=1e-6)


def test_reductions_and_weights():
    logits, labels, weights = logits_for(5, 7), CASES["padded"], np.array([1.0, 5, 0, 2, 0.5])
    want, _ = softmax_reference(logits, labels)

    def reduced(reduction, **options):
        return SoftmaxCrossentropy(reduction=reduction)(np.array(labels), logits, **options)

    np.testing.assert_allclose(reduced("none"), want, rtol=1e-5)
    np.testing.assert_allclose(reduced("sum"), want.sum(), rtol=1e-5)
    np.testing.assert_allclose(reduced("sum", sample_weight=weights), (weights * want).sum(), rtol=1e-5)
    np.testing.assert_allclose(
        reduced("sum_over_batch_size", sample_weight=weights[:, np.newaxis]),
        (weights * want).sum() / 5,
        rtol=1e-5,
    )


def test_bad_input():
    loss, logits = SoftmaxCrossentropy(), logits_for(2, 4)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"outside \[0, 4\)"):
        loss([0, 4], logits)
    with pytest.raises(ValueError, match="integer class ids, but have dtype float32"):
        loss(np.eye(4, dtype=np.float32)[:2], logits)
    with pytest.raises(ValueError, match="estimator must be one of"):
        SoftmaxCrossentropy(estimator="blackout")
    assert np.isnan(loss([0], [[np.nan, 1.0]]))
    assert float(loss(tf.zeros([0], tf.int32), tf.zeros([0, 4]))) == 0


def sampled_by_hand(estimator, num_hits=None):
    positives = Scored(tf.constant([[1.0, 2.0]]), tf.math.log([[0.5, 0.25]]))
    negatives = Scored(tf.constant([[0.5, MASKED_LOGIT, 0.5]]), tf.math.log([[0.1, 0.5, 0.1]]))
    loss, is_label = SoftmaxCrossentropy(estimator=estimator), tf.constant([[True, True]])
    return float(loss.sampled(positives, negatives, is_label, num_hits)[0])


def test_estimators_by_hand():
    drawn, own = 2 * np.exp(0.5) / 0.1, np.exp([1.0, 2.0]) / [0.5, 0.25]
    np.testing.assert_allclose(sampled_by_hand("ranking"), np.log((own + drawn) / own).mean(), rtol=1e-6)
    total = np.exp(1) + np.exp(2) + drawn
    np.testing.assert_allclose(sampled_by_hand("partition"), np.log(total) - 1.5, rtol=1e-6)
    odds, noise = own, np.log1p(np.exp(0.5) / 0.1) * 2  # the model's odds of data against noise
    np.testing.assert_allclose(sampled_by_hand("nce"), np.log1p(1 / odds).mean() + noise, rtol=1e-6)
    hits = (np.log1p(1 / odds) + [0, 3] * np.log1p(odds)).mean()  # draws of the positive itself are noise
    got = sampled_by_hand("nce", tf.constant([[0, 3]]))
    np.testing.assert_allclose(got, hits + noise, rtol=1e-6)


def test_nce_is_tensorflows():
    """With accidental hits left in, as there by default."""
    random = np.random.default_rng(0)
    table, query = (tf.constant(random.normal(size=(n, 4)), tf.float32) for n in (12, 5))
    labels, ids = tf.constant([[3], [0], [7], [7], [11]]), tf.constant([7, 2, 2, 5, 0])
    sampler = LogUniform(5, shared=True, seed=0)
    sampler.build((12, 4))
    counted = log_count(sampler, query, labels, ids)
    own_count = log_count(sampler, query, labels, labels)
    want = tf.nn.nce_loss(
        table,
        tf.zeros([12]),
        labels,
        query,
        5,
        12,
        sampled_values=(ids, tf.exp(own_count), tf.exp(counted)),
    )
    logits = tf.matmul(query, table, transpose_b=True)
    drawn = tf.where(is_positive(ids, labels), MASKED_LOGIT, tf.gather(logits, ids, axis=1))
    own = tf.gather(logits, labels, batch_dims=1)
    got = SoftmaxCrossentropy("nce").sampled(
        Scored(own, own_count), Scored(drawn, counted), labels >= 0, count_hits(ids, labels)
    )
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_ranking_counts_draws_of_the_positive_itself():
    positives = Scored(tf.constant([[1.0]]), tf.math.log([[0.5]]))
    negatives = Scored(tf.constant([[0.5, MASKED_LOGIT, MASKED_LOGIT]]), tf.math.log([[0.1, 0.5, 0.5]]))
    loss = SoftmaxCrossentropy().sampled(positives, negatives, tf.constant([[True]]), tf.constant([[2]]))
    own, drawn = np.exp(1.0) / 0.5, np.exp(0.5) / 0.1
    np.testing.assert_allclose(loss, [np.log((3 * own + drawn) / own)], rtol=1e-6)


@pytest.mark.parametrize("estimator", ["ranking", "partition"])
def test_nothing_but_empty_slots(estimator):
    """Without a candidate the loss is that of the positives alone; without a label it is 0."""

    def losses(logits):
        negatives = Scored(tf.where([[True] * 3] * 2, MASKED_LOGIT, logits), tf.zeros([3]))
        positives = Scored(logits[:, :1], tf.zeros([2, 1]))
        return SoftmaxCrossentropy(estimator=estimator).sampled(
            positives, negatives, tf.constant([[True], [False]])
        )

    values, gradients = value_and_gradient(losses, logits_for(2, 3))
    np.testing.assert_allclose(values, [0, 0], atol=1e-6)
    np.testing.assert_allclose(gradients, 0, atol=1e-6)


@pytest.mark.parametrize("estimator", ["ranking", "partition", "nce"])
def test_a_batch_without_candidates(estimator):
    sampler = InBatch(None, counts=np.ones(4))
    sampler.build((4, 2))
    loss, labels = SoftmaxCrossentropy(estimator=estimator), tf.constant([[-1], [-1]])
    losses, gradients = value_and_gradient(
        lambda logits: sampled_losses(loss, sampler, tf.zeros([2, 2]), logits, labels), logits_for(2, 4)
    )
    np.testing.assert_array_equal(losses, [0, 0])
    np.testing.assert_array_equal(gradients, np.zeros((2, 4)))


def midx_of(logits, num_negatives):
    """A MIDX over one-dimensional class vectors: its query is the number 1, its logits these, quantised."""
    head = DenseHead(len(logits))
    head.build((None, 1))
    tf_variable(head.table).assign(logits[:, np.newaxis])
    sampler = MIDX(num_negatives, num_codewords=2, seed=1)
    sampler.build((len(logits), 1))
    sampler.refresh(head)
    return sampler


@pytest.mark.parametrize("proposal", ["uniform", "midx"])
def test_partition_tends_to_the_full_softmax_as_one_over_samples(proposal):
    logits, labels = logits_for(1, 12, scale=1.5)[0], np.array([4, 7], np.int32)
    want = np.append(*softmax_reference(logits[np.newaxis], [labels]))
    biases, errors = [], []
    for num_negatives in (10, 40, 160):
        sampler = Uniform(num_negatives, seed=1) if proposal == "uniform" else midx_of(logits, num_negatives)
        if not sampler.built:
            sampler.build((12, 1))
        loss = SoftmaxCrossentropy(estimator="partition")
        mean, error = sampled_statistics(
            loss, sampler, np.ones(1, np.float32), logits, labels, copies=2_000_000 // num_negatives
        )
        biases.append(np.abs(mean - want).max())
        errors.append(error.max())
        # The bias is no more than c / S with one c for value and gradient, up to the noise of the mean.
        np.testing.assert_allclose(mean, want, atol=2.5 / num_negatives + 4 * error.max())
    assert biases[0] > 3 * biases[1] - 4 * errors[1]
    assert biases[1] > 3 * biases[2] - 4 * errors[2]


@pytest.mark.parametrize(
    ("estimator", "num_negatives"), [("ranking", 3), ("ranking", 100), ("partition", 200), ("nce", 30)]
)
@pytest.mark.parametrize("proposal", [Uniform, LogUniform])
def test_training_converges_to_the_frequencies_of_the_data(estimator, num_negatives, proposal):
    """A table of logits fitted by sampled gradients gives back the distribution that the labels come from.

    Ranking with few and with many samples, where positives are often drawn; partition with many.
    """
    target = softmax(logits_for(1, 30, scale=1.0, seed=3))[0]
    sampler = proposal(num_negatives, seed=0)
    sampler.build((30, 1))
    loss, table = SoftmaxCrossentropy(estimator=estimator), tf.Variable(tf.zeros([30]))
    optimum = -np.sum(target * np.log(target))

    @tf.function
    def step(rate):
        seed = tf.stack([7, tf.cast(1e6 * rate, tf.int32)])
        drawn = tf.random.stateless_categorical(tf.math.log(target)[tf.newaxis], 500, seed)[0]
        labels = tf.cast(drawn, tf.int32)[:, tf.newaxis]
        with tf.GradientTape() as tape:
            logits = tf.repeat(table[tf.newaxis], 500, axis=0)
            total = loss.reduce(sampled_losses(loss, sampler, tf.zeros([500, 1]), logits, labels))
        table.assign_sub(rate * tape.gradient(total, table))

    average = np.zeros(30)
    for i in range(300):
        step(tf.constant(8.0 / (1 + i / 40), tf.float32))
        average += table.numpy() / 100 if i >= 200 else 0
    fitted = softmax(average)
    assert -np.sum(target * np.log(fitted)) - optimum < 4e-3
    np.testing.assert_allclose(fitted, target, rtol=0.08, atol=3e-3)


def test_a_positive_that_is_never_drawn_trains_uncorrected():
    never, certain = (Scored(tf.constant([[1.0]]), tf.constant([[count]])) for count in (float("-inf"), 0.0))
    negatives = Scored(tf.constant([[0.5]]), tf.constant([[0.0]]))
    losses = [
        SoftmaxCrossentropy().sampled(own, negatives, tf.constant([[True]])) for own in (never, certain)
    ]
    np.testing.assert_allclose(losses, np.log1p(np.exp(-0.5)), rtol=1e-6)
