import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import make_model
from loss_checks import logits_for, no_hits, sampled_losses
from sampler_checks import clustered, head_of, queries, refreshed
from scipy.special import expit

import tfxc
from tfxc.losses import SoftmaxAtK, SoftmaxCrossentropy
from tfxc.samplers import InBatch, SearchedHardNegatives, Uniform
from tfxc.scored import MASKED_LOGIT, Scored


def numpy_threshold(k, labels, drawn, counts):
    """The logit down to which there are k classes: of labels one each, of a draw 1 / its expected count."""
    classes = [(logit, 1.0) for logit in labels]
    classes += [(one, 1 / count) for one, count in zip(drawn, counts, strict=True) if one > MASKED_LOGIT]
    number = 0.0
    for logit, own in sorted(classes, reverse=True):
        number += own
        if number >= k - 0.5:
            return logit
    return -np.inf


@pytest.mark.parametrize("k", [1, 3, 8, 100])
@pytest.mark.parametrize("temperature", [0.5, 4.0])
def test_by_hand(k, temperature):
    random = np.random.default_rng(k)
    own = random.normal(size=(4, 3)).astype(np.float32)
    drawn = (2 * random.normal(size=(4, 6))).astype(np.float32)
    counts = np.exp(random.normal(size=(4, 6))).astype(np.float32)
    drawn[1, 2] = MASKED_LOGIT
    is_label = np.array([[True, False, False], [True, True, True], [True, True, False], [False] * 3])
    hits = np.full((4, 6), -1, np.int32)
    hits[2, 4] = 1
    drawn[2, 4] = own[2, 1]
    positives = Scored(tf.constant(own), tf.fill([4, 3], -0.5))
    negatives = Scored(tf.constant(drawn), tf.math.log(counts))
    given = positives, negatives, tf.constant(is_label), tf.constant(hits)
    got = SoftmaxAtK(k, temperature, reduction="none").sampled(*given)
    want = np.zeros(4)
    for n, row in enumerate(is_label):
        columns = np.flatnonzero(row)
        misses = hits[n] < 0
        threshold = numpy_threshold(k, own[n, columns], drawn[n, misses], counts[n, misses])
        corrected = drawn[n].astype(np.float64) - np.log(counts[n])
        for p in columns:
            target = own[n, p] + 0.5
            term = np.log(np.exp(target) + np.exp(corrected[drawn[n] > MASKED_LOGIT]).sum()) - target
            want[n] += expit((own[n, p] - threshold) / temperature) * term / len(columns)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("k", [1, 2, 5, 7])
def test_of_every_class_drawn_once_the_threshold_is_the_kth_largest(k):
    logits, labels = logits_for(9, 7), np.arange(9) % 7
    own = np.take_along_axis(logits, labels[:, np.newaxis], 1)
    hits = np.where(np.arange(7) == labels[:, np.newaxis], 0, -1).astype(np.int32)
    given = Scored(tf.constant(own), tf.zeros([9, 1])), Scored(tf.constant(logits), tf.zeros([]))
    kinds = SoftmaxAtK(k, 1.0), SoftmaxCrossentropy()
    losses = [loss.sampled(*given, tf.fill([9, 1], True), hits) for loss in kinds]
    threshold = -np.sort(-logits, axis=1)[:, k - 1]
    np.testing.assert_allclose(losses[0], expit(own[:, 0] - threshold) * losses[1], rtol=1e-5)


def test_no_gradient_flows_through_the_weights():
    logits = tf.constant(logits_for(3, 6))

    def gradient(loss, scale):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            given = Scored(logits[:, :1], tf.zeros([3, 1])), Scored(logits[:, 1:], tf.zeros([3, 5]))
            losses = loss.sampled(*given, tf.fill([3, 1], True), tf.fill([3, 5], -1))
            total = tf.reduce_sum(scale * losses)
        return tape.gradient(total, logits)

    weights = expit((logits[:, 0] - tf.sort(logits, 1, "DESCENDING")[:, 1]) / 2)
    want = gradient(SoftmaxCrossentropy(), tf.constant(weights, tf.float32))
    np.testing.assert_allclose(gradient(SoftmaxAtK(2, 2.0), 1.0), want, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("sampler", [Uniform(4, seed=0), Uniform(4, shared=True, seed=0), InBatch(None)])
def test_with_samplers(sampler):
    if not sampler.built:
        sampler.build((6, 1))
    labels = tf.constant([[0], [1], [5], [1]])
    losses = sampled_losses(SoftmaxAtK(2), sampler, tf.zeros([4, 1]), tf.constant(logits_for(4, 6)), labels)
    assert np.isfinite(losses).all() and (losses.numpy() > 0).all()


def test_over_all_classes_it_is_the_softmax_crossentropy():
    logits, labels = logits_for(5, 7), np.array([[0, 2], [6, -1], [3, -1], [-1, -1], [1, 4]])
    np.testing.assert_array_equal(SoftmaxAtK()(labels, logits), SoftmaxCrossentropy()(labels, logits))


def test_what_is_refused():
    with pytest.raises(ValueError, match="weighs by what a sampler draws.*give ExtremeClassifier a sampler"):
        make_model(loss=SoftmaxAtK())
    with pytest.raises(ValueError, match="k must be an integer of at least 1"):
        SoftmaxAtK(k=0)
    for bad in (0.0, float("nan")):
        with pytest.raises(ValueError, match=r"temperature must be in \(0, inf\)"):
            SoftmaxAtK(temperature=bad)


@pytest.mark.parametrize("masked", [0, 1])
def test_where_fewer_than_k_classes_are_known_a_label_counts_in_full(masked):
    row = [5.0, 4.0, 3.0] + masked * [MASKED_LOGIT]
    negatives = Scored(tf.constant([row]), tf.zeros([1, len(row)]))
    positives = Scored(tf.constant([[0.0]]), tf.zeros([1, 1]))
    given = positives, negatives, tf.constant([[True]]), no_hits(negatives)
    want = SoftmaxCrossentropy(reduction="none").sampled(*given)
    np.testing.assert_allclose(SoftmaxAtK(20, reduction="none").sampled(*given), want, rtol=1e-6)


def test_no_draws_at_all():
    none = Scored(tf.zeros([1, 0]), tf.zeros([1, 0]))
    positives = Scored(tf.constant([[2.0]]), tf.zeros([1, 1]))
    value = SoftmaxAtK(k=1).sampled(positives, none, tf.constant([[True]]), no_hits(none))
    np.testing.assert_allclose(value, [0.0], atol=1e-6)


@pytest.mark.long
@pytest.mark.traced
@pytest.mark.parametrize("traced", [False, True])
def test_of_no_label_and_no_draw_the_loss_is_0(traced):
    run = tf.function(tfxc.head_loss) if traced else tfxc.head_loss
    head, query, labels = head_of(clustered(6, 4)), tf.ones([3, 4]), tf.zeros([3, 0], tf.int32)
    assert float(run(head, SoftmaxAtK(), query, labels, InBatch())) == 0


def test_beside_a_search_of_all_cells_the_threshold_is_the_kth_largest():
    query, vectors = queries(40, 8), clustered(2000, 8)
    head, labels = head_of(vectors), tf.range(40)[:, tf.newaxis]
    logits, losses = head(query), []
    for loss in (SoftmaxAtK(10, 2.0), SoftmaxCrossentropy()):
        sampler = SearchedHardNegatives(10, num_uniform=20, num_cells=4, num_probes=4, seed=0)
        refreshed(sampler, head)
        losses.append(sampled_losses(loss, sampler, tf.constant(query), logits, labels))
    own = tf.gather(logits, labels, batch_dims=1)[:, 0]
    weights = expit((own - head.top_k(query, 10).scores[:, -1]) / 2)
    np.testing.assert_allclose(losses[0], weights * losses[1], rtol=1e-4)
