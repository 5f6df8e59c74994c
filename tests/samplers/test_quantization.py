"""Two codebooks for the class vectors."""

import numpy as np
import pytest
from sampler_checks import clustered, head_of

from tfxc.samplers import quantization
from tfxc.samplers.quantization import assign, encode, fit_codebooks, kmeans


def two_codebooks(vectors, residual, num_codewords):
    """Codebooks, codes and squared errors."""
    head = head_of(vectors)
    codebooks = fit_codebooks(head, None, residual, num_codewords, seed=0)
    return codebooks, *encode(head, codebooks, residual)


def quantised(codebooks, codes, residual):
    parts = [codebook[code] for codebook, code in zip(codebooks, codes, strict=True)]
    return sum(parts) if residual else np.concatenate(parts, axis=1)


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("dim", [2, 5, 8])
def test_every_class_is_at_its_nearest_codewords(monkeypatch, residual, dim):
    monkeypatch.setattr(quantization.blocks, "__defaults__", (7,))
    vectors = clustered(100, dim)
    codebooks, codes, errors = two_codebooks(vectors, residual, 4)
    half = dim if residual else dim // 2
    assert codebooks[0].shape == (4, half) and codebooks[1].shape == (4, dim if residual else dim - half)
    nearest = np.linalg.norm(vectors[:, None, :half] - codebooks[0], axis=2).argmin(1)
    np.testing.assert_array_equal(codes[0], nearest)
    rest = vectors - codebooks[0][codes[0]] if residual else vectors[:, half:]
    np.testing.assert_array_equal(codes[1], np.linalg.norm(rest[:, None] - codebooks[1], axis=2).argmin(1))
    squares = np.square(vectors - quantised(codebooks, codes, residual))
    np.testing.assert_allclose(errors, squares.sum(1), rtol=1e-3, atol=1e-4)
    assert squares.mean() < 0.5 * vectors.var(0).mean()


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("num_classes", [1, 2, 3])
def test_fewer_classes_than_codewords_are_kept_exactly(residual, num_classes):
    vectors = clustered(num_classes, 4)
    codebooks, codes, errors = two_codebooks(vectors, residual, 8)
    np.testing.assert_allclose(quantised(codebooks, codes, residual), vectors, atol=1e-6)
    np.testing.assert_allclose(errors, 0, atol=1e-5)


def test_equal_vectors():
    vectors = np.ones((50, 4), np.float32)
    codebooks, codes, _ = two_codebooks(vectors, True, 4)
    np.testing.assert_allclose(quantised(codebooks, codes, True), vectors, atol=1e-3)


def test_kmeans_by_hand():
    points = np.array([[0.0], [0.2], [10.0], [10.4]], np.float32)
    np.testing.assert_allclose(np.sort(kmeans(points, 2), axis=0), [[0.1], [10.2]], atol=1e-6)
    weights = np.array([3, 1, 1, 3], np.float32)
    np.testing.assert_allclose(
        np.sort(kmeans(points, 2, weights=weights), axis=0), [[0.05], [10.3]], atol=1e-6
    )


def test_a_warm_start_keeps_the_order_of_the_codewords():
    points = np.array([[0.0], [0.2], [10.0], [10.4]], np.float32)
    for start in ([[1.0], [9.0]], [[9.0], [1.0]]):
        fitted = kmeans(points, 2, start=np.array(start, np.float32))
        assert (fitted[0, 0] > fitted[1, 0]) == (start[0][0] > start[1][0])


def test_assign_by_hand():
    codewords = np.array([[0.0, 0.0], [4.0, 0.0]], np.float32)
    codes, distances = assign(np.array([[1.0, 5.0], [3.0, -5.0]], np.float32), codewords)
    assert codes.dtype == np.int32 and codes.tolist() == [0, 1] and distances.tolist() == [26, 26]
