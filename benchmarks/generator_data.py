"""A training step with data from a Python generator, with and without free memory returned at once.

    python benchmarks/generator_data.py [--classes 1000000]

Under Python 3.11 TensorFlow, once it reads a generator, has the C library return free memory to the system.
A callback sets the usual limits again after the first batch. Every figure is of a process of its own; they
take turns.
"""

import argparse
import ctypes
import json
import resource
import subprocess
import sys
import time

import numpy as np
from _tables import add_results, keep, show

DIM, BATCH, NEGATIVES, CODEWORDS, STEPS = 64, 512, 100, 64, 150
KINDS = {
    "tensors": "tensors",
    "a generator, memory returned at once": "generator",
    "a generator": "generator with limits",
}
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # as in malloc.h


def measure(num_classes, kind):
    """Prints milliseconds and page faults of a step."""
    import tensorflow as tf

    import tfxc
    from tfxc._keras import keras

    random = np.random.default_rng(0)
    x = random.normal(size=(64, BATCH, DIM)).astype(np.float32)
    y = random.integers(0, num_classes, (64, BATCH)).astype(np.int32)

    def batches():
        for step in range(10**9):
            yield x[step % 64], y[step % 64]

    data = batches() if kind.startswith("generator") else tf.data.Dataset.from_tensor_slices((x, y)).repeat()
    model = tfxc.ExtremeClassifier(
        keras.Sequential([keras.Input((DIM,)), keras.layers.Dense(DIM)]),
        tfxc.layers.DenseHead(num_classes),
        tfxc.samplers.MIDX(NEGATIVES, num_codewords=CODEWORDS, seed=0),
    )
    model.compile(tfxc.optimizers.LazyAdam(1e-3), loss=tfxc.losses.SoftmaxCrossentropy())
    times, faults = [], []

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 0 and kind == "generator with limits":
                libc = ctypes.CDLL(None)
                libc.mallopt(MMAP_THRESHOLD, 32 << 20)
                libc.mallopt(TRIM_THRESHOLD, 64 << 20)
            times.append(time.perf_counter())
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)

    callbacks = [tfxc.callbacks.SamplerRefresh(every=10 * STEPS), Clock()]
    model.fit(data, steps_per_epoch=STEPS, verbose=0, callbacks=callbacks)
    steady = slice(STEPS // 3, None)
    milliseconds = float(np.median(np.diff(times[steady]))) * 1e3
    print(json.dumps([milliseconds, float(np.median(np.diff(faults[steady])))]))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--classes", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", choices=tuple(KINDS.values()), help=argparse.SUPPRESS)
    add_results(parser)
    args = parser.parse_args()
    if args.measure:
        measure(args.classes, args.measure)
        return
    found = {name: [] for name in KINDS}
    for _ in range(args.rounds):
        for name, kind in KINDS.items():
            command = [sys.executable, __file__, "--classes", str(args.classes), "--measure", kind]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
            found[name].append(json.loads(done.stdout))
    medians = {name: np.median(rows, axis=0).tolist() for name, rows in found.items()}
    rows = [[name, *own, own[0] / medians["a generator"][0]] for name, own in medians.items()]
    show(f"A step of {args.classes:,} classes", rows, ["data from", "ms", "page faults", "times the last"])
    keep(args.results)


if __name__ == "__main__":
    main()
