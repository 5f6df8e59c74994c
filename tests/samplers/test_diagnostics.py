import numpy as np
import pytest
import tensorflow as tf
from classifier_checks import log_softmax
from long_cases import long_after
from sampler_checks import clustered, head_of, labels_for, log_expected_count, queries, refreshed

from tfxc.samplers import (
    DNS,
    LSH,
    MIDX,
    HardNegatives,
    InBatch,
    LogUniform,
    Mixture,
    Sampler,
    SearchedHardNegatives,
    Uniform,
    Unigram,
    cumulative_probability,
    proposal_quality,
)

# One query [1] and the class vectors whose softmax is 1/2, 1/4, 1/8, 1/8.
PROBS = np.array([0.5, 0.25, 0.125, 0.125])
ONE = tf.ones([1, 1])


def head_of_probs(probs=PROBS):
    return head_of(np.log(probs)[:, np.newaxis].astype(np.float32))


def built(sampler, shape=(4, 1)):
    sampler.build(shape)
    return sampler


def quality_of(sampler, labels, head=None):
    quality = proposal_quality(built(sampler), head or head_of_probs(), ONE, tf.constant(labels))
    return [float(values[0]) for values in quality]


MIXED = 0.75 * 0.25 + 0.25 * PROBS


@pytest.mark.parametrize(
    ("sampler", "kl", "size"),
    [
        # Σ p log(p / (1/4)) = 1/2 log 2 + 1/4 log 1 + 2/8 log(1/2); Σ p² / (1/4) = 4 · 11/32
        (Uniform(8), 0.25 * np.log(2), 8 / (4 * 11 / 32)),
        (Unigram(5, counts=1000 * PROBS, smoothing=0), 0, 5),  # the softmax itself
        (
            Mixture([Uniform(6), Unigram(2, counts=PROBS, smoothing=0)]),
            (PROBS * np.log(PROBS / MIXED)).sum(),
            8 / (PROBS**2 / MIXED).sum(),
        ),
    ],
)
def test_divergence_and_sample_size_by_hand(sampler, kl, size):
    assert quality_of(sampler, [[1]])[:2] == pytest.approx([kl, size], rel=1e-5, abs=1e-6)


def test_hits_count_every_positive_once_and_padding_never():
    labels = [[1]], [[0, 2]], [[3, -1]], [[-1, -1]]
    hits = [quality_of(Unigram(5, counts=PROBS, smoothing=0), own)[2] for own in labels]
    np.testing.assert_allclose(hits, [0.25, 0.625, 0.125, 0], rtol=1e-5)


def test_labels_that_are_passed_over_are_no_hits():
    head = head_of(clustered(50, 6))
    sampler = refreshed(SearchedHardNegatives(5, 10, num_cells=4, num_probes=4, seed=1), head)
    query = tf.constant(queries(4, 6))
    ranked = head.top_k(query, 50).ids
    found, beyond = (
        proposal_quality(sampler, head, query, ranked[:, own : own + 1]).accidental_hits for own in (0, 40)
    )
    np.testing.assert_allclose(found, 0, atol=1e-6)
    np.testing.assert_allclose(beyond, 10 / 45 / 15, rtol=1e-4)


@pytest.mark.parametrize("shared", [False, True])
def test_labels_come_in_every_form(shared):
    head, query = head_of(clustered(50, 6)), tf.constant(queries(3, 6))
    sampler = refreshed(MIDX(20, num_codewords=4, shared=shared, seed=0), head)

    def measured(labels):
        curve = cumulative_probability(sampler, head, query, labels)
        return np.concatenate([*proposal_quality(sampler, head, query, labels), curve])

    want = measured(tf.constant([[3], [7], [9]]))
    ragged = tf.ragged.constant([[3], [7], [9]])
    for labels in (np.array([3, 7, 9]), [[3, -1], [7, 7], [9, -1]], ragged, ragged.to_sparse()):
        np.testing.assert_allclose(measured(labels), want, rtol=1e-6)
    for measure in (proposal_quality, cumulative_probability):
        with pytest.raises(ValueError, match="one row of labels for each query.* are 2 instead of 3"):
            measure(sampler, head, query, tf.constant([3, 7]))
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"label id is outside \[0, 50\)"):
            measure(sampler, head, query, tf.constant([3, 7, 50]))
        with pytest.raises(ValueError, match=r"query must be \[N, D\]"):
            measure(sampler, head, query[tf.newaxis], tf.constant([[3, 7, 9]]))


class Never(Sampler):
    def log_expected_count(self, given, ids):
        return self.log_num_draws + tf.where(ids < 3, -tf.math.log(3.0), float("-inf"))


def test_a_class_out_of_reach_diverges_unless_it_has_no_weight():
    kl, size, _ = quality_of(Never(3), [[0]])
    assert kl == np.inf and size == 0
    far = np.array([[0.0], [0.0], [0.0], [-1e4]], np.float32)
    assert quality_of(Never(3), [[0]], head_of(far))[0] == pytest.approx(0, abs=1e-6)


def test_both_figures_refuse_a_sampler_without_expected_counts():
    head, labels = head_of_probs(), tf.constant([[0]])
    for sampler in (Sampler(3), DNS(2, num_candidates=3)):
        for measure in (proposal_quality, cumulative_probability):
            with pytest.raises(ValueError, match=f"{type(sampler).__name__} does not know how often a class"):
                measure(built(sampler) if not sampler.built else sampler, head, ONE, labels)


def test_both_figures_refuse_a_query_without_candidates():
    sampler, query = built(InBatch(counts=np.ones(4))), tf.ones([2, 1])
    for measure in (proposal_quality, cumulative_probability):
        with pytest.raises(tf.errors.InvalidArgumentError, match="InBatch has no candidates.* in row 0"):
            measure(sampler, head_of_probs(), query, tf.constant([[3], [-1]]))


@pytest.mark.parametrize(
    "make",
    long_after(
        4,
        lambda counts: MIDX(20, num_codewords=4, seed=0),
        lambda counts: MIDX(20, num_codewords=4, shared=True, seed=0),
        lambda counts: InBatch(20, counts=counts),
        lambda counts: Mixture([MIDX(20, num_codewords=4, seed=0), Uniform(5, shared=True)]),
        lambda counts: Mixture([Uniform(5), InBatch(20, counts=counts)]),
        lambda counts: LSH(20, num_tables=4, candidates="union", seed=0),
        lambda counts: LogUniform(20, shared=True),
        lambda counts: LSH(20, num_tables=4, query="label", seed=0),
    ),
)
def test_streamed_in_blocks_both_figures_are_sums_over_all_classes(make, monkeypatch):
    monkeypatch.setattr("tfxc.layers.head._BLOCK_MIN", 32)
    monkeypatch.setattr("tfxc.layers.head._BLOCK_ELEMENTS", 3 * 32)
    monkeypatch.setattr("tfxc.samplers.diagnostics._BLOCK", 32)
    head = head_of(clustered(301, 6))
    sampler = refreshed(make(np.arange(1.0, 302)), head)
    query, labels = 2 * queries(4, 6), tf.constant([[3], [7], [7], [30]])
    quality = proposal_quality(sampler, head, tf.constant(query), labels)
    logits = head(query).numpy().astype(np.float64)
    log_p, ids = log_softmax(logits), tf.tile(tf.range(301)[tf.newaxis], [4, 1])
    counts = np.exp(log_expected_count(sampler, tf.constant(query), labels, ids).numpy())
    counts = np.broadcast_to(counts, log_p.shape).astype(np.float64)
    q = counts / counts.sum(1, keepdims=True)
    np.testing.assert_allclose(quality.kl, (np.exp(log_p) * (log_p - np.log(q))).sum(1), rtol=1e-4)
    sample_size = 1 / (np.exp(2 * log_p) / counts).sum(1)
    np.testing.assert_allclose(quality.effective_sample_size, sample_size, rtol=1e-4)
    np.testing.assert_allclose(
        quality.accidental_hits, np.take_along_axis(q, labels.numpy(), 1)[:, 0], rtol=1e-4
    )
    curve = cumulative_probability(sampler, head, tf.constant(query), labels)
    best_first = np.argsort(-logits, axis=1, kind="stable")
    np.testing.assert_allclose(curve, np.cumsum(np.take_along_axis(q, best_first, 1), 1).mean(0), rtol=1e-5)
    assert curve[-1] == pytest.approx(1)


@pytest.mark.long
@pytest.mark.traced
def test_in_a_graph():
    head, query = head_of(clustered(301, 6)), tf.constant(queries(3, 6))
    sampler = refreshed(Mixture([MIDX(20, num_codewords=4, seed=0), Uniform(5, shared=True)]), head)
    measure = lambda: proposal_quality(sampler, head, query, labels_for(query))  # noqa: E731
    for one, two in zip(tf.function(measure)(), measure(), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)


def test_example_ids_reach_a_sampler_that_reads_them():
    sampler, labels = built(HardNegatives(2, 3, seed=1)), tf.constant([[0]])
    with pytest.raises(ValueError, match="no example ids"):
        proposal_quality(sampler, head_of_probs(), ONE, labels)
    # Without a table all draws are uniform.
    quality = proposal_quality(sampler, head_of_probs(), ONE, labels, tf.constant([0]))
    assert float(quality.kl[0]) == pytest.approx(0.25 * np.log(2), abs=1e-6)


def test_one_class():
    head = head_of(np.ones([1, 1], np.float32))
    quality = proposal_quality(built(Uniform(4), (1, 1)), head, ONE, tf.constant([[0]]))
    assert [float(values[0]) for values in quality] == pytest.approx([0, 4, 1])


def test_cumulative_probability_by_hand():
    head = head_of_probs(PROBS[[2, 0, 3, 1]])  # ranks: class 1, 3, 0, 2 (the lower id first)
    labels = tf.constant([[0]])
    np.testing.assert_allclose(cumulative_probability(None, head, ONE, labels), np.cumsum(PROBS), rtol=1e-6)
    unigram = built(Unigram(3, counts=[1.0, 2.0, 3.0, 4.0], smoothing=0))
    curve = cumulative_probability(unigram, head, ONE, labels)
    np.testing.assert_allclose(curve, [0.2, 0.6, 0.7, 1.0], rtol=1e-6)
