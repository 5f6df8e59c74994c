"""Candidates from the buckets of hash tables, and how often each class is expected among them."""

from typing import NamedTuple

import tensorflow as tf

from tfxc.arguments import positive_int
from tfxc.ids import drop_duplicates, int32_ids
from tfxc.ops import library
from tfxc.ops.hash_tables import HashTables
from tfxc.require import in_range, require


class Scheme(NamedTuple):
    """How candidates are drawn. A query has M parts (itself, or its labels), each with one code a table.

    With ``bucket_slots=0`` these are S independent draws. Each draw comes from all classes, or from the
    bucket of a part and a table chosen uniformly; an empty bucket stands for all classes. Above 0 it is c,
    for a union: each table adds at most c classes of the bucket of one part, chosen uniformly, and the
    ``S − c·T`` slots left are uniform draws.
    """

    num_candidates: int  # S
    uniform_fraction: float  # ε in (0, 1], the share of independent draws that come from all classes
    bucket_slots: int = 0


def lsh_draw(query_codes, tables, scheme, seed):
    """Draws S candidates a query and the log of each candidate's expected count, given the tables.

    With ``|t,m|`` the size of the bucket of part m in table t, independent draws have
    ``e_i = S·ε/L + S·(1 − ε)/(T·M) Σ_tm ([i in bucket] / |t,m|, or 1/L if it is empty)``, and a union has
    ``e_i = (S − c·T)/L + 1 − Π_t (1 − Σ_m [i in bucket] min(1, c/|t,m|) / M)``. A union takes every
    ``|t,m|/c``-th member of a larger bucket, from a random start, and no class twice. The cost is O(M·T) a
    query and a candidate, whatever L. The compiled op's random numbers belong to (seed, query, candidate).
    The TensorFlow path has the same distribution; its draws for the same seed differ.

    Query codes are ``[N, M, T]`` int32, -1 in all tables for a part that is absent. A query without parts has
    uniform draws only; in a union the slots of its buckets stay empty. The seed is ``[2]`` integers. Returns
    ``class_ids [N, S]`` int32, -1 for an empty slot of a union, and ``log_expected_count [N, S]`` float32,
    finite (0 for an empty slot). Raises ValueError for a scheme without a uniform draw, or a number of
    candidates outside [1, 2^24]; an InvalidArgumentError for a query code out of range, or malformed tables.
    """
    query_codes, tables = _convert(query_codes, tables, scheme)
    seed = tf.cast(seed, tf.int64)
    if not library.use_compiled():
        return _draw(query_codes, tables, scheme, seed)
    return tuple(library.load().tfxc_lsh_draw(query_codes, *tables, seed, **scheme._asdict()))


def lsh_log_expected_count(query_codes, class_ids, tables, scheme):
    """Log of the expected count of class ids ``[N, P]`` in ``[0, L)`` among those that ``lsh_draw`` draws."""
    query_codes, tables = _convert(query_codes, tables, scheme)
    class_ids = int32_ids(class_ids, tables.codes.shape[0])
    if not library.use_compiled():
        with tf.control_dependencies(in_range(class_ids, 0, tf.shape(tables.codes)[0], "class_ids: the id")):
            return _log_expected_count(_look_up(query_codes, tables), class_ids, tables, scheme)
    return library.load().tfxc_lsh_log_expected_count(query_codes, *tables, class_ids, **scheme._asdict())


def _convert(query_codes, tables, scheme):
    tables = HashTables(*map(tf.convert_to_tensor, tables, (tf.uint16, tf.int32, tf.int32)))
    if tables.codes.shape.rank != 2:
        raise ValueError(f"The tables' codes must be [L, T], but their shape is {tables.codes.shape}.")
    num_tables = tables.codes.shape[-1]
    positive_int(scheme.num_candidates, "num_candidates", most=library.MOST_PER_QUERY)
    positive_int(scheme.bucket_slots, "bucket_slots", least=0)
    if not 0 < scheme.uniform_fraction <= 1 or scheme.bucket_slots * num_tables >= scheme.num_candidates:
        raise ValueError(
            f"{scheme} with {num_tables} tables leaves no uniform draw, so a class outside the buckets could "
            "never be drawn: uniform_fraction must be in (0, 1] and num_candidates above bucket_slots·T."
        )
    return tf.cast(query_codes, tf.int32), tables


class _Buckets(NamedTuple):
    """The buckets of each query ``[N, M, T]``; buckets of absent parts come last and have size 0."""

    codes: tf.Tensor
    start: tf.Tensor
    size: tf.Tensor
    num_parts: tf.Tensor  # [N], without absent parts


def _draw(query_codes, tables, scheme, seed):
    buckets = _look_up(query_codes, tables)
    draw = _draw_union if scheme.bucket_slots else _draw_each
    ids = draw(buckets, tables, scheme, tf.unstack(tf.random.split(seed, 3)))
    log_expected_count = _log_expected_count(buckets, tf.maximum(ids, 0), tables, scheme)
    return ids, tf.where(ids < 0, 0.0, log_expected_count)


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
        of_empty = tf.reduce_sum(from_bucket * empty, axis=[1, 2])[:, tf.newaxis]
        weight = tf.math.divide_no_nan(from_bucket, size)[:, tf.newaxis]
        of_buckets = tf.reduce_sum(match * weight, axis=[2, 3])
        expected = (uniform[:, :, 0] + of_empty) / num_classes + of_buckets
    return tf.cast(tf.math.log(expected), tf.float32)


def _draw_each(buckets, tables, scheme, seeds):
    num_classes, num_tables = tf.unstack(tf.shape(tables.codes, tf.int64))
    shape = [tf.shape(buckets.codes)[0], scheme.num_candidates]
    unit = tf.random.stateless_uniform(shape, seeds[0], dtype=tf.float64) - scheme.uniform_fraction
    count = buckets.num_parts[:, tf.newaxis] * tf.cast(num_tables, tf.int32)
    share = unit / max(1 - scheme.uniform_fraction, 1e-300) * tf.cast(count, tf.float64)
    bucket = tf.clip_by_value(tf.cast(share, tf.int32), 0, tf.maximum(count - 1, 0))
    flat = (tf.reshape(part, [shape[0], -1]) for part in buckets[:3])
    code, start, size = (tf.gather(part, bucket, batch_dims=1) for part in flat)
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
    by_table = (tf.transpose(value, [0, 2, 1]) for value in buckets[:3])
    code, start, size = (tf.gather(own, part, batch_dims=2)[:, :, tf.newaxis] for own in by_table)
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
    """Classes at ``index`` of ``members[table]``, which must have that code there, unless it is -1."""
    num_classes = tf.shape(tables.codes, tf.int64)[0]
    ids = tf.gather(tf.reshape(tables.members, [-1]), table * num_classes + index)
    wide = tf.cast(ids, tf.int64)
    in_range = (wide >= 0) & (wide < num_classes)
    own = tf.gather_nd(tables.codes, tf.stack([tf.where(in_range, wide, 0), table], axis=-1))
    sound = (code < 0) | (in_range & (tf.cast(own, tf.int32) == code))
    message = "members hold a class whose code is not that of its bucket. Rebuild the tables."
    with tf.control_dependencies(require(tf.reduce_all(sound), message)):
        return tf.identity(ids)


def _random_integers(shape, seed):
    """Uniform int64 in [0, 2^63)."""
    bits = tf.random.stateless_uniform(shape, seed, None, None, tf.int64)
    return tf.bitwise.bitwise_and(bits, tf.int64.max)
