"""Hash tables over the classes as sorted arrays."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfxc.arguments import positive_int
from tfxc.ops import library


class HashTables(NamedTuple):
    """T tables over L classes: bucket c of table t holds ``members[t, offsets[t, c]:offsets[t, c + 1]]``."""

    codes: tf.Tensor  # [L, T] uint16, the bucket of each class in each table
    offsets: tf.Tensor  # [T, num_buckets + 1] int32, from 0 to L
    members: tf.Tensor  # [T, L] int32, every class once in each table, sorted by bucket and then by id


def hash_tables(codes, num_buckets):
    """Sorts the classes into the buckets of every table: O(T·L), once a refresh. Both paths agree exactly.

    Codes are ``[L, T]`` uint16, below ``num_buckets`` in [1, 65536]; an InvalidArgumentError names the class
    of any other. Another number of buckets raises ValueError.
    """
    codes = _check(codes, num_buckets)
    if not library.use_compiled():
        return _sort(codes, num_buckets)
    return HashTables(codes, *library.load().tfxc_hash_tables(codes, num_buckets=num_buckets))


def _check(codes, num_buckets):
    positive_int(num_buckets, "num_buckets", most=1 << 16)
    codes = codes if tf.is_tensor(codes) else np.asarray(codes)
    if len(codes.shape) != 2:
        raise ValueError(f"codes must be [L, T], but their shape is {codes.shape}.")
    if codes.dtype != np.uint16:  # before the cast to uint16, which makes 1 of 65,537
        _check_range(np.asarray(codes), num_buckets)
    return tf.cast(codes, tf.uint16)


def _check_range(codes, num_buckets):
    bad = np.flatnonzero(((codes < 0) | (codes >= num_buckets)).any(axis=1))
    if len(bad):
        raise tf.errors.InvalidArgumentError(
            None, None, f"codes of class {bad[0]} are not all below num_buckets = {num_buckets}."
        )


def _sort(codes, num_buckets):
    values = codes.numpy()
    _check_range(values, num_buckets)
    num_tables = values.shape[1]
    offsets = np.zeros((num_tables, num_buckets + 1), np.int32)
    members = np.empty((num_tables, len(values)), np.int32)
    for table, column in enumerate(np.ascontiguousarray(values.T)):
        offsets[table, 1:] = np.cumsum(np.bincount(column, minlength=num_buckets))
        members[table] = np.argsort(column, kind="stable")
    return HashTables(codes, tf.constant(offsets), tf.constant(members))
