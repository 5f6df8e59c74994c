import numpy as np
import pytest
from long_cases import long_after
from sampler_checks import (
    all_probs,
    built,
    check_distribution,
    clustered,
    head_of,
    queries,
    refreshed,
    sample,
    softmax,
)

from tfxc.samplers import Softmax


def test_rare_classes_come_as_often_as_they_should():
    vectors = np.full((1000, 1), np.log(1e-5 / 999), np.float32)
    vectors[0] = np.log(1 - 1e-5)
    ids, _ = sample(refreshed(Softmax(4_000_000, seed=5), vectors), np.ones((1, 1), np.float32), [[0]])
    assert 15 < (ids.numpy() != 0).sum() < 80


def test_draws_of_different_queries_are_independent():
    """No run of five draws comes twice, as random numbers shared between threads would make it."""
    sampler = refreshed(Softmax(10, seed=5), np.zeros((1000, 1), np.float32))
    ids, _ = sample(sampler, np.zeros((2000, 1), np.float32), np.zeros((2000, 1), np.int32))
    runs = np.lib.stride_tricks.sliding_window_view(ids.numpy().ravel(), 5)
    assert len(np.unique(runs, axis=0)) == len(runs)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("num_classes", long_after(2, 1, 50, 3, 1000))
def test_uniform_and_then_the_softmax(num_classes, shared):
    sampler, vectors = built(Softmax(10, shared=shared, seed=5), num_classes, 7), clustered(num_classes, 7)
    query = queries(3, 7)
    np.testing.assert_allclose(all_probs(sampler, query), 1 / num_classes, rtol=1e-5)
    sampler.refresh(head_of(vectors))
    of = query.mean(0, keepdims=True) if shared else query
    want = softmax(of.astype(np.float64) @ vectors.T)
    np.testing.assert_allclose(all_probs(sampler, query), want, atol=1e-5)
    check_distribution(sampler, 7, num_draws=100_000)
