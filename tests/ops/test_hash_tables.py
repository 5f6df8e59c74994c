import numpy as np
import pytest
import tensorflow as tf
from kernel_checks import both_ways

from tfxc.ops.hash_tables import hash_tables

BOTH = pytest.mark.parametrize("build", both_ways(hash_tables))


@BOTH
@pytest.mark.parametrize(
    ("num_classes", "num_tables", "num_buckets"),
    [
        *[(1, 1, 1), (1, 3, 4), (50, 1, 16), (70, 8, 2), (301, 9, 32), (40, 33, 65536)],
        *[case for size in (7, 8, 17, 33, 65) for case in ((size, 3, 5), (9, size, 5), (20, 2, size))],
    ],
)
def test_every_bucket_holds_its_classes_in_order(build, num_classes, num_tables, num_buckets):
    codes = np.random.default_rng(0).integers(num_buckets, size=(num_classes, num_tables)).astype(np.uint16)
    tables = build(codes, num_buckets)
    assert [part.dtype for part in tables] == [tf.uint16, tf.int32, tf.int32]
    np.testing.assert_array_equal(tables.codes, codes)
    assert tables.offsets.shape == (num_tables, num_buckets + 1)
    for table in range(num_tables):
        offsets, members = tables.offsets[table].numpy(), tables.members[table].numpy()
        assert offsets[0] == 0 and offsets[-1] == num_classes
        for bucket in np.unique(np.concatenate([codes[:, table], [0, num_buckets - 1]])):
            inside = members[offsets[bucket] : offsets[bucket + 1]]
            np.testing.assert_array_equal(inside, np.flatnonzero(codes[:, table] == bucket))


@BOTH
def test_tables_too_large_for_a_small_page(build):
    """Several megabytes: buffers that are moved to huge pages keep their values."""
    codes = np.random.default_rng(0).integers(4, size=(1 << 20, 2)).astype(np.uint16)
    tables = build(tf.constant(codes), 4)
    np.testing.assert_array_equal(tables.codes, codes)
    for table in range(2):
        np.testing.assert_array_equal(tables.members[table], np.argsort(codes[:, table], kind="stable"))


@BOTH
@pytest.mark.parametrize("num_tables", [1, 20])
def test_a_code_out_of_range_names_the_class(build, num_tables):
    codes = np.zeros((9, num_tables), np.uint16)
    codes[7, -1] = 4
    with pytest.raises(tf.errors.InvalidArgumentError, match="class 7 .*num_buckets = 4"):
        build(codes, 4)


@BOTH
@pytest.mark.parametrize("bad", [-1, 65537])
def test_a_code_that_no_uint16_holds_is_not_cut(build, bad):
    codes = np.array([[1], [bad], [2]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="class 1 .*num_buckets = 65536"):
        build(codes, 65536)
    np.testing.assert_array_equal(build(codes[[0, 2]], 65536).codes, [[1], [2]])


@BOTH
@pytest.mark.parametrize("num_buckets", [0, 65537, 2.5])
def test_number_of_buckets_is_checked(build, num_buckets):
    with pytest.raises(ValueError, match=r"num_buckets must be an integer in \[1, 65536\]"):
        build(np.zeros((2, 2), np.uint16), num_buckets)


@BOTH
def test_codes_that_are_no_matrix_are_refused(build):
    with pytest.raises(ValueError, match=r"codes must be \[L, T\], but their shape is \(3,\)"):
        build(np.zeros(3, np.uint16), 4)
