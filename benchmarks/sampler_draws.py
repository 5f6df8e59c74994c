"""Time to draw 100 negatives for each of 256 queries, by every sampler, against the number of classes.

    python benchmarks/sampler_draws.py [--classes 10000 100000 1000000] [--proposals Sphere LSH] [--rounds 5]

The time is that of ``sample``, everything a training step needs of a sampler: the draws, the log of their
expected counts, and that of the positives. For comparison there are the scores of all classes without a draw,
and the same proposals as the code of papers computes them for a GPU, with a weight for every class and a draw
from the categorical distribution over all classes (queries in groups, so that no tensor exceeds 128 MB).
Class vectors are generated, D = 64. Ten million classes take 20 GB and 15 minutes without
SearchedHardNegatives, for whose index FAISS needs 90 s for each million classes.
"""

import argparse
import math
import time

import numpy as np
import tensorflow as tf
from _measure import in_turns
from _tables import add_results, keep, show

from tfxc import samplers
from tfxc._keras.weights import tf_variable
from tfxc.layers import DenseHead
from tfxc.samplers import Step

DIM, QUERIES, NEGATIVES, CODEWORDS = 64, 256, 100, 64
CALLS = 20  # calls of a sampler in a task: the time of a single call varies too much
LARGEST = 1 << 25  # numbers in a tensor over all classes
ALL = "all classes scored"

# By name, a function from the class counts to a sampler.
SAMPLERS = {
    "Uniform": lambda counts: samplers.Uniform(NEGATIVES),
    "LogUniform": lambda counts: samplers.LogUniform(NEGATIVES),
    "Unigram": lambda counts: samplers.Unigram(NEGATIVES, counts=counts),
    "InBatch": lambda counts: samplers.InBatch(NEGATIVES, counts=counts),
    "MIDX pq": lambda counts: samplers.MIDX(NEGATIVES, num_codewords=CODEWORDS, quantizer="pq", seed=0),
    "MIDX rq": lambda counts: samplers.MIDX(NEGATIVES, num_codewords=CODEWORDS, quantizer="rq", seed=0),
    "MIDX rq, learnable": lambda counts: samplers.LearnedMIDX(NEGATIVES, num_codewords=CODEWORDS, seed=0),
    "Sphere": lambda counts: samplers.Sphere(NEGATIVES, seed=0),
    "RFF": lambda counts: samplers.RFF(NEGATIVES, seed=0),
    "LSH": lambda counts: samplers.LSH(NEGATIVES, seed=0),
    "LSH, union": lambda counts: samplers.LSH(NEGATIVES, candidates="union", seed=0),
    "SearchedHardNegatives": lambda counts: samplers.SearchedHardNegatives(20, NEGATIVES - 20, seed=0),
}


def softmax(vectors):
    return lambda query: tf.matmul(query, vectors, transpose_b=True)


def clusters(vectors):
    """MIDX: the product with each class's two codewords, for all classes."""
    random = np.random.default_rng(1)
    books = [tf.constant(0.1 * random.normal(size=(CODEWORDS, DIM)), tf.float32) for _ in range(2)]
    codes = [tf.constant(random.integers(CODEWORDS, size=len(vectors)), tf.int32) for _ in range(2)]

    def log_weights(query):
        products = [tf.matmul(query, book, transpose_b=True) for book in books]
        return tf.add_n([tf.gather(u, code, axis=1) for u, code in zip(products, codes, strict=True)])

    return log_weights


def quadratic_kernel(vectors, alpha=100.0):
    """Sphere."""
    return lambda query: tf.math.log1p(alpha * tf.square(tf.matmul(query, vectors, transpose_b=True)))


def fourier_kernel(vectors, num_features=32, nu=4.0):
    """RFF, with the features of the classes in memory."""
    omega = tf.random.stateless_normal([DIM, num_features], [0, 0]) * math.sqrt(nu)

    def features(rows):
        angles = tf.matmul(tf.math.l2_normalize(rows, axis=1), omega)
        return tf.concat([tf.cos(angles), tf.sin(angles)], 1) / math.sqrt(num_features)

    stored = features(vectors)
    return lambda query: tf.math.log(tf.maximum(tf.matmul(features(query), stored, transpose_b=True), 1e-8))


def collisions(vectors, num_tables=16, num_bits=4, uniform=0.1):
    """LSH: the tables in which a class shares the query's bucket, weighed by the size of the bucket."""
    planes = tf.random.stateless_normal([DIM, num_tables * num_bits], [0, 0])
    powers = tf.constant([2**bit for bit in range(num_bits)], tf.int32)

    def hash_codes(rows):
        bits = tf.reshape(tf.matmul(rows, planes) > 0, [-1, num_tables, num_bits])
        return tf.reduce_sum(tf.cast(bits, tf.int32) * powers, 2)

    codes = tf.transpose(hash_codes(vectors))  # [T, L]
    sizes = [tf.math.bincount(row, minlength=2**num_bits) for row in codes]
    shares = [1 / tf.cast(tf.gather(size, row), tf.float32) for size, row in zip(sizes, codes, strict=True)]

    def log_weights(query):
        weights = tf.fill([tf.shape(query)[0], len(vectors)], uniform * num_tables / len(vectors))
        for table, own in enumerate(tf.unstack(hash_codes(query), axis=1)):
            weights += tf.where(own[:, tf.newaxis] == codes[table], shares[table], 0.0)
        return tf.math.log(weights)

    return log_weights


# By name, a function from class vectors to a function from queries to unnormalised log weights of all
# classes.
PEERS = {
    "softmax": softmax,
    "MIDX's cluster scores": clusters,
    "Sphere's kernel": quadratic_kernel,
    "RFF's kernel": fourier_kernel,
    "LSH's collisions": collisions,
}


def scoring_task(vectors, query):
    """Scores all classes for all queries, a block of classes at a time."""

    @tf.function
    def one(block):
        return tf.reduce_max(softmax(block)(query))

    blocks = [
        vectors[start : start + LARGEST // QUERIES] for start in range(0, len(vectors), LARGEST // QUERIES)
    ]
    return lambda: [float(one(block)) for block in blocks]


def drawing_task(log_weights, query, num_classes):
    """Weighs all classes for the queries, a group at a time, and draws."""
    num_groups = 1
    while num_groups < QUERIES and QUERIES // num_groups * num_classes > LARGEST:
        num_groups *= 2
    groups = tf.split(query, num_groups)

    @tf.function
    def one(group):
        logits = log_weights(group)
        ids = tf.random.stateless_categorical(logits, NEGATIVES, [0, 1], tf.int32)
        log_prob = tf.gather(logits, ids, batch_dims=1) - tf.reduce_logsumexp(logits, 1, keepdims=True)
        return tf.reduce_sum(log_prob)

    return lambda: [float(one(group)) for group in groups]


def refreshed_sampler(name, head):
    """A built and refreshed sampler of ``SAMPLERS``, and the seconds of the refresh."""
    sampler = SAMPLERS[name](np.random.default_rng(2).integers(1, 1000, head.num_classes).astype(float))
    sampler.build((head.num_classes, DIM))
    start = time.perf_counter()
    sampler.refresh(head)
    return sampler, time.perf_counter() - start


def repeated(answer, step):
    """``CALLS`` answers to a ``Step`` as one task; each is a nest of tensors or None."""
    traced = tf.function(lambda query, labels: answer(Step(query, labels)))

    def task():
        for _ in range(CALLS):
            for part in tf.nest.flatten(traced(step.query, step.labels)):
                _ = part if part is None else part.numpy()

    return task


def generated(num_classes):
    """A ``Step`` of queries and labels, and a head of generated class vectors."""
    random = np.random.default_rng(0)
    query = tf.constant(random.normal(size=(QUERIES, DIM)), tf.float32)
    labels = tf.constant(random.integers(num_classes, size=(QUERIES, 1)), tf.int32)
    head = DenseHead(num_classes)
    head.build((None, DIM))
    tf_variable(head.table).assign(tf.random.stateless_normal([num_classes, DIM], [0, 2], stddev=0.3))
    return Step(query, labels), head


def tasks_of(num_classes, names):
    """Every task at one number of classes, the divisor of its time, and the seconds of refreshes."""
    step, head = generated(num_classes)
    vectors = tf.identity(tf_variable(head.table))
    tasks = {ALL: scoring_task(vectors, step.query)}
    for name in filter(PEERS.get, names):
        tasks[name] = drawing_task(PEERS[name](vectors), step.query, num_classes)
    calls, refreshes = dict.fromkeys(tasks, 1), {}
    for name in filter(SAMPLERS.get, names):
        sampler, refreshes[name] = refreshed_sampler(name, head)
        calls[name], tasks[name] = CALLS, repeated(sampler.sample, step)
    return tasks, calls, refreshes


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    every = [*SAMPLERS, *PEERS]
    parser.add_argument("--proposals", nargs="+", choices=every, default=every, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5)
    add_results(parser)
    args = parser.parse_args()
    parts = {size: tasks_of(size, args.proposals) for size in args.classes}
    tasks = {(size, name): task for size, part in parts.items() for name, task in part[0].items()}
    seconds = in_turns(tasks, args.rounds, warmup=1)
    ms = {(size, name): 1e3 * time / parts[size][1][name] for (size, name), time in seconds.items()}
    sizes = [f"{size:,}" for size in args.classes]
    first, last = args.classes[0], args.classes[-1]
    rows = [
        [name, *(ms[size, name] for size in args.classes), ms[last, name] / ms[first, name]]
        + [parts[last][2].get(name, "")]
        for name in [*args.proposals, ALL]
    ]
    title = f"{NEGATIVES} draws for {QUERIES} queries, ms"
    show(title, rows, ["proposal", *sizes, "growth", f"refresh s at {last:,}"])
    rows = [[name, *(ms[size, ALL] / ms[size, name] for size in args.classes)] for name in args.proposals]
    show("Times faster than scoring all classes", rows, ["proposal", *sizes])
    keep(args.results)


if __name__ == "__main__":
    main()
