"""What samplers, miners and an index see of a trained sparse head, linear or ReLU layer in front: tables.

    python benchmarks/sparse_index.py --data tate
    python benchmarks/sparse_index.py -- --num-inputs 2048 --epochs 2

The arguments after ``--`` go to examples/extreme_classification.py, which trains a sparse head over all
classes. Then come, on test points and against the logits of the head itself: the divergence of each sampler's
proposal from the softmax; the share of the ten best classes among the best by inner products of projected
queries and class vectors; and the time of an index, and of a training step with and without what it costs to
follow the queries.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from _measure import in_turns
from _tables import add_results, keep, show

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import extreme_classification as example  # noqa: E402
from common.classification_data import BUNDLED  # noqa: E402

import tfxc  # noqa: E402

NUM_QUERIES, NUM_DRAWS, K = 512, 64, 10


def trained(activation, data, args):
    """A model with a sparse head, trained over all classes."""
    args.wide_activation, args.output = activation, f"{args.output}-{activation}"
    return example.train_head("sparse", "full", data, args)[0]


def samplers(train):
    counts = train.label_counts()
    return {
        "uniform": tfxc.samplers.Uniform(NUM_DRAWS),
        "counts": tfxc.samplers.Unigram(NUM_DRAWS, counts=counts),
        "MIDX, C = 32": tfxc.samplers.MIDX(NUM_DRAWS, num_codewords=32, seed=1),
        "MIDX, C = 64": tfxc.samplers.MIDX(NUM_DRAWS, num_codewords=64, seed=1),
        "Sphere": tfxc.samplers.Sphere(NUM_DRAWS, seed=1),
        "RFF": tfxc.samplers.RFF(NUM_DRAWS, seed=1),
        "LSH": tfxc.samplers.LSH(NUM_DRAWS, seed=1),
    }


def proposals(model, train, queries):
    """Rows: a sampler, KL(softmax, Q), effective sample size, seconds of a refresh."""
    head, seen = model.head, queries_of(model, train)
    for name, sampler in samplers(train).items():
        sampler.build((head.num_classes, head.effective_dim))
        for start in range(0, len(seen), 128):  # as training steps would
            query = head.effective_query(seen[start : start + 128])
            nothing = tf.zeros([len(query), 0], tf.int32)
            sampler.sample(tfxc.samplers.Step(query, nothing, approximate=head.approximate))
        start = time.perf_counter()
        sampler.refresh(head)
        seconds = time.perf_counter() - start
        found = [[], []]
        for start in range(0, NUM_QUERIES, 64):
            part = slice(start, start + 64)
            nothing = tf.zeros([64, 0], tf.int32)
            quality = tfxc.samplers.proposal_quality(sampler, head, queries[part], nothing)
            for own, values in zip(found, quality[:2], strict=True):
                own.extend(values.numpy())
        yield [name, *map(np.mean, found), seconds]


def queries_of(model, points, size=NUM_QUERIES * 4):
    batches = tfxc.data.classification_dataset(points, 256, seed=0).take(size // 256)
    return tf.concat([model.queries(inputs) for inputs, _ in batches], 0)


def recalls(model, queries):
    """Rows: how many are taken by inner products, and the share of the ten best among them."""
    head = model.head
    best = head.top_k(queries, K).ids.numpy()
    logits = tf.matmul(
        head.effective_query(queries), head.class_vectors(0, head.num_classes), transpose_b=True
    )
    for taken in (K, 2 * K, 4 * K):
        found = tf.math.top_k(logits, taken).indices.numpy()
        yield [taken, np.mean([np.isin(own, others).mean() for own, others in zip(best, found, strict=True)])]


def times(model, queries):
    """Rows: a training step of the head with uniform draws, and what of it follows the queries, in ms."""
    head, loss = model.head, tfxc.losses.BinaryCrossentropy()
    sampler = tfxc.samplers.Uniform(NUM_DRAWS, seed=1)
    queries, labels = queries[:128], tf.zeros([128, 1], tf.int32)
    follow = tf.function(lambda: head.observe(queries))

    def eight(function):
        """One of eight steps in a row takes in its queries."""
        return lambda: [function() for _ in range(8)]

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            value = tfxc.head_loss(head, loss, queries, labels, sampler)
        return tape.gradient(value, [head.kernel.value])

    tasks = {"a step of the head, B = 128": eight(step), "of it, to follow the queries": eight(follow)}
    return [[name, 1e3 * seconds / 8] for name, seconds in in_turns(tasks, rounds=21).items()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=BUNDLED, help="folder with train.txt and test.txt")
    parser.add_argument("rest", nargs="*", help="after --: arguments of the example")
    add_results(parser)
    args = parser.parse_args()
    options = ["--data", str(args.data), "--epochs", "3", "--output", "runs/sparse-index", *args.rest]
    for activation in ("linear", "relu"):
        own = example.parse_arguments(options)
        data = example.load(own.data)
        model = trained(activation, data, own)
        train, test, _ = data
        model.head.prepare_index()
        queries = queries_of(model, test, NUM_QUERIES)
        title = f"{args.data.name}, E = {own.num_inputs:,}, {activation} wide layer"
        columns = ["sampler", "KL(softmax, Q)", "effective draws of 64", "s a refresh"]
        show(f"{title}: proposals", list(proposals(model, train, queries)), columns)
        show(f"{title}: search by projections", list(recalls(model, queries)), ["taken", "recall@10"])
        show(f"{title}: times", times(model, queries), ["", "ms"])
    keep(args.results)


if __name__ == "__main__":
    main()
