import numpy as np
import tensorflow as tf

from tfxc.ops.stochastic_rounding import random_16_bits, stochastic_round


def rounded(rows, ids=None, seed=(3, 4)):
    rows = tf.constant(rows, tf.float32)
    ids = tf.range(rows.shape[0]) if ids is None else tf.constant(ids)
    return stochastic_round(rows, ids, seed).numpy().astype(np.float32)


def test_the_mean_is_the_number():
    values = np.float32([1 + 2.0**-9, -1.004, 3.14159, 1e-30, -1e-3, 255.9, 1.9999])
    found = rounded(np.tile(values, (40_000, 1)))
    low, high = found.min(0), found.max(0)
    assert (low <= values).all() and (values <= high).all()
    gap = high.astype(np.float64) - low
    assert (gap <= np.abs(values) * 2.0**-7).all()  # the two neighbours
    share = (values - low) / gap
    error = gap * np.sqrt(share * (1 - share) / len(found))
    assert (np.abs(found.astype(np.float64).mean(0) - values) < 4 * error).all()


def test_what_is_a_bfloat16_stays():
    exact = np.float32([0.0, -0.0, 1.0, -1.5, 2.0**-126, 3.3895314e38, np.inf, -np.inf])
    np.testing.assert_array_equal(rounded(np.tile(exact, (50, 1))), np.tile(exact, (50, 1)))


def test_nan_stays_and_what_is_finite_stays_finite():
    nan = np.uint32([0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF]).view(np.float32)  # some would become another number
    assert np.isnan(rounded(np.tile(nan, (50, 1)))).all()
    largest = np.finfo(np.float32).max
    found = rounded(np.tile(np.float32([largest, -largest]), (50, 1)))
    np.testing.assert_array_equal(found, np.tile(np.float32([3.3895314e38, -3.3895314e38]), (50, 1)))


def test_random_numbers_belong_to_seed_row_and_place():
    rows = np.random.default_rng(0).normal(size=(60, 11)).astype(np.float32)
    every, ids = rounded(rows), np.array([41, 7, 59])
    np.testing.assert_array_equal(rounded(rows[ids], ids), every[ids])
    for seed in ([3, 5], [2, 4], [3 + 2**32, 4], [3, 4 + 2**32]):
        assert (rounded(rows, seed=seed) != every).mean() > 0.2
    bits = random_16_bits(tf.range(4000), 24, [1, 2]).numpy()
    assert abs(np.corrcoef(bits.T) - np.eye(24)).max() < 0.1
    counts = np.bincount(bits.reshape(-1) >> 8, minlength=256)
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 340  # chi-square of 255, p > 1e-3


def test_known_bits():
    """Counter 0, key 0 of Philox4x32-10: 6627e8d5 e169c58d bc57ac4c 9b00dbd8, lower halves first."""
    bits = [hex(part) for part in random_16_bits(tf.range(1), 64, [0, 0]).numpy()[0]]
    assert bits[:4] == ["0xe8d5", "0x6627", "0xc58d", "0xe169"]
    assert bits[32:36] == ["0xac4c", "0xbc57", "0xdbd8", "0x9b00"]
