import numpy as np
import pytest

from tfxc.clustering import assign, kmeans, sample_by_weight


def test_kmeans_by_hand():
    points = np.array([[0.0], [0.2], [10.0], [10.4]], np.float32)
    np.testing.assert_allclose(np.sort(kmeans(points, 2), axis=0), [[0.1], [10.2]], atol=1e-6)
    weights = np.array([3, 1, 1, 3], np.float32)
    weighted = np.sort(kmeans(points, 2, weights=weights), axis=0)
    np.testing.assert_allclose(weighted, [[0.05], [10.3]], atol=1e-6)


def test_a_warm_start_keeps_the_order_of_the_codewords():
    points = np.array([[0.0], [0.2], [10.0], [10.4]], np.float32)
    for start in ([[1.0], [9.0]], [[9.0], [1.0]]):
        fitted = kmeans(points, 2, start=np.array(start, np.float32))
        assert (fitted[0, 0] > fitted[1, 0]) == (start[0][0] > start[1][0])


def test_assign_by_hand():
    codewords = np.array([[0.0, 0.0], [4.0, 0.0]], np.float32)
    distances = np.zeros(2)
    codes = assign(np.array([[1.0, 5.0], [3.0, -5.0]], np.float32), codewords, distances)
    assert codes.dtype == np.int32 and codes.tolist() == [0, 1] and distances.tolist() == [26, 26]


@pytest.mark.long
@pytest.mark.parametrize(
    ("num_vectors", "num_codewords", "dim"), [(1, 1, 1), (0, 3, 2), (3000, 300, 5), (5, 300_000, 1)]
)
def test_assign_in_blocks_as_by_all_distances(num_vectors, num_codewords, dim):
    generator = np.random.default_rng(0)
    vectors = generator.standard_normal((num_vectors, dim), np.float32)
    codewords = generator.standard_normal((num_codewords, dim), np.float32)
    distances = np.zeros(num_vectors)
    codes = assign(vectors, codewords, distances)
    np.testing.assert_array_equal(codes, assign(vectors, codewords))
    for vector, code, distance in zip(vectors, codes, distances, strict=True):
        exact = ((vector.astype(float) - codewords) ** 2).sum(1)
        np.testing.assert_allclose(exact[code], exact.min(), atol=1e-5)
        np.testing.assert_allclose(distance, exact.min(), atol=1e-5)


def test_rows_are_drawn_in_proportion_to_their_weights():
    weights = np.array([1, 2, 3, 40, 5, 6, 7, 50, 9, 7])
    chance = np.minimum(weights / (40 / 3), 1)  # 5 rows: the two heaviest and three of the rest, of 40 in sum
    times, totals = np.zeros(10), np.zeros(10)
    for seed in range(2000):
        ids, stand_for = sample_by_weight(weights, 5, seed)
        assert len(ids) == 5 and (np.diff(ids) > 0).all()
        np.testing.assert_allclose(stand_for, np.maximum(weights[ids], 40 / 3), rtol=1e-6)
        times[ids] += 1
        totals[ids] += stand_for
    np.testing.assert_allclose(times / 2000, chance, atol=0.03)
    assert times[3] == times[7] == 2000
    np.testing.assert_allclose(totals / 2000, weights, rtol=0.15)


def test_the_drawn_rows_weigh_as_much_as_all():
    weights = 1 / np.arange(1, 100_001)
    ids, stand_for = sample_by_weight(weights, 2000, seed=3)
    assert len(ids) == 2000 and set(range(150)) <= set(ids.tolist())
    np.testing.assert_allclose(stand_for.sum(), weights.sum(), rtol=1e-5)
    tail = ids >= 10_000
    np.testing.assert_allclose(stand_for[tail].sum(), weights[10_000:].sum(), rtol=0.1)
    again, other = (sample_by_weight(weights, 2000, seed)[0] for seed in (3, 4))
    np.testing.assert_array_equal(ids, again)
    assert (ids != other).any()


def test_rows_of_one_weight_have_no_period():
    """Ids may be laid out by a period, which every fourth row of all would share."""
    ids, stand_for = sample_by_weight(np.ones(4000), 1000, seed=0)
    np.testing.assert_allclose(stand_for, 4)
    assert np.bincount(ids % 4).min() > 200


@pytest.mark.parametrize("num_rows", [4, 5, 9])
def test_no_more_rows_than_wanted_are_all(num_rows):
    ids, stand_for = sample_by_weight([1e-30, 1.0, 1e30, 5.0], num_rows, seed=0)
    assert ids.tolist() == [0, 1, 2, 3] and stand_for.tolist() == np.float32([1e-30, 1, 1e30, 5]).tolist()


def test_rows_of_very_unequal_weights():
    ids, stand_for = sample_by_weight([1e-30, 1.0, 1e30, 1e15], 3, seed=0)
    assert ids.tolist() == [1, 2, 3]
    np.testing.assert_allclose(stand_for, [1, 1e30, 1e15], rtol=1e-6)
    assert sample_by_weight([1e-300, 1e30, 1e29], 2, seed=0)[0].tolist() == [1, 2]
