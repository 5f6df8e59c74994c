import numpy as np
import pytest
import sampler_checks as checks
import tensorflow as tf
from long_cases import long_after

from tfxc._keras.weights import tf_variable
from tfxc.layers import UniformSparseHead
from tfxc.samplers import RFF, Sphere


@pytest.fixture(params=[Sphere, RFF])
def kind(request):
    return request.param


def make(kind, num_negatives=10, **options):
    return kind(num_negatives, seed=5, **options)


def sphere_probs(sampler, query, vectors):
    weights = sampler.alpha * (query.astype(np.float64) @ vectors.T) ** 2 + 1
    return weights / weights.sum(1, keepdims=True)


def rff_probs(sampler, query, vectors):
    """Q by hand: blocks by their summed features, classes by theirs, both with the floor exp(-ν)."""
    directions, floor = tf_variable(sampler.directions).numpy().astype(np.float64), np.exp(-sampler.nu)

    def features(rows):
        rows = rows.astype(np.float64)
        angles = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12) @ directions
        return np.concatenate([np.cos(angles), np.sin(angles)], 1) / np.sqrt(sampler.num_features)

    kernel = features(query) @ features(vectors).T
    starts = np.arange(0, len(vectors), sampler.block_size)
    sizes = np.diff(np.append(starts, len(vectors)))
    mass = np.maximum(np.add.reduceat(kernel, starts, axis=1), floor * sizes)
    weights = np.maximum(kernel, floor)
    share = mass / mass.sum(1, keepdims=True) / np.add.reduceat(weights, starts, axis=1)
    return weights * np.repeat(share, sizes, axis=1)


BY_HAND = {Sphere: sphere_probs, RFF: rff_probs}


@pytest.mark.parametrize("num_classes", long_after(2, 50, 1, 3, 1000))
def test_distribution_before_and_after_refresh(kind, num_classes):
    sampler, vectors = checks.built(make(kind), num_classes, 7), checks.clustered(num_classes, 7)
    np.testing.assert_allclose(checks.all_probs(sampler, checks.queries(2, 7)), 1 / num_classes, rtol=1e-5)
    checks.check_distribution(sampler, 7)
    sampler.refresh(checks.head_of(vectors))
    query = checks.queries(3, 7)
    want = BY_HAND[kind](sampler, query, vectors)
    np.testing.assert_allclose(checks.all_probs(sampler, query), want, rtol=1e-3, atol=1e-9)
    checks.check_distribution(sampler, 7)
    assert num_classes < 50 or want.max() > 2 / num_classes


@pytest.mark.long
def test_distribution_over_many_classes(kind):
    sampler = checks.refreshed(make(kind, 50), checks.clustered(20_000, 16, num_clusters=40, scale=0.7))
    assert sampler.sums.shape[0] > 100
    checks.check_distribution(sampler, 16, num_draws=1_000_000)


@pytest.mark.parametrize("with_index", [False, True])
def test_shared_draws_come_from_the_mean_query(kind, with_index):
    vectors = checks.clustered(60, 6) if with_index else np.zeros((60, 6), np.float32)
    sampler = checks.refreshed(make(kind, 50_000, shared=True), vectors)
    checks.check_distribution(sampler, 6)
    query = checks.queries(4, 6)
    want = BY_HAND[kind](sampler, query.mean(0, keepdims=True), vectors)
    np.testing.assert_allclose(checks.all_probs(sampler, query), want, rtol=1e-4)
    labels = tf.constant([[0, -1], [3, 4], [5, 6], [59, 0]])
    counts = checks.log_expected_count(sampler, query, labels, labels)
    np.testing.assert_allclose(np.exp(counts), 50_000 * want[0][np.maximum(labels, 0)], rtol=1e-4)


def test_sphere_squares_the_logit_of_the_head_with_bias_and_temperature():
    vectors = checks.clustered(30, 5)
    head = checks.head_of(vectors, normalize=True, temperature=0.3, use_bias=True)
    tf_variable(head.bias).assign(checks.queries(1, 30)[0])
    sampler, query = checks.refreshed(make(Sphere, alpha=3.0), head), checks.queries(3, 5)
    weights = 3.0 * head(query).numpy().astype(np.float64) ** 2 + 1
    found = checks.all_probs(sampler, head.effective_query(query).numpy())
    np.testing.assert_allclose(found, weights / weights.sum(1, keepdims=True), rtol=1e-4)


@pytest.mark.long
def test_rff_knows_directions_only_and_follows_the_softmax_of_their_cosines():
    vectors = checks.clustered(400, 8)
    options = {"num_features": 20_000, "nu": 3.0}
    sampler, query = checks.refreshed(make(RFF, **options), vectors), checks.queries(4, 8)
    found = checks.all_probs(sampler, query)
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (query, vectors)]
    cosines = unit[0] @ unit[1].T
    target = np.exp(3.0 * cosines)
    for ratio, ahead in zip(found / target, cosines > 0.1, strict=True):  # the others are near the floor
        assert ratio[ahead].std() < 0.15 * ratio[ahead].mean()
    np.testing.assert_allclose(checks.all_probs(sampler, 7 * query), found, rtol=1e-3)
    shorter = checks.refreshed(make(RFF, **options), 0.1 * vectors)
    np.testing.assert_allclose(checks.all_probs(shorter, query), found, rtol=1e-3)


def test_a_query_that_no_class_answers_still_draws(kind):
    """Orthogonal to all vectors, where rounding could make a mass negative; and no query at all, zeros."""
    vectors = np.zeros((300, 6), np.float32)
    vectors[:, :3] = 30 * checks.clustered(300, 3)
    sampler, query = checks.refreshed(make(kind), vectors), np.zeros((400, 6), np.float32)
    query[:200, 3:] = 30 * checks.queries(200, 3)
    probs = checks.all_probs(sampler, query)
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-5)
    ids, counted = checks.sample(sampler, tf.constant(query), checks.labels_for(query))
    np.testing.assert_allclose(np.exp(counted) / 10, np.take_along_axis(probs, ids.numpy(), 1), rtol=1e-3)
    if kind is Sphere:
        np.testing.assert_allclose(probs, 1 / 300, rtol=1e-3)


def test_a_sparse_head_is_drawn_from_by_its_projection(kind):
    head = checks.built(UniformSparseHead(200, fan_in=4, seed=3), None, 20)
    sampler = checks.refreshed(make(kind), head)
    query = head.effective_query(checks.queries(2, 20)).numpy()
    want = BY_HAND[kind](sampler, query, head.class_vectors(0, 200).numpy())
    np.testing.assert_allclose(checks.all_probs(sampler, query), want, rtol=1e-3, atol=1e-7)


def test_one_omega_for_all_vectors_drawn_from_the_seed():
    directions = []
    for seed in (1, 1, 2):
        sampler = checks.built(RFF(2, num_features=3000, nu=9.0, seed=seed), 5, 4)
        directions.append(tf_variable(sampler.directions).numpy())
    np.testing.assert_array_equal(directions[0], directions[1])
    assert directions[0].shape == (4, 3000) and (directions[0] != directions[2]).all()
    assert abs(directions[0].std() - 3.0) < 0.1 and abs(directions[0].mean()) < 0.1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sphere(0), "num_negatives must be an integer of at least 1, but got 0"),
        (lambda: Sphere(4, alpha=0.0), r"alpha must be in \(0, inf\)"),
        (lambda: Sphere(4, alpha=float("inf")), r"alpha must be in \(0, inf\)"),
        (lambda: RFF(4, num_features=0), "num_features must be an integer of at least 1, but got 0"),
        (lambda: RFF(4, num_features=2.5), "num_features must be an integer of at least 1, but got 2.5"),
        (lambda: RFF(4, nu=-1.0), r"nu must be in \(0, 50\]"),
        (lambda: RFF(4, nu=100.0), r"nu must be in \(0, 50\]"),
    ],
)
def test_arguments_are_checked(make, message):
    with pytest.raises(ValueError, match=message):
        make()
