import functools

import numpy as np
import pytest
import tensorflow as tf
from long_cases import long_after
from sampler_checks import (
    all_probs,
    built,
    check_distribution,
    clustered,
    divergence,
    head_of,
    labels_for,
    quantised,
    quantised_softmax,
    queries,
    refreshed,
    sample,
    softmax,
)

from tfxc._keras.weights import tf_variable
from tfxc.samplers import MIDX, LearnedMIDX, Step, midx, quantization
from tfxc.samplers.alias import alias_table
from tfxc.samplers.moments import Moments, log_frequency

VARIANTS = {"rq": MIDX, "pq": functools.partial(MIDX, quantizer="pq"), "learned": LearnedMIDX}


def make(num_negatives, variant="rq", num_codewords=8, **options):
    return VARIANTS[variant](num_negatives, num_codewords=num_codewords, seed=5, **options)


@pytest.mark.parametrize(  # "learned" draws as "rq" does
    ("variant", "num_classes"),
    long_after(4, ("learned", 50), ("pq", 50), ("rq", 1000), ("rq", 1), ("rq", 50), ("pq", 1000), ("rq", 3)),
)
def test_distribution_before_and_after_refresh(variant, num_classes):
    sampler, vectors = built(make(10, variant), num_classes, 7), clustered(num_classes, 7)
    np.testing.assert_allclose(all_probs(sampler, queries(1, 7)), 1 / num_classes, rtol=1e-5)
    check_distribution(sampler, 7)  # which shows it queries, whose moments weight the classes
    moments = sampler.queries.moments(), Moments.of(vectors)
    sampler.refresh(head_of(vectors))
    log_weights = log_frequency(vectors, *moments) - log_frequency(quantised(sampler), *moments)
    np.testing.assert_allclose(np.log(sampler.class_weight), log_weights, atol=1e-3)
    query = queries(3, 7)
    want = quantised_softmax(sampler, query)
    np.testing.assert_allclose(all_probs(sampler, query), want, rtol=1e-4)
    check_distribution(sampler, 7)


@pytest.mark.parametrize("variant", ["rq", "pq"])
def test_distribution_over_many_classes(variant):
    vectors = clustered(20_000, 16, num_clusters=40, scale=0.7)
    sampler = refreshed(make(50, variant, num_codewords=16), vectors)
    check_distribution(sampler, 16, num_draws=1_000_000)


@pytest.mark.parametrize("with_index", [False, True])
@pytest.mark.parametrize("variant", ["rq", "pq"])
def test_shared_draws_come_from_the_mean_of_the_proposals(variant, with_index):
    sampler = built(make(50_000, variant, shared=True), 60, 6)
    if with_index:
        sampler.refresh(head_of(clustered(60, 6)))
        want = quantised_softmax(sampler, queries(4, 6)).mean(0, keepdims=True)
    check_distribution(sampler, 6, num_draws=400_000)
    query = queries(4, 6)
    np.testing.assert_allclose(all_probs(sampler, query), want if with_index else 1 / 60, rtol=1e-4)


def test_bias_and_normalised_head_are_sampled_by_their_logits():
    """As many codewords as classes: the quantisation is exact, so Q must be the head's softmax."""
    head = head_of(clustered(20, 5), normalize=True, temperature=0.3, use_bias=True)
    tf_variable(head.bias).assign(queries(1, 20)[0])
    sampler = refreshed(MIDX(5, num_codewords=20, seed=0), head)
    query = queries(3, 5)
    want = softmax(head(query).numpy().astype(np.float64))
    np.testing.assert_allclose(all_probs(sampler, head.effective_query(query).numpy()), want, rtol=1e-3)


def test_closer_to_the_softmax_than_uniform_and_better_with_residuals():
    vectors, query = clustered(600, 8), queries(64, 8)
    target = softmax(query.astype(np.float64) @ vectors.T)
    divergences = {"uniform": np.mean(np.sum(target * np.log(target * 600), axis=1))}
    for quantizer in ("rq", "pq"):
        sampler = refreshed(MIDX(5, num_codewords=16, quantizer=quantizer, seed=0), vectors)
        divergences[quantizer] = divergence(target, all_probs(sampler, query))
    assert divergences["rq"] < divergences["pq"] < 0.3 * divergences["uniform"]
    assert divergences["rq"] < 0.1 * divergences["uniform"]


@pytest.mark.parametrize("quantizer", ["rq", "pq"])
@pytest.mark.parametrize("shared", [False, True])
def test_kmeans_minds_the_classes_that_queries_score_high(quantizer, shared):
    vectors = clustered(500, 8)
    vectors[:, 0] = np.where(np.arange(500) % 10, 0.0, 5.0)
    query = queries(64, 8) + np.eye(8, dtype=np.float32)[0]
    sampler = built(MIDX(5, num_codewords=8, quantizer=quantizer, shared=shared, seed=0), 500, 8)
    target = softmax(query.astype(np.float64) @ vectors.T)
    target = target.mean(0, keepdims=True) if shared else target
    divergences = []
    for _ in range(2):
        sampler.refresh(head_of(vectors))
        divergences.append(divergence(target, all_probs(sampler, query)))
        sample(sampler, tf.constant(query), tf.zeros([64, 1], tf.int32))
    assert divergences[1] < 0.9 * divergences[0]


@pytest.mark.long
@pytest.mark.parametrize("quantizer", ["rq", "pq"])
def test_kmeans_that_sees_few_of_the_rows_does_as_well_as_with_all(monkeypatch, quantizer):
    """Zipf's law: half of the probability is with fewer than ten of 20,000 classes; k-means sees 2,048."""
    vectors = clustered(20_000, 8, num_clusters=200, scale=1.0)
    head, query = head_of(vectors, use_bias=True), queries(32, 8, seed=4)
    ranks = np.random.default_rng(3).permutation(20_000) + 1
    tf_variable(head.bias).assign(-1.5 * np.log(ranks))
    effective = head.effective_query(query).numpy()
    target = softmax(head(query).numpy().astype(np.float64))

    def mean_divergence():
        divergences = []
        for seed in range(3):
            sampler = built(MIDX(5, num_codewords=4, quantizer=quantizer, seed=seed), 20_000, 9)
            sampler.queries.follow(tf.constant(effective), 1)
            sampler.refresh(head)
            divergences.append(divergence(target, all_probs(sampler, effective)))
        return np.mean(divergences)

    of_few = mean_divergence()
    monkeypatch.setattr(quantization, "_POINTS_PER_CODEWORD", 20_000)
    assert of_few < 1.1 * mean_divergence()


def test_classes_are_weighted_where_frequency_lies_in_the_lengths_of_vectors():
    """Queries of mean 0 and no biases: of a cell, the longest comes most."""
    random = np.random.default_rng(0)
    vectors = queries(5000, 16)
    vectors *= 5 * random.uniform(size=(5000, 1)) ** 2 / np.linalg.norm(vectors, axis=1, keepdims=True)
    query = queries(64, 16, seed=1)
    target, head = softmax(query.astype(np.float64) @ vectors.T), head_of(vectors)
    divergences = []
    for seen in (None, query):
        sampler = built(MIDX(5, num_codewords=16, seed=0), 5000, 16)
        if seen is not None:
            sampler.queries.follow(tf.constant(seen), 1)
        sampler.refresh(head)
        divergences.append(divergence(target, all_probs(sampler, query)))
        weights = tf_variable(sampler.class_weight).numpy()
        if seen is None:
            np.testing.assert_array_equal(weights, 1)
    heavy = np.linalg.norm(vectors, axis=1) > 4
    assert weights[heavy].mean() > 2 * weights[~heavy].mean()
    assert divergences[1] < 0.85 * divergences[0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_uniform_class_weights_give_the_proposal_of_the_paper(variant):
    """In float64: a codeword is the plain mean of its classes, and Q the softmax over quantised vectors."""
    vectors, query = clustered(60, 6), queries(3, 6)
    vectors[:6] *= 2  # frequencies would give these weight
    sampler = built(make(10, variant, num_codewords=4, class_weights="uniform"), 60, 6)
    check_distribution(sampler, 6)  # which shows it queries
    sampler.refresh(head_of(vectors))
    np.testing.assert_array_equal(sampler.class_weight, 1)
    codes = np.divmod(tf_variable(sampler.cell).numpy(), 4)
    codebooks = [tf_variable(codebook).numpy() for codebook in sampler.codebooks]
    left, right = np.split(vectors.astype(np.float64), 2, axis=1)
    if variant != "pq":
        left, right = vectors, vectors - codebooks[0][codes[0]].astype(np.float64)
    for codebook, own, codes_of_classes in zip(codebooks, (left, right), codes, strict=True):
        for codeword in np.unique(codes_of_classes):
            mean = own[codes_of_classes == codeword].mean(0)
            np.testing.assert_allclose(codebook[codeword], mean, atol=1e-4)
    logits = query.astype(np.float64) @ quantised(sampler).T
    np.testing.assert_allclose(all_probs(sampler, query), softmax(logits), rtol=1e-4)
    check_distribution(sampler, 6)
    assert LearnedMIDX.from_config(sampler.get_config()).class_weights == "uniform"


def test_a_class_is_drawn_however_little_it_weighs():
    vectors = np.float32([[0, 0], [0, 0.5], [60, 0], [60, 0.5]])
    sampler = built(MIDX(5, num_codewords=1, seed=0), 4, 2)
    sampler.queries.follow(tf.constant([[2.0, 0.0]]), 1)
    sampler.refresh(head_of(vectors))
    weights = tf_variable(sampler.class_weight).numpy()
    np.testing.assert_allclose(weights[:2], np.exp(-10), rtol=1e-5)  # of exp(-119)
    assert (weights[2:] > 1).all()
    check_distribution(sampler, 2)


def test_refresh_follows_the_head_and_is_deterministic():
    def probs_after(sampler, seed):
        sampler.refresh(head_of(clustered(100, 6, seed=seed)))
        return all_probs(sampler, queries(2, 6))

    sampler, other = (built(make(5), 100, 6) for _ in range(2))
    first, second = probs_after(sampler, seed=1), probs_after(sampler, seed=9)
    np.testing.assert_array_equal(probs_after(other, seed=9), second)  # whatever the index was before
    np.testing.assert_array_equal(probs_after(other, seed=1), first)
    assert np.abs(first - second).max() > 0.01


def test_memory_that_runs_out_leaves_the_index_as_it_was(monkeypatch):
    def no_memory(*_):
        raise MemoryError

    sampler = refreshed(make(5), clustered(100, 6, seed=1))
    before = all_probs(sampler, queries(2, 6))
    monkeypatch.setattr(midx, "sorted_by_cell", no_memory)
    with pytest.raises(MemoryError):
        sampler.refresh(head_of(clustered(100, 6, seed=9)))
    np.testing.assert_array_equal(all_probs(sampler, queries(2, 6)), before)


def values_of(sampler):
    return {name: tf_variable(getattr(sampler, name)).numpy() for name in midx.STATE}


@pytest.mark.long
@pytest.mark.parametrize("class_weights", ["frequency", "uniform"])
@pytest.mark.parametrize("variant", ["rq", "pq"])
def test_a_refresh_encodes_the_classes_that_changed_and_the_others_follow_their_cells(variant, class_weights):
    vectors, query = clustered(600, 6, num_clusters=20), queries(32, 6)
    sampler, resumed, whole = (built(make(5, variant, class_weights=class_weights), 600, 6) for _ in range(3))
    sample(sampler, query, labels_for(query))
    sampler.refresh(head_of(vectors))
    sampler.queries.follow(queries(8, 6, seed=7), 2)
    changed, before = [7, 8, 250], values_of(sampler)
    vectors[changed] = clustered(600, 6, seed=9)[:3]
    for each in resumed, whole:
        each.set_weights(sampler.get_weights())
    target = softmax(query.astype(np.float64) @ vectors.T)
    stale = divergence(target, all_probs(sampler, query))
    whole._is_whole = lambda *_: True
    for each in sampler, resumed, whole:
        each.refresh(head_of(vectors))
    for own, other in zip(sampler.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_array_equal(own, other)
    after = values_of(sampler)
    assert after["whole_at"] == before["whole_at"] == 1
    np.testing.assert_array_equal(np.flatnonzero(after["fingerprint"] != before["fingerprint"]), changed)
    codebooks = [after[name] for name in midx.CODEBOOKS]
    assert (codebooks[0] != before["codebook_0"]).any()
    codes = quantization.encode(head_of(vectors), codebooks, variant == "rq")
    np.testing.assert_array_equal(after["cell"][changed], (8 * codes[0] + codes[1])[changed])
    stayed = np.delete(np.arange(600), changed)
    pairs = np.stack([before["cell"], after["cell"]])[:, stayed]
    assert len(np.unique(pairs, axis=1).T) == len(np.unique(pairs[0]))  # each cell went to one
    np.testing.assert_allclose(all_probs(sampler, query), quantised_softmax(sampler, query), rtol=1e-4)
    check_distribution(sampler, 6)
    divergences = [divergence(target, all_probs(each, query)) for each in (sampler, whole)]
    assert divergences[0] < stale + 0.05 and divergences[1] < stale + 0.05
    vectors[250, 1] = np.nan
    with pytest.raises(ValueError, match=r"class 250.*not finite"):
        sampler.refresh(head_of(vectors))


@pytest.mark.long
def test_refreshes_are_whole_at_growing_intervals_and_where_most_classes_changed():
    vectors, sampler = clustered(200, 6), built(make(5), 200, 6)
    whole = []
    for step in range(20):
        tf_variable(sampler.counter).assign(step)
        vectors[step] += 0.1
        sampler.refresh(head_of(vectors))
        whole.append(int(tf_variable(sampler.whole_at)))
    assert sorted(set(whole)) == [0, 1, 4, 16]
    sampler.refresh(head_of(vectors + 1))
    assert int(tf_variable(sampler.whole_at)) == 19


@pytest.mark.parametrize("slots_at_once", [1, 30, 10_000])
def test_alias_tables_are_made_of_some_cells_at_a_time(monkeypatch, slots_at_once):
    monkeypatch.setattr(midx, "_SLOTS_AT_ONCE", slots_at_once)
    random = np.random.default_rng(0)
    cell = np.minimum(random.zipf(1.3, 500) - 1, 24).astype(np.int32)
    weight = random.exponential(size=500).astype(np.float32)
    index = midx.sorted_by_cell(cell, weight, 5)
    threshold, alias, classes, own = index["slots"].T
    order, offsets = np.argsort(cell, kind="stable"), index["cell_offsets"]
    np.testing.assert_array_equal(classes, order)
    np.testing.assert_array_equal(own.copy().view(np.float32), weight[order])
    want_threshold, want_alias = alias_table(weight[order], offsets)
    np.testing.assert_array_equal(alias, want_alias)
    np.testing.assert_allclose(threshold.copy().view(np.float32), want_threshold, rtol=1e-6)


@pytest.mark.traced
@pytest.mark.parametrize("shared", [False, True])
def test_queries_that_are_not_finite_are_an_error(shared):
    sampler = built(make(3, shared=shared), 20, 4)
    before = tf_variable(sampler.queries.mean).numpy()
    query = tf.constant([[0.0, 1, 2, 3], [np.nan, 1, 2, 3]])
    for ask in (sampler.sample, tf.function(sampler.sample)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="finite"):
            ask(Step(query, labels_for(query)))
        np.testing.assert_array_equal(sampler.queries.mean, before)


@pytest.mark.parametrize("seed", [-1, 2**31 - 1, -(2**63)])
def test_any_seed_fits_codebooks(seed):
    sampler = refreshed(MIDX(3, num_codewords=8, seed=seed), clustered(20, 4))
    assert len(np.unique(tf_variable(sampler.cell))) > 1


def test_queries_too_large_for_an_index_are_an_error():
    sampler = built(make(3), 20, 4)
    before = all_probs(sampler, queries(2, 4))
    sampler.queries.follow(tf.constant([[1e20, 0, 0, 0], [-1e20, 0, 0, 0]], tf.float32), 1)
    with pytest.raises(ValueError, match="training has diverged"):
        sampler.refresh(head_of(clustered(20, 4)))
    np.testing.assert_array_equal(all_probs(sampler, queries(2, 4)), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_codewords": 0}, r"num_codewords must be an integer in \[1, 1024\], but got 0"),
        ({"num_codewords": 2000}, r"in \[1, 1024\]"),
        ({"class_weights": "counts"}, "class_weights must be one of.*frequency.*uniform.*counts"),
        ({"quantizer": "opq"}, "quantizer must be one of .'rq', 'pq'., but got 'opq'"),
    ],
)
def test_arguments_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        MIDX(4, **options)


def test_shapes_are_checked():
    with pytest.raises(ValueError, match='quantizer="pq" halves the query, but its width is 1'):
        MIDX(4, quantizer="pq").build((10, 1))


@pytest.mark.long
def test_a_head_of_approximate_vectors_is_weighed_by_a_sample_of_queries():
    """Queries behind a ReLU layer are far from normal, and few classes answer each."""
    random = np.random.default_rng(0)
    vectors, hidden = 2 * random.normal(size=(500, 8)).astype(np.float32), random.normal(size=(256, 8))
    query = np.maximum(hidden, 0).astype(np.float32) ** 2
    target = softmax(query.astype(np.float64) @ vectors.T)
    divergences = []
    for approximate in (False, True):
        head = head_of(vectors)
        head.approximate = approximate
        sampler = built(MIDX(5, num_codewords=4, seed=0), 500, 8)
        for step, start in enumerate(range(0, 256, 8)):
            for seen in (sampler.queries, sampler.query_sample):
                seen.follow(tf.constant(query[start : start + 8]), step + 1)
        sampler.refresh(head)
        divergences.append(divergence(target, all_probs(sampler, query)))
    assert divergences[1] < 0.9 * divergences[0]
