"""``tfxc.memory_report`` against the memory that training takes, for heads that need more than their table.

    python benchmarks/memory_report.py

Each model trains in a process of its own, where a small one has trained before, so that what TensorFlow takes
once does not count. The peak is that of the steps after the first two. The batch is small, since the report
leaves out what the encoder computes in between.
"""

import argparse

import numpy as np
from _measure import measured, reset_peak
from _tables import add_results, keep, show

import tfxc
from tfxc._keras import keras

BATCH, DIM = 8, 256


def sparse(num_classes):
    """A sparse head behind its wide layer: over all classes, with a quarter of the classes as inputs."""
    encoder = [keras.Input((DIM,)), keras.layers.Dense(16384, activation="relu")]
    head = tfxc.layers.UniformSparseHead(num_classes, fan_in=32, use_bias=True, seed=1)
    return keras.Sequential(encoder), head, None, tfxc.losses.SquaredHinge()


def mach(num_classes):
    encoder = keras.Sequential([keras.Input((DIM,)), keras.layers.Dense(DIM)])
    head = tfxc.layers.MACHHead(num_classes, num_buckets=num_classes // 50, num_repetitions=8, seed=1)
    return encoder, head, None, tfxc.losses.SoftmaxCrossentropy()


def encoded(num_classes):
    encoder = keras.Sequential([keras.Input((DIM,)), keras.layers.Dense(64)])
    items = keras.Sequential([keras.Input((128,)), keras.layers.Dense(64)])
    features = np.random.default_rng(0).standard_normal((num_classes, 128), np.float32)
    head = tfxc.layers.EncodedHead(items, features)
    return encoder, head, tfxc.samplers.Uniform(100, seed=1), tfxc.losses.SoftmaxCrossentropy()


def dense(num_classes):
    encoder = keras.Sequential([keras.Input((DIM,)), keras.layers.Dense(64)])
    head = tfxc.layers.DenseHead(num_classes, use_bias=True)
    return encoder, head, tfxc.samplers.MIDX(100, num_codewords=32, seed=1), tfxc.losses.SoftmaxCrossentropy()


class AfterTwoSteps(keras.callbacks.Callback):
    """Forgets the peak of the first steps, which build the model and an index."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            reset_peak()


def train(set_up_done, make, num_classes):
    """Trains a small model and then one of that size; returns the report of the latter."""
    x, y = np.random.default_rng(0).standard_normal((8 * BATCH, DIM), np.float32), np.arange(8 * BATCH)
    for size in (1000, num_classes):
        if size == num_classes:
            set_up_done()
        encoder, head, sampler, loss = make(size)
        model = tfxc.ExtremeClassifier(encoder, head, sampler=sampler)
        model.compile(tfxc.optimizers.LazyAdam(1e-3), loss=loss)
        report = tfxc.memory_report(model, batch_size=BATCH)
        model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[AfterTwoSteps()])
    return report._asdict() | {"peak": report.peak}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=1_000_000)
    add_results(parser)
    args = parser.parse_args()
    rows = []
    for make in (sparse, mach, encoded, dense):
        peak, report = measured(train, make, args.classes)
        parts = [report[name] / 2**20 for name in ("encoder", "tables", "indices", "slots", "step", "peak")]
        rows.append([make.__name__, *parts, peak, peak / parts[-1]])
    columns = ["head", "encoder", "tables", "indices", "slots", "step", "peak, reported", "peak, measured"]
    show(f"{args.classes:,} classes, MB", rows, [*columns, "measured by reported"])
    keep(args.results)


if __name__ == "__main__":
    main()
