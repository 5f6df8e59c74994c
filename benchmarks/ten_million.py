"""The life of a model of ten million classes beside one of a million: seconds and peak memory of each part.

    python benchmarks/ten_million.py [--classes 1000000 10000000] [--steps 20000] [--epochs 2]

Classes and examples are generated as in ``_planted.py``, D = 64, an encoder of two dense layers, MIDX's
negatives. The model first learns from so many steps of 512 examples, so that class vectors are those of a
trained model: long where classes are frequent. What follows is measured, in one process a model: epochs of
582 steps by plain ``fit``, with the refreshes of MIDX and without them, evaluation and prediction, a
checkpoint written and read, an int8 index tuned to a recall and exported. Another process, which cannot
import tfxc, loads the export and asks. Memory is what the process holds at most, table and slots with it;
processor seconds are of all threads.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from _measure import reset_peak, status
from _planted import PlantedTruth
from _tables import add_results, keep, show

DIM, BATCH, STEPS, K = 64, 512, 582, 10
NEGATIVES, CODEWORDS = 100, 128
RECALL, TUNED_TO = 0.95, 0.955  # a little more, as recall is measured with other queries
TUNED, MEASURED, ASKED = 1024, 1024, 200


class Parts:
    """Seconds, processor seconds and peak GB of parts of a process, by name."""

    def __init__(self):
        self.found = {}

    def __call__(self, name, task):
        reset_peak()
        wall, processor = time.perf_counter(), time.process_time()
        answer = task()
        seconds = time.perf_counter() - wall, time.process_time() - processor
        self.found[name] = [*seconds, status("VmHWM") / 1e6]
        print(f"{name}: {self.found[name]}", file=sys.stderr, flush=True)
        return answer


def make_model(num_classes, num_steps):
    """A compiled model, and what it learns from at first."""
    import tfxc
    from tfxc._keras import keras

    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(4 * DIM, "gelu"), keras.layers.Dense(DIM)]
    encoder = keras.Sequential([keras.Input((DIM,), name="x"), *layers])
    sampler = tfxc.samplers.MIDX(NEGATIVES, num_codewords=CODEWORDS)
    model = tfxc.ExtremeClassifier(encoder, tfxc.layers.DenseHead(num_classes), sampler=sampler, k=K)
    rate = keras.optimizers.schedules.CosineDecay(0.01, num_steps, alpha=0.05)
    model.compile(tfxc.optimizers.LazyAdam(rate), loss=tfxc.losses.SoftmaxCrossentropy())
    return model


def life(num_classes, num_steps, num_epochs, folder):
    """Prints the parts of a model's life, and facts about it."""
    import tensorflow as tf

    import tfxc

    truth, random = PlantedTruth(num_classes, DIM), np.random.default_rng(1)
    x, y = truth.examples(STEPS * BATCH, random)
    held_x, held_y = truth.examples(10 * BATCH, random)
    model = make_model(num_classes, num_steps)
    model.fit(truth.batches(BATCH, 0), steps_per_epoch=num_steps // 10, epochs=10, verbose=0)
    del truth
    part, facts = Parts(), {}
    options = tf.data.Options()
    options.autotune.enabled = False  # its thread would let the end of fit wait, with or without refreshes
    examples = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).prefetch(2).with_options(options)
    epochs = {"x": examples, "epochs": num_epochs, "verbose": 0}
    never = tfxc.callbacks.SamplerRefresh(every=10**9)
    model.fit(examples.take(8), verbose=0, callbacks=[never])  # traces
    part("fit, without a refresh", lambda: model.fit(**epochs, callbacks=[never]))
    history = part(f"fit, {num_epochs} epochs", lambda: model.fit(**epochs)).history
    facts["refreshes of MIDX, s"] = float(np.sum(history["sampler/refresh_seconds"]))
    part("without a refresh, again", lambda: model.fit(**epochs, callbacks=[never]))
    part("evaluate 5,120", lambda: model.evaluate(held_x, held_y, batch_size=BATCH, verbose=0))
    part("predict 5,120", lambda: model.predict(held_x, batch_size=BATCH, verbose=0))
    checkpoint = tf.train.Checkpoint(model=model)
    path = part("write a checkpoint", lambda: checkpoint.write(str(folder / "checkpoint")))
    part("read it", lambda: checkpoint.read(path).assert_existing_objects_matched())
    queries, index = model.queries(held_x), tfxc.search.InvertedIndex(dtype="int8")
    part("tune an index", lambda: index.tune(model.head, queries[:TUNED], K, TUNED_TO))
    part("export with it", lambda: model.export(folder / "served", index=index))
    facts["recall of other queries"] = index.recall(model.head, queries[TUNED : TUNED + MEASURED], K)
    facts.update({"cells": index.num_cells, "scanned": index.num_scanned, "probes": index.num_probes})
    again = part("rebuild the index", lambda: index.rebuilt(model.head))
    facts["recall, rebuilt"] = again.recall(model.head, queries[TUNED : TUNED + MEASURED], K)
    facts["table, GB"] = 4e-9 * num_classes * DIM
    np.save(folder / "asked.npy", held_x[-ASKED:])
    print(json.dumps([part.found, facts]))


def serve(folder):
    """Prints the parts of serving an export."""
    sys.modules["tfxc"] = None
    import tensorflow as tf

    part, asked, seconds = Parts(), np.load(folder / "asked.npy"), []
    loaded = part("load the export", lambda: tf.saved_model.load(str(folder / "served")))

    def ask():
        for query in np.split(asked, len(asked)):
            start = time.perf_counter()
            loaded.serve(tf.constant(query))
            seconds.append(1e3 * (time.perf_counter() - start))

    part(f"{len(asked)} single queries", ask)
    late = seconds[len(seconds) // 4 :]
    p50, p99 = np.percentile(late, [50, 99])
    print(json.dumps([part.found, {"one query, p50, ms": float(p50), "one query, p99, ms": float(p99)}]))


def printed(*arguments):
    """What a process of this script prints at its end."""
    done = subprocess.run(
        [sys.executable, __file__, *arguments], check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--steps", type=int, default=20_000, help="of training before what is measured")
    parser.add_argument("--epochs", type=int, default=2, help="of fit, that are measured")
    add_results(parser)
    parser.add_argument("--life", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.life:
        life(args.classes[0], args.steps, args.epochs, args.life)
        return
    if args.serve:
        serve(args.serve)
        return
    parts, facts = {}, {}
    for num_classes in args.classes:
        with tempfile.TemporaryDirectory() as folder:
            own = [f"--classes={num_classes}", f"--steps={args.steps}", f"--epochs={args.epochs}"]
            for found, more in (printed("--life", folder, *own), printed("--serve", folder)):
                for rows, new in ((parts, found), (facts, more)):
                    for name, figures in new.items():
                        rows.setdefault(name, []).append(figures)
    columns = [
        f"{num_classes:,}: {unit}" for num_classes in args.classes for unit in ("s", "processor s", "GB")
    ]
    show("The life of a model", [[name, *sum(own, [])] for name, own in parts.items()], ["", *columns])
    show("Facts", [[name, *own] for name, own in facts.items()], ["", *(f"{c:,}" for c in args.classes)])
    keep(args.results)


if __name__ == "__main__":
    main()
