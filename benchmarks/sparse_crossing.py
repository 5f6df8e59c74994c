"""Where a sparse head pays: quality and memory beside dense heads, on generated classes.

    python benchmarks/sparse_crossing.py --num-classes 400000 --seeds 0 1 2

A sparse head has K weights a class on E inputs, which a dense layer makes from D features. With two moments
of Adam and 32-bit indices it takes L (12 K + 4 K) + 12 D E bytes, where a dense head takes 12 D L. So it is
the smaller one where E < L (1 - 4K / 3D). "dense, narrow" is the cheaper choice: a dense head of fewer
features in the memory of the first sparse one. All train equally many steps, with the sampler behind the
comma, and NDCG@10 is that of held-out examples. MB counts the wide layer, too. Seconds are processor time
of the training. Finished runs are read from the output folder.
"""

import argparse
import math
import time
from functools import partial
from pathlib import Path

import numpy as np
import tensorflow as tf
from _planted import PlantedTruth, best_head
from _seeds import mean, once, spread
from _tables import add_results, keep, show

import tfxc
from tfxc._keras import keras

DIM, BATCH_SIZE, NUM_NEGATIVES, NOISE = 256, 512, 100, 3.0
SAMPLERS = {
    "MIDX": lambda counts: tfxc.samplers.MIDX(NUM_NEGATIVES, num_codewords=64),
    "Unigram": lambda counts: tfxc.samplers.Unigram(NUM_NEGATIVES, counts=counts),
    "searched": lambda counts: tfxc.samplers.SearchedHardNegatives(
        NUM_NEGATIVES // 5, 4 * NUM_NEGATIVES // 5
    ),
}
# By name: E and K, or the features of a dense head.
HEADS = {
    "dense": DIM,
    "dense, narrow": 48,
    "sparse, E = 4,096, K = 32": (4096, 32),
    "sparse, E = 4,096, K = 32, ReLU": (4096, 32),
    "sparse, E = 1,024, K = 32": (1024, 32),
    "sparse, E = 4,096, K = 64": (4096, 64),
}


def make_model(head, sampler, truth, num_steps, rate):
    """A compiled classifier: two dense layers, a wide one before a sparse head, and the head."""
    num_classes, counts = len(truth.vectors), num_steps * BATCH_SIZE * truth.frequencies
    layers = [keras.Input((DIM,)), keras.layers.Dense(4 * DIM, "gelu")]
    if isinstance(HEADS[head], tuple):
        width, fan_in = HEADS[head]
        activation = "relu" if "ReLU" in head else None
        layers += [
            keras.layers.Dense(DIM),
            keras.layers.Dense(width, activation, kernel_initializer="he_uniform"),
        ]
        last = tfxc.layers.UniformSparseHead(num_classes, fan_in, use_bias=True, seed=0)
    else:
        layers += [keras.layers.Dense(HEADS[head])]
        last = tfxc.layers.DenseHead(num_classes, use_bias=True)
    model = tfxc.ExtremeClassifier(keras.Sequential(layers), last, sampler=SAMPLERS[sampler](counts), k=10)
    rate = keras.optimizers.schedules.CosineDecay(rate, num_steps)
    metrics = [tfxc.metrics.NDCGAtK(10), tfxc.metrics.RecallAtK(10)]
    model.compile(tfxc.optimizers.LazyAdam(rate), loss=tfxc.losses.SoftmaxCrossentropy(), metrics=metrics)
    return model


def megabytes(model):
    """MB of the head, and of the wide layer before a sparse one, with two moments of what trains."""
    sparse = isinstance(model.head, tfxc.layers.UniformSparseHead)
    parts = [model.head, model.encoder.layers[-1]] if sparse else [model.head]
    weights = [weight for part in parts for weight in part.weights]
    trained = [weight for part in parts for weight in part.trainable_weights]
    return 4 * sum(math.prod(weight.shape) for weight in weights + 2 * trained) / 2**20


def train(head, sampler, num_classes, num_steps, rate, seed, folder):
    keras.utils.set_random_seed(seed)
    truth = PlantedTruth(num_classes, DIM, noise=NOISE)
    inputs, labels = truth.examples(5120, np.random.default_rng(0))
    held_out = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(BATCH_SIZE)
    model = make_model(head, sampler, truth, num_steps, rate)
    start = time.process_time()
    model.fit(truth.batches(BATCH_SIZE, (seed, 1)), epochs=10, steps_per_epoch=num_steps // 10, verbose=2)
    seconds = time.process_time() - start
    _, ndcg, recall = model.evaluate(held_out, verbose=0)
    return {"NDCG@10": ndcg, "Recall@10": recall, "MB": megabytes(model), "processor s": seconds}


def optimum(num_classes, folder):
    """NDCG@10 of the best ranking there is."""
    truth = PlantedTruth(num_classes, DIM, noise=NOISE)
    head, metric = best_head(truth), tfxc.metrics.NDCGAtK(10)
    inputs, labels = truth.examples(5120, np.random.default_rng(0))
    for start in range(0, len(inputs), BATCH_SIZE):
        own = slice(start, start + BATCH_SIZE)
        metric.update_state(labels[own], head.top_k(inputs[own], 10).ids)
    return float(metric.result())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--num-classes", type=int, default=400_000)
    add("--num-steps", type=int, default=5000)
    add("--learning-rate", type=float, default=3e-3, help="at the start; falls to 0 along a cosine")
    rows = [f"{head}, {sampler}" for head in HEADS for sampler in SAMPLERS]
    add("--rows", nargs="+", choices=rows, default=rows, metavar="NAME")
    add("--seeds", type=int, nargs="+", default=[0])
    add("--output", type=Path, default=Path("runs/sparse_crossing"), help="folder for finished runs")
    add_results(parser)
    args = parser.parse_args()
    options = [args.num_classes, args.num_steps, args.learning_rate]
    table = []
    for row in args.rows:
        head, sampler = row.rsplit(", ", 1)
        runs = []
        for seed in args.seeds:
            folder = args.output / f"seed-{seed}" / row
            runs.append(once(folder, options, partial(train, head, sampler, *options, seed)))
            keras.backend.clear_session()
            print(row, seed, runs[-1], flush=True)
        quality = [spread([own[name] for own in runs], "{:.3f}") for name in ("NDCG@10", "Recall@10")]
        table.append([row, *quality, *(f"{mean(runs, name):,.0f}" for name in ("MB", "processor s"))])
    best = once(args.output / "optimum", options[:1], partial(optimum, args.num_classes))
    title = f"{args.num_classes:,} classes, {len(args.seeds)} seed(s), NDCG@10 of the optimum {best:.3f}"
    show(title, table, ["head, sampler", "NDCG@10", "Recall@10", "MB", "processor s"])
    keep(args.results)


if __name__ == "__main__":
    main()
