import numpy as np
import pytest
import scipy.sparse

from tfxc.data import LabeledPoints, tfidf


def test_tfidf_by_hand():
    features = scipy.sparse.csr_matrix(np.float32([[1, 2, 0], [0, 3, 0], [0, 0, 0]]))
    labels = scipy.sparse.csr_matrix((3, 2), dtype=bool)
    train, test = tfidf(LabeledPoints(features, labels), LabeledPoints(features[:1], labels[:1]))
    rare, common = np.log(4 / 2) + 1, np.log(4 / 3) + 1
    first = np.array([rare, 2 * common, 0])
    np.testing.assert_allclose(train.features.toarray()[0], first / np.linalg.norm(first), rtol=1e-6)
    np.testing.assert_allclose(train.features.toarray()[1:], [[0, 1, 0], [0, 0, 0]], rtol=1e-6)
    np.testing.assert_array_equal(test.features.toarray(), train.features.toarray()[:1])
    assert train.features.dtype == np.float32


def test_a_stored_zero_is_no_occurrence():
    features = scipy.sparse.csr_matrix(np.float32([[1, 2], [3, 4]]))
    features[1, 0] = 0  # stays stored
    assert features.nnz == 4
    labels = scipy.sparse.csr_matrix((2, 1), dtype=bool)
    plain = scipy.sparse.csr_matrix(features.toarray())
    got, want = (tfidf(LabeledPoints(own, labels))[0].features.toarray() for own in (features, plain))
    np.testing.assert_array_equal(got, want)


def no_points(num_features):
    matrices = scipy.sparse.csr_matrix((1, num_features)), scipy.sparse.csr_matrix((1, 2), dtype=bool)
    return LabeledPoints(*matrices)


def test_tfidf_of_other_features():
    with pytest.raises(ValueError, match=r"but have \[12, 5\]"):
        tfidf(no_points(12), no_points(5))
