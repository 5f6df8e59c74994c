"""However many threads a kernel runs on, and however wide its vectors, its results have the same bits."""

from pathlib import Path

import pytest
from processes import Process

DIGESTS = """
import hashlib
import numpy as np, tensorflow as tf
from tfxc.losses import SOFTPLUS
from tfxc.ops.dense_scan import (
    dense_scan,
    dense_scan_filtered_gradient,
    dense_scan_gradient,
    dense_scan_with_maxima,
)
from tfxc.ops.candidate_log_sum_exp import candidate_log_sum_exp
from tfxc.ops.row_updates import AdamHyper, lazy_adam_update, row_sgd_update, rowwise_adagrad_update
from tfxc.ops.sparse_head import sparse_head_reduce
from tfxc.sparsity import random_topology
random = np.random.default_rng(0)
normal = lambda *shape: random.normal(size=shape).astype("f")

def show(*parts):
    print(hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest())

weights, indices = tf.Variable(normal(5000, 8)), tf.Variable(random_topology(5000, 8, 100, 0))
query = tf.constant(normal(40, 100))
with tf.GradientTape() as tape:
    tape.watch(query)
    given = query, weights, indices, tf.zeros([5000]), tf.zeros([40, 1], tf.int32)
    reduced, _ = sparse_head_reduce(*given, SOFTPLUS)
    loss = tf.reduce_sum(reduced)
show(reduced, *tape.gradient(loss, [query, weights]))

table = tf.Variable(normal(20000, 24))
given = normal(300, 24), table.handle, normal(20000)
found = dense_scan(*given, num_classes=20000, reduction="logsumexp", k=20)
options = {"num_classes": 20000, "reduction": "logsumexp"}
show(*found, *dense_scan_gradient(*given, found[0], np.ones(300, "f"), **options))
show(*dense_scan(*given, num_classes=20000, k=20)[1:])
reduced, maxima = dense_scan_with_maxima(*given, num_classes=20000)
upstream, options = np.ones(300, "f"), {"num_classes": 20000, "threshold": 0.01}
more = np.arange(3, dtype="i"), normal(3, 24), normal(3)
show(reduced, maxima, *dense_scan_filtered_gradient(*given, reduced, upstream, maxima, more, **options))

ids, values = random.integers(0, 3000, 20000), normal(20000, 24)
gradient = tf.IndexedSlices(tf.constant(values), tf.constant(ids))
for update, slots, options in (
    (row_sgd_update, [], [0.1]),
    (lazy_adam_update, [(3000, 24), (3000, 24)], [AdamHyper(0.01, 0.9, 0.999, 1e-7)]),
    (rowwise_adagrad_update, [(3000,)], [0.1, 1e-7]),
):
    half = tf.Variable(tf.cast(normal(3000, 24), tf.bfloat16))
    slots = [tf.Variable(tf.zeros(shape)) for shape in slots]
    update(half, *slots, gradient, *options, seed=[1, 2])
    show(tf.bitcast(half, tf.uint16), *slots)

query, offsets = tf.constant(normal(300, 24)), tf.constant(normal(300, 50))
labels, ids = (tf.constant(random.integers(0, 20000, (300, size)).astype("i")) for size in (2, 50))
with tf.GradientTape() as tape:
    tape.watch([query, offsets])
    found = candidate_log_sum_exp(table, query, labels, ids, offsets)
of_query, of_offsets, of_table = tape.gradient(found, [query, offsets, table])
show(*found, of_query, of_offsets, of_table.values, of_table.indices)
"""


AVX2 = Path(__file__).parents[2] / "build/custom_ops/x86-64-v3/_tfxc_ops.so"  # by `make setup-tests`
NARROW = {"TFXC_OPS_LIBRARY": str(AVX2)} if AVX2.exists() else {}


@pytest.mark.long
@pytest.mark.kernels
def test_neither_threads_nor_the_width_of_vectors_change_a_bit(capsys):
    other = Process(DIGESTS, TF_NUM_INTRAOP_THREADS="4", **NARROW)
    exec(DIGESTS, {})  # here on one thread, or on two: see conftest.py
    digests = {capsys.readouterr().out, other.output()}
    assert len(digests) == 1 and len(digests.pop().split()) == 8
