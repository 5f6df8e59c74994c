import itertools

import numpy as np
import pytest
import tensorflow as tf

from tfxc.hashing.universal import UniversalHash, next_prime, universal_coefficients


def make_family(num_keys, num_buckets, num_functions=3, seed=0):
    coefficients = universal_coefficients(num_keys, range(num_functions), seed)
    return UniversalHash(tf.constant(coefficients), num_keys, num_buckets)


@pytest.mark.parametrize("num_keys", [1, 2, 3, 100, 1_000_000, 2**31 - 1])
def test_buckets_are_those_of_exact_integers(num_keys):
    family = make_family(num_keys, 1000)
    keys = np.unique(np.r_[0, num_keys - 1, np.random.default_rng(0).integers(num_keys, size=50)])
    want = [
        [(int(a) * int(key) + int(b)) % family.prime % 1000 for key in keys]
        for a, b, _ in family.coefficients.numpy()
    ]
    buckets = family.buckets(keys)
    assert buckets.dtype == tf.int32 and buckets.numpy().tolist() == want
    np.testing.assert_array_equal(family.buckets(keys[:, np.newaxis]), np.array(want)[..., np.newaxis])


@pytest.mark.parametrize("num_buckets", [2, 5, 8])
def test_any_two_keys_collide_in_at_most_one_of_m_functions(num_buckets):
    num_keys = prime = 23
    functions = [(a, b, pow(a, -1, prime)) for a in range(1, prime) for b in range(prime)]
    family = UniversalHash(tf.constant(functions, tf.int64), num_keys, num_buckets)
    buckets = family.buckets(tf.range(num_keys)).numpy()
    for one, other in itertools.combinations(range(num_keys), 2):
        share = (buckets[:, one] == buckets[:, other]).mean()
        assert share <= 1 / num_buckets and share == pytest.approx(family.collision_probability)


def test_drawn_functions_collide_as_often_as_theory_says():
    num_keys, num_buckets = 3000, 50
    family = make_family(num_keys, num_buckets, num_functions=400)
    buckets = family.buckets(tf.range(num_keys)).numpy()
    one, other = np.random.default_rng(0).permuted(np.tile(np.arange(num_keys), (400, 1)), axis=1)[:, :2].T
    shares = buckets[:, one] == buckets[:, other]  # [functions, pairs]
    means = shares.mean(1)
    error = means.std(ddof=1) / len(means) ** 0.5
    assert abs(means.mean() - family.collision_probability) < 3 * error
    assert family.collision_probability == pytest.approx(1 / num_buckets, rel=0.02)
    # All keys mod p are a permutation, so that no bucket is fuller than others.
    sizes = [np.bincount(row, minlength=num_buckets) for row in buckets]
    assert np.ptp(sizes) <= 2


@pytest.mark.parametrize(
    ("num_keys", "num_buckets"), [(1, 1), (2, 5), (50, 1), (50, 7), (97, 97), (1000, 31)]
)
def test_every_key_is_a_member_of_its_bucket_once(num_keys, num_buckets):
    family = make_family(num_keys, num_buckets)
    buckets = family.buckets(tf.range(num_keys)).numpy()
    members = family.members(tf.tile(tf.range(num_buckets)[tf.newaxis], [3, 1])).numpy()
    assert members.shape == (3, num_buckets, -(-family.prime // num_buckets))
    for r, bucket in itertools.product(range(3), range(num_buckets)):
        found = np.sort(members[r, bucket][members[r, bucket] >= 0])
        np.testing.assert_array_equal(found, np.flatnonzero(buckets[r] == bucket))


def test_a_function_is_the_same_in_any_company_and_the_seed_decides():
    together = universal_coefficients(1000, range(5), seed=7)
    np.testing.assert_array_equal(universal_coefficients(1000, [3], seed=7), together[3:4])
    assert (universal_coefficients(1000, range(5), seed=8) != together).any(1).all()
    assert len({tuple(row) for row in together}) == 5
    assert universal_coefficients(1000, [], seed=7).shape == (0, 3)


@pytest.mark.parametrize("bad", [0, -1, 2**31, 2.5])
def test_the_number_of_keys_is_checked(bad):
    with pytest.raises(ValueError, match=rf"num_keys must be an integer in \[1, 2147483647\], but got {bad}"):
        universal_coefficients(bad, [0], seed=0)


def test_next_prime():
    assert [next_prime(number) for number in range(9)] == [2, 2, 2, 3, 5, 5, 7, 7, 11]
    assert next_prime(10_000_000) == 10_000_019
