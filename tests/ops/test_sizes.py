"""Sizes that no int64 counts, of tensors without an element: they are refused, and do not end the process."""

import numpy as np
import pytest
import tensorflow as tf

from tfxc.ops import library

pytestmark = pytest.mark.kernels
KERNEL = [1.0, 0.0, 1.0, 1.0]


def zeros(*shape, dtype=tf.float32):
    return tf.zeros(shape, dtype)


def sparse_head(num_rows, fan_in, num_groups=None):
    num_groups = num_rows if num_groups is None else num_groups
    return tf.Variable(zeros(num_rows, fan_in)), tf.Variable(zeros(num_groups, fan_in, dtype=tf.int32))


@pytest.mark.parametrize("group_size", [2**31, 2**63 - 1])
def test_groups_of_more_classes_than_there_can_be(group_size):
    ops, (weights, indices) = library.load(), sparse_head(4, 3, num_groups=0)
    given = zeros(2, 5), weights.handle, indices.handle
    with pytest.raises(tf.errors.InvalidArgumentError, match="group_size must be 1 to 2147483647"):
        ops.tfxc_sparse_head_logits(*given, zeros(0), 0, 4, group_size=group_size)
    with pytest.raises(tf.errors.InvalidArgumentError, match="group_size must be 1 to 2147483647"):
        ops.tfxc_sparse_head_candidates(*given, [[3], [1]], group_size=group_size)


def test_groups_of_no_class_and_any_width():
    ops, (weights, indices) = library.load(), sparse_head(0, 2**40)
    given = zeros(1, 5), weights.handle, indices.handle, zeros(0), 0, 0
    assert ops.tfxc_sparse_head_logits(*given, group_size=16).shape == (1, 0)
    query_gradient, *_ = ops.tfxc_sparse_head_logits_grad(*given, zeros(1, 0), group_size=16)
    np.testing.assert_array_equal(query_gradient, zeros(1, 5))


def call(name):
    ops, rows = library.load(), tf.Variable(zeros(2**14, 0))
    if name == "hash tables":
        return ops.tfxc_hash_tables(zeros(0, 2**50, dtype=tf.uint16), num_buckets=65536)
    if name == "midx draw":
        logits = zeros(0, 2**32)
        slots = zeros(1, 4, dtype=tf.int32)
        return ops.tfxc_midx_draw(logits, logits, zeros(1, 1), [0, 1], slots, [0, 0], num_samples=3)
    if name == "sparse head":
        weights, indices = sparse_head(2**14, 0)
        given = zeros(2**50, 0), weights.handle, indices.handle
        return ops.tfxc_sparse_head_logits(*given, zeros(0), 0, 2**14, group_size=1)
    if name == "dense scan":
        exclude = zeros(2**50, 0, dtype=tf.int32)
        how = {"reduction": "none", "num_classes": 2**14}
        return ops.tfxc_dense_scan(zeros(2**50, 0), rows.handle, zeros(0), 2**14, exclude, **how)
    if name == "block draw":
        how = {"kernel": KERNEL, "block_size": 1, "num_samples": 2}
        return ops.tfxc_block_draw(rows.handle, zeros(2**50, 0), zeros(1, 1), [1, 2], **how)
    if name == "mach decode":
        exclude, coefficients = zeros(0, 0, dtype=tf.int32), zeros(0, 3, dtype=tf.int64)
        how = {"num_classes": 2, "prime": 2, "decoder": "mean", "prune": False, "num_probes": 0}
        return ops.tfxc_mach_top_k(zeros(0, 2**62, 1), coefficients, 1, exclude, **how)
    if name == "candidate log-sum-exp":
        rows, ids = tf.Variable(zeros(2, 3)), zeros(0, 2**62, dtype=tf.int32)
        how = {"normalize": False, "row_offset": 0}
        return ops.tfxc_candidate_log_sum_exp(rows.handle, zeros(0, 3), ids, ids, zeros(0, 2**62), **how)
    codes, tables = zeros(2**50, 0, 1, dtype=tf.int32), zeros(2, 1, dtype=tf.uint16)
    how = {"num_candidates": 2**20, "uniform_fraction": 0.5, "bucket_slots": 0}
    return ops.tfxc_lsh_draw(codes, tables, [[0, 2]], [[0, 1]], [1, 2], **how)


@pytest.mark.parametrize(
    "name",
    [
        *("hash tables", "midx draw", "sparse head", "dense scan", "block draw", "mach decode"),
        *("candidate log-sum-exp", "lsh draw"),
    ],
)
def test_shapes_beyond_64_bits(name):
    with pytest.raises((tf.errors.InvalidArgumentError, tf.errors.ResourceExhaustedError)):
        call(name)
