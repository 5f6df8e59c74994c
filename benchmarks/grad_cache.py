"""A large batch of two towers in the memory of a small one: ``GradCache`` against plain encoders.

    python benchmarks/grad_cache.py [--batch 8192] [--chunk 512]

Both towers read 32 words: a table, two blocks of a wide hidden layer for each word, and their mean. The
classes of a batch are each other's negatives (``InBatch``). Each model trains in a process of its own, where
a step of eight examples has gone before, and the memory is what later steps add. The row without hidden
layers tells which part of it the tables and the loss take.
"""

import argparse
import statistics
import time

import numpy as np
from _measure import measured
from _tables import add_results, keep, show

import tfxc
from tfxc._keras import keras

CLASSES, WORDS, LENGTH, DIM, HIDDEN = 100_000, 20_000, 32, 64, 256


def tower(num_blocks, chunk_size):
    words = keras.Input((LENGTH,), dtype="int32")
    vectors = keras.layers.Embedding(WORDS, DIM)(words)
    for _ in range(num_blocks):
        hidden = keras.layers.Dense(HIDDEN, activation="gelu")(keras.layers.LayerNormalization()(vectors))
        vectors += keras.layers.Dropout(0.1)(keras.layers.Dense(DIM)(hidden))
    pooled = keras.layers.GlobalAveragePooling1D()(vectors)
    encoder = keras.Model(words, keras.layers.Dense(DIM)(pooled))
    return tfxc.encoders.GradCache(encoder, chunk_size) if chunk_size else encoder


class Times(keras.callbacks.Callback):
    """Seconds of each step."""

    def on_train_begin(self, logs=None):
        self.seconds = []

    def on_train_batch_begin(self, batch, logs=None):
        self.start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.seconds.append(time.perf_counter() - self.start)


def train(set_up_done, batch_size, chunk_size, num_blocks):
    """The mean seconds of the last two of three steps."""
    random, times = np.random.default_rng(0), Times()
    features = random.integers(0, WORDS, (CLASSES, LENGTH), np.int32)
    model = tfxc.ExtremeClassifier(
        tower(num_blocks, chunk_size),
        tfxc.layers.EncodedHead(tower(num_blocks, chunk_size), features),
        tfxc.samplers.InBatch(),
    )
    model.compile(tfxc.optimizers.LazyAdam(1e-3), loss=tfxc.losses.SoftmaxCrossentropy())
    x, y = random.integers(0, WORDS, (3 * batch_size, LENGTH), np.int32), np.arange(3 * batch_size)
    model.fit(x[:8], y[:8], verbose=0)
    set_up_done()
    model.fit(x, y, batch_size=batch_size, verbose=0, callbacks=[times])
    return statistics.mean(times.seconds[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--chunk", type=int, default=512)
    add_results(parser)
    args = parser.parse_args()
    cases = {
        f"{args.chunk:,}": (args.chunk, None, 2),
        f"{args.batch:,}": (args.batch, None, 2),
        f"{args.batch:,} in chunks of {args.chunk:,}": (args.batch, args.chunk, 2),
        f"{args.batch:,} without hidden layers": (args.batch, args.chunk, 0),
    }
    rows = []
    for name, case in cases.items():
        peak, seconds = measured(train, *case)
        rows.append([name, peak, seconds, 1000 * seconds / case[0]])
    show("A step of two towers", rows, ["batch", "peak MB", "s", "ms per example"])
    keep(args.results)


if __name__ == "__main__":
    main()
