"""Inputs at no multiple of 64 bytes, as a part of a tensor or one of another library may be."""

import numpy as np
import pytest
import tensorflow as tf
from lsh_checks import SCHEMES, random_queries, random_tables

import tfxc.ops.candidate_log_sum_exp  # noqa: F401, registers a gradient
from tfxc.hashing import UniversalHash, universal_coefficients
from tfxc.losses import LOGSUMEXP, SOFTPLUS, SQUARED_HINGE
from tfxc.ops import library
from tfxc.ops.block_draw import BlockIndex, Kernel, block_draw, block_log_prob
from tfxc.ops.candidate_scores import candidate_scores
from tfxc.ops.hash_tables import hash_tables
from tfxc.ops.lsh_draw import lsh_draw, lsh_log_expected_count
from tfxc.ops.mach_decode import mach_top_k, mach_top_k_probed
from tfxc.ops.midx_draw import CellIndex, midx_draw, pack_slots
from tfxc.ops.row_updates import AdamHyper, lazy_adam_update, row_sgd_update, rowwise_adagrad_update
from tfxc.ops.sparse_head import sparse_head_candidates, sparse_head_logits, sparse_head_reduce
from tfxc.sparsity import random_topology

pytestmark = pytest.mark.kernels


def unaligned(array):
    array = np.ascontiguousarray(array)
    room = np.zeros(array.size + 1 + 64 // array.itemsize, array.dtype)
    start = (-room.ctypes.data % 64) // array.itemsize + 1
    own = room[start : start + array.size].reshape(array.shape)
    own[...] = array
    tensor = tf.experimental.dlpack.from_dlpack(own.__dlpack__())
    assert np.from_dlpack(tensor).ctypes.data % 64 == array.itemsize
    return tensor


def floats(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def integers(high, *shape, low=0, dtype=np.int32):
    return np.random.default_rng(1).integers(low, high, size=shape).astype(dtype)


def check(call, *arrays):
    for one, other in zip(call(*map(tf.constant, arrays)), call(*map(unaligned, arrays)), strict=True):
        np.testing.assert_array_equal(one, other)


def gradients(function, sources):
    with tf.GradientTape() as tape:
        tape.watch(sources)
        found = function()
        total = tf.add_n([tf.reduce_sum(tf.square(part)) for part in found])
    return [*found, *map(tf.convert_to_tensor, tape.gradient(total, sources))]


def test_candidate_scores():
    table = tf.Variable(floats(20, 17))

    def call(query, ids):
        scores = lambda: [candidate_scores(table, query, ids, normalize=True)]  # noqa: E731
        return gradients(scores, [query, table])

    check(call, floats(5, 17), integers(20, 5, 3, low=-1))


def test_candidate_log_sum_exp():
    table, fold = tf.Variable(floats(20, 17)), library.load().tfxc_candidate_log_sum_exp

    def call(query, *given):
        made = lambda: fold(table.handle, query, *given, normalize=True, row_offset=0)[:2]  # noqa: E731
        return gradients(made, [query, given[-1]])

    check(call, floats(5, 17), integers(20, 5, 1, low=-1), integers(20, 5, 3, low=-1), floats(5, 3))


def test_sparse_head():
    indices = tf.Variable(random_topology(40, 3, 19, 0))

    def call(query, values, bias, labels):
        weights = tf.Variable(values)
        given = query, weights, indices
        found = []
        for reduction in (SQUARED_HINGE, SOFTPLUS, LOGSUMEXP):
            reduce = lambda r=reduction: sparse_head_reduce(*given, bias, labels, r)  # noqa: E731
            found += gradients(reduce, [query, weights, bias])
        found += gradients(lambda: [sparse_head_logits(*given, bias, 3, 30)], [query, weights, bias])
        return found + gradients(lambda: [sparse_head_candidates(*given, labels)], [query, weights])

    check(call, floats(37, 19), floats(40, 3), floats(40), integers(40, 37, 2, low=-1))


@pytest.mark.parametrize("id_dtype", [np.int32, np.int64])
def test_row_updates(id_dtype):
    def call(table, slot, values, ids):
        variables = [tf.Variable(table), tf.Variable(slot), tf.Variable(slot)]
        gradient = tf.IndexedSlices(values, ids)
        lazy_adam_update(*variables, gradient, AdamHyper(0.1, 0.9, 0.99, 1e-7))
        row_sgd_update(variables[0], gradient, 0.5)
        accumulator = tf.Variable(tf.ones([9]))
        rowwise_adagrad_update(variables[0], accumulator, gradient, 0.3, 1e-8)
        return [*variables, accumulator]

    check(call, floats(9, 17), np.abs(floats(9, 17)), floats(6, 17), integers(9, 6, dtype=id_dtype))


def test_row_updates_from_scores():
    def call(table, query, gradients, slots):
        variable = tf.Variable(table)
        update = library.load().tfxc_row_sgd_update_from_scores
        update(variable.handle, query, gradients, slots, learning_rate=0.5, seed=[0, 0])
        return [variable]

    slots = np.sort(integers(9, 15).astype(np.uint64) << 32 | np.arange(15, dtype=np.uint64))
    check(call, floats(9, 17), floats(5, 17), floats(5, 3), slots)


def test_block_draw():
    def call(query, rows, mass, ids):
        index = BlockIndex(tf.Variable(rows), 8, Kernel(1.0, 0.0, 1.0, 0.5))
        return [*block_draw(query, mass, index, 9, [1, 2]), block_log_prob(query, mass, index, ids)]

    check(call, floats(20, 5), floats(50, 5), floats(20, 7), integers(50, 20, 3))


def test_midx_draw():
    cells = np.sort(integers(9, 30))
    offsets = np.searchsorted(cells, np.arange(10)).astype(np.int32)
    mass = np.diff(offsets).reshape(3, 3).astype(np.float32)
    every, ones = np.arange(30), np.ones(30)

    def call(u, v, *index):
        return midx_draw(u, v, CellIndex(*index), 9, [1, 2])

    check(call, floats(7, 3), floats(7, 3), mass, offsets, pack_slots(ones, every, every, ones))


def test_hash_tables_and_lsh_draw():
    tables = random_tables(60, 9, 4)

    def call(codes, query, ids, *parts):
        found = [*hash_tables(codes, 4)]
        own = type(tables)(*parts)
        for scheme in SCHEMES.values():
            found += [*lsh_draw(query, own, scheme, [1, 2]), lsh_log_expected_count(query, ids, own, scheme)]
        return found

    parts = [part.numpy() for part in tables]
    check(call, parts[0], random_queries(5, 2, 9, 4), integers(60, 5, 3), *parts)


def test_mach_decode():
    family = UniversalHash(tf.constant(universal_coefficients(70, range(3), 0)), 70, 9)

    def call(tables, exclude):
        found = []
        for decoder in ("mean", "min", "median"):
            for prune in (True, False):
                found += mach_top_k(tables, family, 5, exclude, decoder, prune=prune)
            found += mach_top_k_probed(tables, family, 5, 3, exclude, decoder)
        return found

    check(call, np.exp(floats(19, 3, 9)), integers(70, 19, 2, low=-1))
