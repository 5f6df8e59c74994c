"""A call of each kernel, forward and backward: a function of tensors to results, and the arrays it takes.

The functions hand the tensors to our ops alone: TensorFlow's own take no unaligned ones.
"""

import functools

import numpy as np
import tensorflow as tf
from lsh_checks import SCHEMES, random_queries, random_tables

from tfxc.hashing import UniversalHash, universal_coefficients
from tfxc.losses import LOGSUMEXP, SOFTPLUS, SQUARED_HINGE
from tfxc.ops import dense_scan as dense
from tfxc.ops.block_draw import BlockIndex, Kernel, block_draw, block_log_prob
from tfxc.ops.candidate_log_sum_exp import candidate_log_sum_exp
from tfxc.ops.candidate_scores import candidate_scores
from tfxc.ops.hash_tables import HashTables, hash_tables
from tfxc.ops.library import load
from tfxc.ops.lsh_draw import lsh_draw, lsh_log_expected_count
from tfxc.ops.mach_decode import mach_top_k, mach_top_k_probed
from tfxc.ops.midx_draw import CellIndex, midx_draw, pack_slots
from tfxc.ops.row_updates import AdamHyper, lazy_adam_update, row_sgd_update, rowwise_adagrad_update
from tfxc.ops.sparse_head import sparse_head_candidates, sparse_head_logits, sparse_head_reduce
from tfxc.sparsity import random_topology


def floats(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def integers(high, *shape, low=0, dtype=np.int32):
    return np.random.default_rng(1).integers(low, high, size=shape).astype(dtype)


def gradients(function, sources):
    with tf.GradientTape() as tape:
        tape.watch(sources)
        found = function()
        total = tf.add_n([tf.reduce_sum(tf.square(part)) for part in found])
    return [*found, *map(tf.convert_to_tensor, tape.gradient(total, sources))]


def score(rows, query, ids):
    table = tf.Variable(rows)
    return gradients(lambda: [candidate_scores(table, query, ids, normalize=True)], [query, table])


def fold(rows, query, labels, ids, offsets):
    table, given = tf.Variable(rows), (query, labels, ids, offsets)
    exact = gradients(lambda: candidate_log_sum_exp(table, *given), [query, offsets, table])
    return exact + gradients(lambda: candidate_log_sum_exp(table, *given, normalize=True), [query, offsets])


def sparse(values, topology, query, bias, labels):
    weights = tf.Variable(values)
    given, found = (query, weights, tf.Variable(topology)), []
    for reduction in (SQUARED_HINGE, SOFTPLUS, LOGSUMEXP):
        reduce = functools.partial(sparse_head_reduce, *given, bias, labels, reduction)
        found += gradients(reduce, [query, weights, bias])
    found += gradients(lambda: [sparse_head_logits(*given, bias, 3, 30)], [query, weights, bias])
    return found + gradients(lambda: [sparse_head_candidates(*given, labels)], [query, weights])


def scan(rows, query, bias, upstream, *more):
    table, classes = tf.Variable(rows), {"num_classes": rows.shape[0]}
    given = query, table.handle, bias
    found = [*dense.dense_scan(*given, reduction="logsumexp", k=20, **classes)]
    found += dense.dense_scan_gradient(*given, found[0], upstream, reduction="logsumexp", **classes)
    found += dense.dense_scan(*given, k=20, **classes)
    reduced, maxima = dense.dense_scan_with_maxima(*given, **classes)
    given = *given, reduced, upstream, maxima, more
    return [*found, reduced, maxima, *dense.dense_scan_filtered_gradient(*given, threshold=0.01, **classes)]


def update(is_half, rows, slot, accumulator, values, ids):
    gradient, found = tf.IndexedSlices(values, ids), []
    for rule, slots, options in (
        (row_sgd_update, [], [0.1]),
        (lazy_adam_update, [slot, slot], [AdamHyper(0.01, 0.9, 0.999, 1e-7)]),
        (rowwise_adagrad_update, [accumulator], [0.1, 1e-7]),
    ):
        table = tf.cast(UPDATED[0], tf.bfloat16) if is_half else rows
        variables = [tf.Variable(given) for given in (table, *slots)]
        rule(*variables, gradient, *options, seed=[1, 2])
        found += variables
    return found


def update_from_scores(rows, query, gradients, slots):
    table = tf.Variable(rows)
    update = load().tfxc_row_sgd_update_from_scores
    update(table.handle, query, gradients, slots, learning_rate=0.5, seed=[0, 0])
    return [table]


def blocks(query, rows, mass, ids):
    index = BlockIndex(tf.Variable(rows), 8, Kernel(1.0, 0.0, 1.0, 0.5))
    return [*block_draw(query, mass, index, 9, [1, 2]), block_log_prob(query, mass, index, ids)]


def cells(u, v, *index):
    return midx_draw(u, v, CellIndex(*index), 9, [1, 2])


def buckets(codes, query, ids, *parts):
    found, tables = [*hash_tables(codes, 4)], HashTables(*parts)
    for scheme in SCHEMES.values():
        found += [
            *lsh_draw(query, tables, scheme, [1, 2]),
            lsh_log_expected_count(query, ids, tables, scheme),
        ]
    return found


def decode(tables, exclude):
    found, family = [], UniversalHash(tf.constant(universal_coefficients(70, range(3), 0)), 70, 9)
    for decoder in ("mean", "min", "median"):
        for prune in (True, False):
            found += mach_top_k(tables, family, 5, exclude, decoder, prune=prune)
        found += mach_top_k_probed(tables, family, 5, 3, exclude, decoder)
    return found


def cell_index():
    cells, every, ones = np.sort(integers(9, 30)), np.arange(30), np.ones(30)
    offsets = np.searchsorted(cells, np.arange(10)).astype(np.int32)
    return np.diff(offsets).reshape(3, 3).astype(np.float32), offsets, pack_slots(ones, every, every, ones)


def slots_of_rows():
    return np.sort(integers(9, 15).astype(np.uint64) << 32 | np.arange(15, dtype=np.uint64))


TABLE, QUERY, TABLES = floats(20_000, 24), floats(300, 24), [part.numpy() for part in random_tables(60, 9, 4)]
UPDATED = floats(3000, 24), np.abs(floats(3000, 24)), np.abs(floats(3000)), floats(20_000, 24)
CALLS = {
    "candidate scores": (score, TABLE, QUERY, integers(20_000, 300, 50, low=-1)),
    "candidate log-sum-exp": (
        *(fold, TABLE, QUERY),
        *(integers(20_000, 300, size, low=-1) for size in (2, 50)),
        floats(300, 50),
    ),
    "sparse head": (
        *(sparse, floats(5000, 8), random_topology(5000, 8, 100, 0), floats(40, 100), floats(5000)),
        integers(5000, 40, 2, low=-1),
    ),
    "dense scan": (scan, TABLE, QUERY, floats(20_000), floats(300), integers(9, 3), floats(3, 24), floats(3)),
    "row updates": (functools.partial(update, False), *UPDATED, integers(3000, 20_000)),
    "row updates, int64": (
        *(functools.partial(update, False), *UPDATED),
        integers(3000, 20_000, dtype=np.int64),
    ),
    "row updates, bfloat16": (functools.partial(update, True), *UPDATED, integers(3000, 20_000)),
    "from scores": (update_from_scores, floats(9, 17), floats(5, 17), floats(5, 3), slots_of_rows()),
    "block draw": (blocks, floats(20, 5), floats(50, 5), floats(20, 7), integers(50, 20, 3)),
    "midx draw": (cells, floats(7, 3), floats(7, 3), *cell_index()),
    "hash tables, lsh draw": (
        *(buckets, TABLES[0], random_queries(5, 2, 9, 4), integers(60, 5, 3)),
        *TABLES,
    ),
    "mach decode": (decode, np.exp(floats(19, 3, 9)), integers(70, 19, 2, low=-1)),
}
