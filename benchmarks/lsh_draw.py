"""Time to draw with LSH as the number of classes grows, compared with scoring every class.

    python benchmarks/lsh_draw.py [--sizes 10000 100000 1000000] [--negatives 100]

There are 256 queries of D = 64, and T = 16 tables of 4 bits. The peers are the same draws in TensorFlow ops,
and the logits of all classes, which a draw from the softmax needs.
"""

import argparse

import numpy as np
import tensorflow as tf
from _measure import in_turns
from _tables import add_results, keep, show

from tfxc._keras.weights import tf_variable
from tfxc.layers import DenseHead
from tfxc.ops.library import stock_ops
from tfxc.samplers import LSH, Step

DIM, QUERIES, BLOCK = 64, 256, 1 << 18
VARIANTS = {
    "draws": {},
    "draws by label": {"query": "label"},
    "union": {"candidates": "union"},
    "draws, DWTA": {"family": "dwta"},
}


def head_of(num_classes, scale=1.0):
    """A head with random vectors, most of them around a thousand centres."""
    random = np.random.default_rng(0)
    head = DenseHead(num_classes)
    head.build((None, DIM))
    centres = random.standard_normal((1000, DIM), np.float32)
    for start in range(0, num_classes, BLOCK):  # ten million classes are not held twice
        noise = random.standard_normal((min(BLOCK, num_classes - start), DIM), np.float32)
        rows = scale * (centres[random.integers(1000, size=len(noise))] + noise)
        tf_variable(head.table)[start : start + len(noise)].assign(rows)
    return head


def sampler_of(head, negatives, **options):
    sampler = LSH(negatives, seed=0, **options)
    sampler.build((head.num_classes, DIM))
    sampler.refresh(head)
    return sampler


def drawing(sampler, query, labels, stock=False):
    def draw():
        if not stock:
            return sampler.sample(Step(query, labels))
        with stock_ops():
            return sampler.sample(Step(query, labels))

    traced = tf.function(draw).get_concrete_function()
    return lambda: [part.numpy() for part in traced()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--negatives", type=int, default=100)
    add_results(parser)
    args = parser.parse_args()
    random, tasks = np.random.default_rng(1), {}
    for size in args.sizes:
        head = head_of(size)
        query = tf.constant(random.normal(size=(QUERIES, DIM)).astype(np.float32))
        labels = tf.constant(random.integers(size, size=(QUERIES, 1)), tf.int32)
        for name, options in VARIANTS.items():
            sampler = sampler_of(head, args.negatives, **options)
            tasks[name, size] = drawing(sampler, query, labels)
            if name == "draws":
                tasks["draws in TensorFlow ops", size] = drawing(sampler, query, labels, stock=True)
        table = tf_variable(head.table)
        logits = tf.function(lambda query=query, table=table: tf.matmul(query, table, transpose_b=True))
        tasks["logits of all classes", size] = lambda logits=logits: logits().shape
    medians = in_turns(tasks, rounds=31, warmup=5)
    rows = []
    for name in dict.fromkeys(name for name, _ in tasks):
        times = [medians[name, size] * 1e3 for size in args.sizes]
        rows.append([name, *times, times[-1] / times[0]])
    columns = [*(f"ms at {size:,}" for size in args.sizes), "last / first"]
    show(f"{args.negatives} negatives for {QUERIES} queries", rows, ["", *columns])
    keep(args.results)


if __name__ == "__main__":
    main()
