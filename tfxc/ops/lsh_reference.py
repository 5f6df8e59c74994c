"""Candidates from the buckets of hash tables in stock TensorFlow ops."""

from typing import NamedTuple

import tensorflow as tf

from tfxc.ids import drop_duplicates
from tfxc.require import in_range, require


class _Buckets(NamedTuple):
    """The buckets of each query ``[N, M, T]``, those of absent parts last and of size 0."""

    codes: tf.Tensor
    start: tf.Tensor
    size: tf.Tensor
    num_parts: tf.Tensor  # [N], without the absent


def lsh_draw_reference(query_codes, tables, scheme, seed):
    """:func:`~tfxc.ops.lsh_draw.lsh_draw` in stock ops: the same distribution, other random numbers.

    >>> from tfxc.ops.lsh_draw import Scheme
    >>> from tfxc.ops.hash_tables import hash_tables_reference
    >>> tables = hash_tables_reference(np.zeros([1, 1], np.uint16), num_buckets=1)
    >>> codes, seed = tf.constant([[[0]]]), tf.constant([0, 0], tf.int64)
    >>> lsh_draw_reference(codes, tables, Scheme(2, 0.1), seed)[0].numpy().tolist()
    [[0, 0]]
    """
    buckets = _look_up(query_codes, tables)
    draw = _draw_union if scheme.bucket_slots else _draw_each
    ids = draw(buckets, tables, scheme, tf.unstack(tf.random.split(seed, 3)))
    log_expected_count = _log_expected_count(buckets, tf.maximum(ids, 0), tables, scheme)
    return ids, tf.where(ids < 0, 0.0, log_expected_count)


def lsh_log_expected_count_reference(query_codes, class_ids, tables, scheme):
    """:func:`~tfxc.ops.lsh_draw.lsh_log_expected_count` in stock ops.

    >>> from tfxc.ops.lsh_draw import Scheme
    >>> from tfxc.ops.hash_tables import hash_tables_reference
    >>> tables = hash_tables_reference(np.zeros([2, 1], np.uint16), num_buckets=1)
    >>> ids = tf.constant([[0, 1]])
    >>> lsh_log_expected_count_reference(tf.constant([[[0]]]), ids, tables, Scheme(2, 0.1)).numpy()
    array([[0., 0.]], dtype=float32)
    """
    with tf.control_dependencies(in_range(class_ids, 0, tf.shape(tables.codes)[0], "class_ids: the id")):
        return _log_expected_count(_look_up(query_codes, tables), class_ids, tables, scheme)


def _look_up(query_codes, tables):
    num_buckets = tf.shape(tables.offsets)[1] - 1
    absent = query_codes[:, :, :1] == -1
    fits = tf.where(absent, query_codes == -1, (query_codes >= 0) & (query_codes < num_buckets))
    message = "query_codes must be -1 in all tables or in [0, num_buckets), which is"
    with tf.control_dependencies(require(tf.reduce_all(fits), message, num_buckets)):
        order = tf.argsort(tf.cast(absent[:, :, 0], tf.int32), axis=1, stable=True)
    codes = tf.gather(query_codes, order, axis=1, batch_dims=1)
    offsets = tf.reshape(tables.offsets, [-1])
    number = tf.maximum(codes, 0) + tf.range(tf.shape(codes)[2]) * (num_buckets + 1)
    start, end = tf.gather(offsets, number), tf.gather(offsets, number + 1)
    sound = (start >= 0) & (start <= end) & (end <= tf.shape(tables.codes)[0])
    message = "offsets must ascend from 0 to L. Rebuild the tables."
    with tf.control_dependencies(require(tf.reduce_all(sound), message)):
        num_parts = tf.reduce_sum(tf.cast(codes[:, :, 0] >= 0, tf.int32), axis=1)
    return _Buckets(codes, start, tf.where(codes < 0, 0, end - start), num_parts)


def _log_expected_count(buckets, class_ids, tables, scheme):
    draws, fraction = scheme.num_candidates, tf.constant(scheme.uniform_fraction, tf.float64)
    num_classes, num_tables = (tf.cast(size, tf.float64) for size in tf.unstack(tf.shape(tables.codes)))
    rows = tf.cast(tf.gather(tables.codes, class_ids), tf.int32)
    match = tf.cast(rows[:, :, tf.newaxis] == buckets.codes[:, tf.newaxis], tf.float64)  # [N, S, M, T]
    size = tf.cast(buckets.size, tf.float64)
    num_parts = tf.cast(buckets.num_parts, tf.float64)[:, tf.newaxis, tf.newaxis]
    if scheme.bucket_slots:
        slots = tf.cast(scheme.bucket_slots, tf.float64)
        chance = tf.minimum(tf.math.divide_no_nan(slots, size), 1.0) / num_parts
        chance = tf.reduce_sum(match * tf.where(size > 0, chance, 0.0)[:, tf.newaxis], axis=2)
        uniform = (draws - scheme.bucket_slots * num_tables) / num_classes
        expected = uniform + 1 - tf.reduce_prod(1 - chance, axis=2)
    else:
        from_bucket = tf.math.divide_no_nan((1 - fraction) * draws, num_parts * num_tables)
        empty = tf.cast((buckets.codes >= 0) & (buckets.size == 0), tf.float64)
        uniform = tf.where(num_parts > 0, fraction, 1.0) * draws
        everywhere = (
            uniform[:, :, 0] + tf.reduce_sum(from_bucket * empty, axis=[1, 2])[:, tf.newaxis]
        ) / num_classes
        weight = tf.math.divide_no_nan(from_bucket, size)[:, tf.newaxis]
        expected = everywhere + tf.reduce_sum(match * weight, axis=[2, 3])
    return tf.cast(tf.math.log(expected), tf.float32)


def _draw_each(buckets, tables, scheme, seeds):
    num_classes, num_tables = tf.unstack(tf.shape(tables.codes, tf.int64))
    shape = [tf.shape(buckets.codes)[0], scheme.num_candidates]
    unit = tf.random.stateless_uniform(shape, seeds[0], dtype=tf.float64) - scheme.uniform_fraction
    count = buckets.num_parts[:, tf.newaxis] * tf.cast(num_tables, tf.int32)
    share = unit / max(1 - scheme.uniform_fraction, 1e-300) * tf.cast(count, tf.float64)
    bucket = tf.clip_by_value(tf.cast(share, tf.int32), 0, tf.maximum(count - 1, 0))
    code, start, size = (
        tf.gather(tf.reshape(part, [shape[0], -1]), bucket, batch_dims=1) for part in buckets[:3]
    )
    from_bucket = (unit >= 0) & (size > 0)
    size = tf.where(from_bucket, tf.cast(size, tf.int64), num_classes)
    position = _random_integers(shape, seeds[1]) % size
    table = tf.cast(bucket, tf.int64) % num_tables
    index = tf.where(from_bucket, tf.cast(start, tf.int64) + position, 0)
    member = _members(tables, table, index, tf.where(from_bucket, code, -1))
    return tf.where(from_bucket, member, tf.cast(position, tf.int32))


def _draw_union(buckets, tables, scheme, seeds):
    slots, shape = scheme.bucket_slots, tf.shape(buckets.codes)[::2]
    num_queries, num_tables = tf.unstack(shape)
    part = tf.cast(tf.maximum(buckets.num_parts, 1), tf.int64)[:, tf.newaxis]
    part = _random_integers(shape, seeds[0]) % part
    code, start, size = (
        tf.gather(tf.transpose(value, [0, 2, 1]), part, batch_dims=2)[:, :, tf.newaxis]
        for value in buckets[:3]
    )
    unit = tf.random.stateless_uniform(shape, seeds[1], dtype=tf.float64)[:, :, tf.newaxis]
    slot = tf.range(slots, dtype=tf.float64)
    step = tf.cast(size, tf.float64) / slots
    index = tf.where(size > slots, (unit + slot) * step, slot)
    index = tf.minimum(tf.cast(index, tf.int32), tf.maximum(size - 1, 0))
    taken = slot < tf.cast(size, tf.float64)
    table = tf.cast(tf.range(num_tables)[:, tf.newaxis] + tf.zeros_like(index), tf.int64)
    position = tf.where(taken, tf.cast(start + index, tf.int64), 0)
    member = _members(tables, table, position, tf.where(taken, code, -1))
    member = drop_duplicates(tf.reshape(tf.where(taken, member, -1), [num_queries, num_tables * slots]))
    num_uniform = scheme.num_candidates - num_tables * slots
    uniform = _random_integers([num_queries, num_uniform], seeds[2]) % tf.shape(tables.codes, tf.int64)[0]
    return tf.concat([member, tf.cast(uniform, tf.int32)], axis=1)


def _members(tables, table, index, code):
    """Classes at ``index`` of ``members[table]``, whose code in that table is ``code`` (-1: never mind)."""
    num_classes = tf.shape(tables.codes, tf.int64)[0]
    ids = tf.gather(tf.reshape(tables.members, [-1]), table * num_classes + index)
    in_range = (ids >= 0) & (tf.cast(ids, tf.int64) < num_classes)
    own = tf.gather_nd(
        tables.codes, tf.stack([tf.where(in_range, tf.cast(ids, tf.int64), 0), table], axis=-1)
    )
    sound = (code < 0) | (in_range & (tf.cast(own, tf.int32) == code))
    message = "members of a bucket hold a class whose code is not that of the bucket. Rebuild the tables."
    with tf.control_dependencies(require(tf.reduce_all(sound), message)):
        return tf.identity(ids)


def _random_integers(shape, seed):
    """Uniform int64 in [0, 2^63)."""
    bits = tf.random.stateless_uniform(shape, seed, None, None, tf.int64)
    return tf.bitwise.bitwise_and(bits, tf.int64.max)
