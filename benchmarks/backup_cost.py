"""The cost of backups in training: steps with a backup every 1,000 against steps without, 1,000,000 x 64
classes.

    python benchmarks/backup_cost.py
    python benchmarks/backup_cost.py --classes 100000 --steps 4000

The two take turns, so that a busy moment of the machine hits both.
"""

import argparse
import tempfile
import time

import numpy as np
import tensorflow as tf
from _tables import add_results, keep, show

import tfxc
from tfxc._keras import keras

DIM, BATCH = 64, 512


class Seconds(keras.callbacks.Callback):
    """Seconds from the end of the first step to the end of the last, without the waits around them."""

    def on_train_batch_end(self, batch, logs=None):
        self.last = time.perf_counter()
        if batch == 0:
            self.first = self.last


def measure(model, data, save_freq):
    clock = Seconds()
    with tempfile.TemporaryDirectory() as folder:
        backup = [] if save_freq is None else [tfxc.callbacks.BackupAndRestore(folder, save_freq)]
        refresh = tfxc.callbacks.SamplerRefresh(1 << 30)
        model.fit(data, callbacks=[clock, refresh, *backup], verbose=0)
    return clock.last - clock.first


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--classes", type=int, default=1_000_000)
    parser.add_argument(
        "--steps", type=int, default=4500, help="of a training; the last backup is behind them"
    )
    parser.add_argument("--save-freq", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    add_results(parser)
    given = parser.parse_args()
    encoder = keras.Sequential([keras.Input((32,)), keras.layers.Dense(DIM)])
    head = tfxc.layers.DenseHead(given.classes)
    model = tfxc.ExtremeClassifier(encoder, head, tfxc.samplers.MIDX(100))
    model.compile(tfxc.optimizers.LazyAdam(1e-3), loss=tfxc.losses.SoftmaxCrossentropy())
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH * 100, 32)).astype(np.float32)
    y = rng.integers(0, given.classes, len(x)).astype(np.int32)

    parts = tf.constant(x), tf.constant(y)

    def batch(rows):
        return tuple(tf.gather(part, rows % len(x)) for part in parts)

    data = tfxc.data.row_batches(BATCH * given.steps, BATCH, batch, seed=0)
    measure(model, data.take(50), None)
    seconds: dict = {None: [], given.save_freq: []}
    for _ in range(given.rounds):
        for save_freq, found in seconds.items():
            found.append(measure(model, data, save_freq))
    without, with_backups = (float(np.median(found)) for found in seconds.values())
    rows = [
        ["without backups", without / given.steps * 1e3, 1.0],
        [
            f"one every {given.save_freq:,} steps",
            with_backups / given.steps * 1e3,
            f"{with_backups / without:.3f}",
        ],
    ]
    title = f"A step of {BATCH} on {given.classes:,} x {DIM}"
    show(title, rows, ["BackupAndRestore", "ms a step", "ratio"])
    keep(given.results)


if __name__ == "__main__":
    main()
