"""Time to draw by a kernel of the logit, beside scoring all classes and drawing from all their kernels.

    python benchmarks/kernel_draw.py [--classes 10000 100000 1000000] [--queries 256]

Generated class vectors, D = 64, 100 negatives a query. The peers: the matmul that scores every class, which
any draw from all classes needs; and the usual formulation, draws from the cumulative sums of all kernels.
"""

import argparse
import time

import numpy as np
import tensorflow as tf
from _measure import in_turns, show

from tfxc._keras import tf_variable
from tfxc.layers import DenseHead
from tfxc.samplers import RFF, Sphere

DIM, NEGATIVES = 64, 100


def all_class_kernels(query, table):
    """Classes drawn by α·o² + 1 from the kernels of all classes, some queries at a time; log Q of each."""

    def some_queries(query):
        weights = 100 * tf.matmul(query, table, transpose_b=True) ** 2 + 1
        sums = tf.cumsum(tf.cast(weights, tf.float64), axis=1)
        uniform = tf.random.uniform([len(query), NEGATIVES], dtype=tf.float64)
        ids = tf.searchsorted(sums, uniform * sums[:, -1:], side="right")
        return ids, tf.math.log(tf.gather(weights, ids, batch_dims=1) / tf.cast(sums[:, -1:], tf.float32))

    return [some_queries(part) for part in tf.split(query, max(1, len(query) // 16))]


def compare(num_classes, num_queries):
    random = np.random.default_rng(0)
    head = DenseHead(num_classes)
    head.build((None, DIM))
    table = tf_variable(head.table)
    table.assign(0.3 * random.normal(size=table.shape).astype(np.float32))
    query = tf.constant(random.normal(size=(num_queries, DIM)).astype(np.float32))
    labels = tf.zeros([num_queries, 1], tf.int32)
    samplers = {"Sphere": Sphere(NEGATIVES, seed=0), "RFF": RFF(NEGATIVES, seed=0)}
    refreshes = {}
    for name, sampler in samplers.items():
        sampler.build((num_classes, DIM))
        start = time.perf_counter()
        sampler.refresh(head)
        refreshes[name] = time.perf_counter() - start
    tasks = {name: tf.function(lambda s=s: s.sample(query, labels)) for name, s in samplers.items()}
    tasks["score all classes"] = tf.function(lambda: tf.matmul(query, table, transpose_b=True))
    tasks["draw from all kernels"] = tf.function(lambda: all_class_kernels(query, table))
    rounds = 15 if num_classes <= 100_000 else 5
    return in_turns(tasks, rounds=rounds), refreshes


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--queries", type=int, default=256)
    options = parser.parse_args()
    first, rows = None, []
    for num_classes in options.classes:
        seconds, refreshes = compare(num_classes, options.queries)
        first = first or seconds
        every = seconds["score all classes"]
        for name, each in seconds.items():
            growth = each / first[name]
            cells = [f"{num_classes:,}", name, each * 1e3, every / each, growth]
            rows.append([*cells, refreshes[name] * 1e3 if name in refreshes else ""])
    columns = ["classes", "what", "ms", "x scoring all", "x the first size", "refresh ms"]
    show(f"{NEGATIVES} draws for each of {options.queries} queries", rows, columns)


if __name__ == "__main__":
    main()
