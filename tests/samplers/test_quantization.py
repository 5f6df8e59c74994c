import numpy as np
import pytest
from sampler_checks import clustered, head_of

from tfxc import class_vectors
from tfxc.clustering import sample_by_weight
from tfxc.samplers.quantization import encode, fit_codebooks, rows_to_fit


def two_codebooks(vectors, residual, num_codewords):
    head = head_of(vectors)
    codebooks = fit_codebooks(head, None, residual, num_codewords, 0, np.ones(len(vectors)))
    errors = np.zeros(len(vectors))
    return codebooks, encode(head, codebooks, residual, errors=errors), errors


def quantised(codebooks, codes, residual):
    parts = [codebook[code] for codebook, code in zip(codebooks, codes, strict=True)]
    return sum(parts) if residual else np.concatenate(parts, axis=1)


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("dim", [2, 5, 8])
def test_every_class_is_at_its_nearest_codewords(monkeypatch, residual, dim):
    monkeypatch.setattr(class_vectors, "_BLOCK_ROWS", 7)
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


def test_the_rows_that_kmeans_sees():
    vectors = clustered(300, 4)
    weights = np.arange(1, 301)
    rows, stand_for = rows_to_fit(head_of(vectors), 40, 7, weights)
    ids, want = sample_by_weight(weights, 40, 7)
    np.testing.assert_array_equal(rows, vectors[ids])
    np.testing.assert_array_equal(stand_for, want)
    vectors[ids[0]] = np.nan
    with pytest.raises(ValueError, match=f"class {ids[0]} is not finite"):
        rows_to_fit(head_of(vectors), 40, 7, weights)
