import numpy as np
import pytest
import tensorflow as tf

from tfxc.hashing.lsh import draw_dwta, draw_simhash, dwta, simhash

FAMILIES = {"simhash": (draw_simhash, simhash), "dwta": (draw_dwta, dwta)}
EVERY = pytest.mark.parametrize("family", FAMILIES)


def codes_of(family, vectors, num_tables, num_bits, seed=0):
    draw, hashed = FAMILIES[family]
    vectors = np.asarray(vectors, np.float32)
    parameters = draw(vectors.shape[1], num_tables, num_bits, seed)
    return hashed(tf.constant(vectors), num_bits, **parameters).numpy()


def sparse_vectors(num, dim, share, seed=0):
    random = np.random.default_rng(seed)
    return random.exponential(size=(num, dim)) * (random.random((num, dim)) < share)


@EVERY
@pytest.mark.parametrize("num_bits", [1, 2, 4, 5, 7, 16])
@pytest.mark.parametrize("dim", [1, 3, 64])
def test_codes_fill_their_range(family, num_bits, dim):
    codes = codes_of(family, np.random.default_rng(1).normal(size=(500, dim)), 3, num_bits)
    assert codes.shape == (500, 3) and codes.dtype == np.int32
    assert codes.min() >= 0 and codes.max() < 2**num_bits
    if dim == 64:
        assert codes.max() >= 2 ** (num_bits - 1)
        assert len(np.unique(codes[:, 0])) > min(2**num_bits, 100) * 0.9
        assert (codes[:, 0] != codes[:, 1]).any()


@EVERY
def test_same_seed_same_codes(family):
    vectors = np.random.default_rng(1).normal(size=(50, 8))
    first = codes_of(family, vectors, 4, 6, seed=1)
    np.testing.assert_array_equal(first, codes_of(family, vectors, 4, 6, seed=1))
    assert (first != codes_of(family, vectors, 4, 6, seed=2)).any()


@pytest.mark.parametrize("cosine", [-0.9, 0.0, 0.5, 0.99])
@pytest.mark.parametrize("num_bits", [1, 4])
def test_simhash_collides_with_the_probability_of_the_angle(cosine, num_bits):
    dim, num_tables = 12, 20_000
    random = np.random.default_rng(0)
    first, other = np.linalg.qr(random.normal(size=(dim, 2)))[0].T
    pair = np.stack([5 * first, cosine * first + np.sqrt(1 - cosine**2) * other])
    codes = codes_of("simhash", pair, num_tables, num_bits)
    want = (1 - np.arccos(cosine) / np.pi) ** num_bits
    error = np.sqrt(want * (1 - want) / num_tables)
    assert abs((codes[0] == codes[1]).mean() - want) < 4 * error


def test_simhash_by_hand():
    projections = np.float32([[1, 0, 0, 1, -1, 0], [0, 1, -1, 0, 0, -1]])
    codes = simhash(np.float32([[1, -2], [-1, -2], [0, 0]]), 2, projections)
    np.testing.assert_array_equal(codes, [[1, 3, 2], [0, 1, 3], [0, 0, 0]])


def test_dwta_windows_are_cut_from_permutations():
    windows = draw_dwta(16, num_tables=4, num_bits=6, seed=0)["windows"]
    assert windows.shape == (4, 2, 8)
    # Two windows of eight use up one permutation of 16 coordinates.
    np.testing.assert_array_equal(np.sort(windows.reshape(4, 16)), np.tile(np.arange(16), (4, 1)))


def test_dwta_of_four_bits_has_two_windows_of_four():
    parameters = draw_dwta(8, num_tables=1, num_bits=4, seed=0)
    (first, second), vector = parameters["windows"][0], np.zeros((1, 8), np.float32)
    assert first.shape == (4,) and set(first) | set(second) == set(range(8))
    vector[0, first[3]] = vector[0, second[2]] = 1
    assert dwta(tf.constant(vector), 4, **parameters).numpy().tolist() == [[3 + 4 * 2]]


@pytest.mark.parametrize(
    ("num_bits", "sizes"), [(1, [2]), (5, [8, 4]), (7, [8, 4, 4]), (16, [8, 8, 8, 8, 4, 4])]
)
def test_dwta_windows_share_the_bits_and_repeat_their_first(num_bits, sizes):
    windows = draw_dwta(64, num_tables=3, num_bits=num_bits, seed=0)["windows"]
    assert windows.shape[1] == len(sizes)
    for window, size in enumerate(sizes):
        assert all(len(set(row[:size])) == size for row in windows[:, window])
        rest = windows[:, window, size:]
        np.testing.assert_array_equal(rest, np.broadcast_to(windows[:, window, :1], rest.shape))


def test_dwta_fills_empty_windows_from_other_tables():
    vectors = sparse_vectors(400, 100, share=0.03, seed=2)
    vectors[:, 0] = 1e-3  # nobody is all zeros
    parameters = draw_dwta(100, num_tables=50, num_bits=3, seed=0)
    codes = dwta(tf.constant(vectors.astype(np.float32)), 3, **parameters).numpy()
    values = vectors[:, parameters["windows"]][:, :, 0]
    winner, occupied = values.argmax(-1), (values != 0).any(-1)
    want = np.where(occupied, winner, 0)
    for n, table in zip(*np.nonzero(~occupied), strict=True):
        lenders = [probe[table] for probe in parameters["probes"] if occupied[n, probe[table]]]
        want[n, table] = winner[n, lenders[0]] if lenders else 0
    assert 0.1 < occupied.mean() < 0.5
    np.testing.assert_array_equal(codes, want)


@EVERY
def test_zeros_and_an_empty_batch(family):
    np.testing.assert_array_equal(codes_of(family, np.zeros((2, 9)), 3, 4), np.zeros((2, 3)))
    assert codes_of(family, np.zeros((0, 9)), 3, 4).shape == (0, 3)


@pytest.mark.traced
@EVERY
def test_in_a_graph_of_unknown_batch_size(family):
    draw, hashed = FAMILIES[family]
    parameters = draw(9, 3, 4, 0)
    spec = tf.TensorSpec([None, 9], tf.float32)
    traced = tf.function(lambda x: hashed(x, 4, **parameters), input_signature=[spec])
    vectors = sparse_vectors(20, 9, share=0.3).astype(np.float32)
    np.testing.assert_array_equal(traced(vectors), codes_of(family, vectors, 3, 4))
