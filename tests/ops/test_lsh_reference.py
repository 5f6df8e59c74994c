"""The reference of the candidates from hash tables, against brute force."""

import numpy as np
import pytest
import tensorflow as tf
from lsh_checks import SCHEMES, random_queries, random_tables, slow_counts

from tfxc.ops.lsh_draw import Scheme
from tfxc.ops.lsh_reference import lsh_draw_reference, lsh_log_expected_count_reference


def every_class(num_queries, num_classes):
    return tf.tile(tf.range(num_classes)[tf.newaxis], [num_queries, 1])


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("num_parts", [1, 4])
@pytest.mark.parametrize(("num_classes", "num_tables", "num_buckets"), [(1, 1, 1), (7, 3, 4), (60, 17, 8)])
def test_counts_are_those_of_brute_force(scheme, num_parts, num_classes, num_tables, num_buckets):
    tables, scheme = random_tables(num_classes, num_tables, num_buckets), SCHEMES[scheme]
    query = random_queries(6, num_parts, num_tables, num_buckets)
    got = np.exp(
        lsh_log_expected_count_reference(tf.constant(query), every_class(6, num_classes), tables, scheme)
    )
    np.testing.assert_allclose(got, slow_counts(query, tables, scheme), rtol=1e-5)


def test_by_hand():
    # Class 0 in bucket 0, classes 1 and 2 in bucket 1 of table 0; all in bucket 1 of table 1, 0 being empty.
    tables = random_tables(3, 2, 2)._replace(
        codes=tf.constant([[0, 1], [1, 1], [1, 1]], tf.uint16),
        offsets=tf.constant([[0, 1, 3], [0, 0, 3]]),
        members=tf.constant([[0, 1, 2], [0, 1, 2]]),
    )
    query = tf.constant([[[0, 1]], [[1, 0]]])
    draws = np.exp(lsh_log_expected_count_reference(query, every_class(2, 3), tables, Scheme(12, 0.5)))
    # 12 draws: 6 from all, 3 from either bucket.
    np.testing.assert_allclose(
        draws, [[2 + 3 + 1, 2 + 1, 2 + 1], [2 + 1, 2 + 1.5 + 1, 2 + 1.5 + 1]], rtol=1e-6
    )
    union = np.exp(
        lsh_log_expected_count_reference(query, every_class(2, 3), tables, Scheme(5, 0.5, bucket_slots=1))
    )
    # 3 uniform; the first query takes 0 for sure, the second 1 or 2, each with probability 1/2.
    np.testing.assert_allclose(union, [[2, 1 + 1 / 3, 1 + 1 / 3], [1, 1.5, 1.5]], rtol=1e-6)
    ids, log_expected_count = lsh_draw_reference(
        query, tables, Scheme(5, 0.5, 1), tf.constant([1, 2], tf.int64)
    )
    first, second = ids.numpy()
    assert first[0] == 0 and second[0] in (1, 2) and second[1] == -1 and log_expected_count[1, 1] == 0


def test_a_query_without_parts_has_only_uniform_draws():
    tables, query = random_tables(9, 2, 4), tf.fill([1, 3, 2], -1)
    seed = tf.constant([0, 0], tf.int64)
    ids, log_expected_count = lsh_draw_reference(query, tables, SCHEMES["draws"], seed)
    assert set(ids.numpy().ravel()) == set(range(9))
    np.testing.assert_allclose(log_expected_count, np.log(40 / 9), rtol=1e-6)
    ids, log_expected_count = lsh_draw_reference(query, tables, SCHEMES["union"], seed)
    np.testing.assert_array_equal(ids[0, :4], -1)
    assert ids.numpy()[0, 4:].min() >= 0
    np.testing.assert_allclose(log_expected_count[0, 4:], np.log(36 / 9), rtol=1e-6)
