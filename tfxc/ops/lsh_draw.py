"""Candidates from the buckets of hash tables, and how often each class is expected among them."""

from typing import NamedTuple

import tensorflow as tf

from tfxc.arguments import positive_int
from tfxc.ids import int32_ids
from tfxc.ops import library
from tfxc.ops.hash_tables import HashTables
from tfxc.ops.lsh_reference import lsh_draw_reference, lsh_log_expected_count_reference


class Scheme(NamedTuple):
    """How candidates are drawn. A query has M parts (itself, or its labels), each with one code a table.

    Attributes:
        num_candidates: S.
        uniform_fraction: ε in (0, 1], the share of independent draws that come from all classes.
        bucket_slots: 0 for S independent draws, each from all classes or from a bucket of a part and a
            table chosen uniformly (from all classes, if it is empty). Else c: a union, to which each
            table adds at most c classes of the bucket of one part, chosen uniformly; the
            ``S − c·T`` slots left are uniform draws.
    """

    num_candidates: int
    uniform_fraction: float
    bucket_slots: int = 0


def lsh_draw(query_codes, tables, scheme, seed):
    """Draws S candidates a query and the log of each one's expected count among them, given the tables.

    Independent draws, ``|t,m|`` being the size of the bucket of part m in table t:
    ``e_i = S·ε/L + S·(1 − ε)/(T·M) Σ_tm ([i in bucket] / |t,m|, or 1/L if it is empty)``. Union:
    ``e_i = (S − c·T)/L + 1 − Π_t (1 − Σ_m [i in bucket] min(1, c/|t,m|) / M)``; of a larger bucket every
    ``|t,m|/c``-th member is taken, from a random start, and a class taken before is not taken again.
    The cost is O(M·T) a query and a candidate, whatever L. The compiled op's random numbers belong to
    (seed, query, candidate). Without it ``lsh_draw_reference`` draws; its draws for the same seed are others.

    Args:
        query_codes: ``[N, M, T]`` int32; -1 throughout for a part that is absent. A query without
            any has uniform draws only (in a union, no others' place taken).
        tables: :class:`~tfxc.ops.hash_tables.HashTables`.
        scheme: :class:`Scheme`.
        seed: ``[2]`` integers; the same seed gives the same draws.

    Returns:
        ``class_ids [N, S]`` int32, -1 for an empty slot of a union, and ``log_expected_count [N, S]``
        float32, finite (0 for an empty slot).

    Raises:
        ValueError: The scheme leaves no uniform draw, or ``num_candidates`` is outside [1, 2^24].
        tf.errors.InvalidArgumentError: A query code out of range, or malformed tables.

    >>> from tfxc.ops.hash_tables import hash_tables
    >>> tables = hash_tables(np.array([[0], [1], [1]], np.uint16), num_buckets=2)
    >>> ids, log_expected_count = lsh_draw([[[1]]], tables, Scheme(3, uniform_fraction=0.5), seed=[1, 2])
    >>> tf.exp(lsh_log_expected_count([[[1]]], [[0, 1, 2]], tables, Scheme(3, 0.5))).numpy().tolist()
    [[0.5, 1.25, 1.25]]

    Reference: Daghaghi, Medini, Meisburger, Chen, Zhao, Shrivastava, A Tale of Two Efficient and
    Informative Negative Sampling Distributions, 2021; Spring, Shrivastava, A New Unbiased and Efficient
    Class of LSH-Based Samplers and Estimators for Partition Function Computation in Log-Linear Models, 2017.
    """
    query_codes, tables = _convert(query_codes, tables, scheme)
    seed = tf.cast(seed, tf.int64)
    if not library.use_compiled():
        return lsh_draw_reference(query_codes, tables, scheme, seed)
    return tuple(library.load().tfxc_lsh_draw(query_codes, *tables, seed, **scheme._asdict()))


def lsh_log_expected_count(query_codes, class_ids, tables, scheme):
    """Log of the expected count of any ``class_ids [N, P]`` among the candidates of :func:`lsh_draw`.

    Raises:
        ValueError: The scheme leaves no uniform draw.
        tf.errors.InvalidArgumentError: A class id outside ``[0, L)``, or what :func:`lsh_draw` refuses.

    >>> tables = HashTables(np.zeros([2, 1], np.uint16), offsets=[[0, 2]], members=[[0, 1]])
    >>> lsh_log_expected_count([[[0]]], [[0, 1]], tables, Scheme(2, 0.1)).numpy().tolist()
    [[0.0, 0.0]]
    """
    query_codes, tables = _convert(query_codes, tables, scheme)
    class_ids = int32_ids(class_ids, tables.codes.shape[0])
    if not library.use_compiled():
        return lsh_log_expected_count_reference(query_codes, class_ids, tables, scheme)
    return library.load().tfxc_lsh_log_expected_count(query_codes, *tables, class_ids, **scheme._asdict())


def _convert(query_codes, tables, scheme):
    tables = HashTables(
        *(
            tf.convert_to_tensor(part, dtype)
            for part, dtype in zip(tables, (tf.uint16, tf.int32, tf.int32), strict=True)
        )
    )
    if tables.codes.shape.rank != 2:
        raise ValueError(f"The tables' codes must be [L, T], but their shape is {tables.codes.shape}.")
    num_tables = tables.codes.shape[-1]
    positive_int(scheme.num_candidates, "num_candidates", most=library.MOST_PER_QUERY)
    positive_int(scheme.bucket_slots, "bucket_slots", least=0)
    if not 0 < scheme.uniform_fraction <= 1 or scheme.bucket_slots * num_tables >= scheme.num_candidates:
        raise ValueError(
            f"{scheme} with {num_tables} tables leaves no uniform draw, so classes outside the buckets could "
            "never come: uniform_fraction must be in (0, 1] and num_candidates above bucket_slots·T."
        )
    return tf.cast(query_codes, tf.int32), tables
