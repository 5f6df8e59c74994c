"""Hard negatives from an index at a million classes: the step, the epoch, and the place of the table.

    python benchmarks/hard_negatives.py [--classes 1000000] [--examples 1000000] [--epochs 6]

The data are generated: classes in clusters of 100, an example near its class. One dense layer makes the query
(D = 64, B = 512); an example has 50 hard and 400 uniform negatives; the loss is the binary cross-entropy. The
first two epochs of a run are plain, the third collects queries, and a search runs behind the next ones.
"""

import argparse
import os
import tempfile
import time

import numpy as np
import tensorflow as tf
from _measure import in_turns, status
from _tables import add_results, keep, show

import tfxc
from tfxc._keras import keras
from tfxc.mining.hard_negative_table import HardNegativeTable

DIM, BATCH, HARD, UNIFORM, CLUSTER = 64, 512, 50, 400, 100


def generated(num_classes, num_examples):
    """Examples [N, D] near the planted vectors of their classes [N]."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(-(-num_classes // CLUSTER), DIM)).astype(np.float32)
    classes = np.repeat(centres, CLUSTER, axis=0)[:num_classes]
    classes += 0.5 * rng.standard_normal(classes.shape, np.float32)
    labels = rng.integers(0, num_classes, num_examples)
    return classes[labels] + 0.3 * rng.standard_normal((num_examples, DIM), np.float32), labels


def model_of(num_classes, sampler):
    bias = keras.initializers.Constant(-float(np.log(num_classes)))
    model = tfxc.ExtremeClassifier(
        keras.Sequential([keras.Input((DIM,)), keras.layers.Dense(DIM)]),
        head=tfxc.layers.DenseHead(num_classes, use_bias=True, bias_initializer=bias),
        sampler=sampler,
    )
    model.compile(tfxc.optimizers.LazyAdam(1e-3), loss=tfxc.losses.BinaryCrossentropy())
    return model


def random_table(folder, num_classes, num_examples, sampler):
    """A table of whole clusters, like that of a trained model."""
    shape = num_examples, sampler.num_retrieved
    table = HardNegativeTable(folder, shape, sampler.query_dim, num_classes)
    rng, sizes = np.random.default_rng(1), np.diff([*range(0, num_examples, 1 << 16), num_examples])
    firsts = (rng.integers(0, num_classes - sampler.num_retrieved, (size, 1)) for size in sizes)
    table.write((first + np.arange(sampler.num_retrieved) for first in firsts), epoch=0)
    table.swap(0)
    return table


def step_of(model, num_classes, num_examples):
    """One step of ``fit`` on one batch."""
    rng = np.random.default_rng(2)
    x = {
        "x": rng.normal(size=(BATCH, DIM)).astype(np.float32),
        "example_ids": rng.integers(0, num_examples, BATCH),
    }
    y = rng.integers(0, num_classes, BATCH)
    data = iter(tf.data.Dataset.from_tensors((x, y)).repeat())
    model.make_train_function()
    return lambda: float(model.train_function(data)["loss"])


def steps(num_classes, num_examples, folder):
    samplers = {
        "all classes": None,
        f"{HARD + UNIFORM} uniform": tfxc.samplers.Uniform(HARD + UNIFORM),
        f"{HARD} hard, {UNIFORM} uniform": tfxc.samplers.HardNegatives(HARD, UNIFORM),
    }
    tasks = {}
    for name, sampler in samplers.items():
        model = model_of(num_classes, sampler)
        if isinstance(sampler, tfxc.samplers.HardNegatives):
            sampler.table = random_table(folder, num_classes, num_examples, sampler)
        step = step_of(model, num_classes, num_examples)
        tasks[name] = step if sampler is None else lambda step=step: [step() for _ in range(10)]
    seconds = in_turns(tasks, rounds=5)
    rows = []
    for name, time_of in seconds.items():
        own = time_of if name == "all classes" else time_of / 10
        rows.append([name, own * 1e3, seconds["all classes"] / own])
    show(f"One fit step at {num_classes:,} classes, binary cross-entropy", rows, ["negatives", "ms", "speed"])


def memory(num_classes, num_examples, folder):
    """Reads every row of a table, and measures where its memory lies."""
    sampler = tfxc.samplers.HardNegatives(HARD, UNIFORM)
    sampler.build((num_classes, DIM + 1))
    table = random_table(folder, num_classes, num_examples, sampler)
    before = status("RssAnon"), status("RssFile")
    for start in range(0, num_examples, BATCH):
        table.rows(np.arange(start, min(start + BATCH, num_examples)))
    grown = [
        (status(field) - start) / 1024 for field, start in zip(("RssAnon", "RssFile"), before, strict=True)
    ]
    size = sum(entry.stat().st_size for entry in os.scandir(folder)) / 2**20
    columns = ["table on disk MB", "own memory MB", "file pages the system may drop MB"]
    show(
        f"The table of {num_examples:,} examples, all rows read",
        [[round(n) for n in (size, *grown)]],
        columns,
    )


class Epochs(keras.callbacks.Callback):
    """Seconds of each epoch, by the work in the background."""

    def __init__(self, mining):
        super().__init__()
        self.mining, self.rows = mining, []

    def on_epoch_begin(self, epoch, logs=None):
        searching = self.mining._search is not None
        collecting = self.mining._table.collecting is not None
        self.kind = "search" if searching else "collect" if collecting else "plain"
        self.start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        seconds = time.perf_counter() - self.start
        self.rows.append([epoch, self.kind, seconds, logs["mining/recall"], logs["mining/search_seconds"]])
        print(*self.rows[-1], flush=True)


def epochs(num_classes, num_examples, num_epochs, folder):
    x, y = generated(num_classes, num_examples)
    model = model_of(num_classes, tfxc.samplers.HardNegatives(HARD, UNIFORM, seed=0))
    mining = tfxc.callbacks.HardNegativeMining(folder, num_examples, start_epoch=4)
    timed = Epochs(mining)
    x = tfxc.data.with_example_ids(x)
    model.fit(x, y, batch_size=BATCH, epochs=num_epochs, callbacks=[mining, timed], verbose=0)
    kinds = {}
    for _, kind, seconds, *_ in timed.rows[1:]:  # without the first, plain epoch, which traces
        kinds.setdefault(kind, []).append(seconds)
    means = {kind: float(np.mean(values)) for kind, values in kinds.items()}
    rows = [[kind, len(kinds[kind]), mean, mean / means["plain"]] for kind, mean in means.items()]
    show(
        f"Epochs of {num_examples:,} examples",
        rows,
        ["behind the epoch", "epochs", "mean seconds", "x plain"],
    )
    print(f"\nrecall of the last search {timed.rows[-1][3]:.3f}, {timed.rows[-1][4]:.0f} s at low priority")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=1_000_000)
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--epochs", type=int, default=6)
    add_results(parser)
    args = parser.parse_args()
    size = {"classes": f"{args.classes:,}", "examples": f"{args.examples:,}"}
    show("Size", [*size.items()], ["", "value"])
    for measure in (steps, memory):
        with tempfile.TemporaryDirectory() as folder:
            measure(args.classes, args.examples, folder)
    with tempfile.TemporaryDirectory() as folder:
        epochs(args.classes, args.examples, args.epochs, folder)
    keep(args.results)


if __name__ == "__main__":
    main()
