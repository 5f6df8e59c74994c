"""Steps over parameter servers: bytes over loopback, memory of each process, exact loss against one process.

    python benchmarks/cluster_steps.py                                               # bytes a step
    python benchmarks/cluster_steps.py --classes 6000000 --setups 2:midx 0:midx      # 4.6 GB in two servers

A setup is a number of parameter servers, 0 for one process without a cluster, and a kind of negatives: either
"uniform" or "midx" from a head in shards, or "gather", uniform negatives whose rows stock tf.gather sends to
the worker. Labels follow Zipf's law; an input is a few waves of its label, so that frequent classes can be
learnt. Every setup measures the exact loss on the same 2048 examples. A model with sampled negatives in
shards is exported at the end, and the memory of the export counts. Where all processes share two cores, bytes
and memory are meaningful, seconds hardly.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import threading
import time
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

from _tables import add_results, keep, show  # noqa: E402
from cluster import loopback_bytes, serve  # noqa: E402
from common.processes import Cluster, die_with_parent  # noqa: E402

NUM_WAVES = 128
NUM_TESTS = 2048
KINDS = "uniform", "midx", "gather"
SETUPS = "1:uniform", "2:uniform", "2:midx", "2:gather"
COLUMNS = "setup", "steps/s", "MB a step", "x what must travel", "loss", "exact loss"
MEMORY_COLUMNS = "setup", "process", "resident MiB", "without code", "CPU s"


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--workers", type=int, default=2)
    add("--setups", nargs="+", type=setup, default=[*map(setup, SETUPS)], metavar="SERVERS:KIND")
    add("--classes", type=int, default=200_000)
    add("--dim", type=int, default=64)
    add("--batch-size", type=int, default=512)
    add("--num-negatives", type=int, default=100)
    add("--steps", type=int, default=200, help="of an epoch")
    add("--epochs", type=int, default=3, help="the first, with its traces, is not measured")
    add("--told", type=Path, help=argparse.SUPPRESS)  # where the coordinator writes its measurements
    add_results(parser)
    return parser.parse_args(argv)


def setup(text):
    """The number of servers and the kind of "2:midx"."""
    servers, _, kind = text.partition(":")
    if not servers.isdigit() or kind not in KINDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not SERVERS:KIND with a kind of {', '.join(KINDS)}")
    return int(servers), kind


def batches(args):
    """Endless batches, made in the process that reads them, with different labels in every process."""
    import tensorflow as tf

    examples = examples_of(args)
    return tf.data.Dataset.range(1 << 40).map(
        lambda _: examples(tf.random.uniform([args.batch_size], dtype=tf.float64))
    )


def tests(args):
    """The same batch again and again: the examples do not depend on the worker that evaluates them."""
    import tensorflow as tf

    labels = tf.random.stateless_uniform([NUM_TESTS], [1, 1], dtype=tf.float64)
    return tf.data.Dataset.from_tensors(examples_of(args)(labels)).repeat()


def examples_of(args):
    """A function of uniform numbers [n] in [0, 1) to inputs and labels."""
    import numpy as np
    import tensorflow as tf

    random = np.random.default_rng(0)
    frequency = random.uniform(0, 2 * np.pi, NUM_WAVES)
    phase = random.uniform(0, 2 * np.pi, NUM_WAVES)

    def examples(uniform):
        labels = tf.cast(tf.exp(uniform * np.log(args.classes)), tf.int64) - 1
        waves = tf.cast(labels, tf.float64)[:, tf.newaxis] * frequency + phase
        return tf.cast(tf.cos(waves), tf.float32), tf.cast(labels, tf.int32)

    return examples


def gather_head(num_classes):
    """A head that sends scored rows to the worker, as tf.gather of a sharded table does."""
    import tensorflow as tf

    import tfxc

    class GatherHead(tfxc.layers.DenseHead):
        candidates = tfxc.layers.Head.candidates  # by its scores

        def score(self, query, class_ids):
            rows = tf.nn.embedding_lookup(self.table, tf.reshape(class_ids, [-1]))
            rows = tf.reshape(rows, [*tf.unstack(tf.shape(class_ids)), query.shape[1]])
            return tf.einsum("nd,nsd->ns", query, rows)

    return GatherHead(num_classes)


def make_model(args, kind):
    from unittest import mock

    import tfxc
    from tfxc._keras import keras

    encoder = keras.Sequential([keras.Input((NUM_WAVES,)), keras.layers.Dense(args.dim)])
    head = gather_head(args.classes) if kind == "gather" else tfxc.layers.DenseHead(args.classes)
    sampler = tfxc.samplers.MIDX if kind == "midx" else tfxc.samplers.Uniform
    if kind == "gather":  # servers are asked for rows alone
        mock.patch("tfxc.model.classifier.place", lambda *parts: parts).start()
        mock.patch("tfxc.model.step.check_placed", lambda *parts: None).start()
    model = tfxc.ExtremeClassifier(encoder, head, sampler(args.num_negatives, seed=0))
    model.compile(tfxc.optimizers.LazyAdam(3e-3), loss=tfxc.losses.SoftmaxCrossentropy())
    return model


def coordinate(args, servers, kind):
    """Trains, and writes the measurements."""
    import contextlib

    import tensorflow as tf

    import tfxc

    scope = contextlib.nullcontext()
    if servers:
        scope = tfxc.cluster.strategy(tf.distribute.cluster_resolver.TFConfigClusterResolver()).scope()
    with scope:
        model = make_model(args, kind)
    data, rows = batches(args), []
    for epoch in range(args.epochs):
        start, sent = time.perf_counter(), loopback_bytes()
        fit = {"initial_epoch": epoch, "epochs": epoch + 1, "steps_per_epoch": args.steps, "verbose": 0}
        # An epoch of another length separates the cost of steps from that of an epoch, above all its refresh.
        history = model.fit(data, callbacks=[tfxc.callbacks.SamplerRefresh()], **fit).history
        rows.append((time.perf_counter() - start, loopback_bytes() - sent, history["loss"][-1]))
    short = max(args.steps // 5, 1)
    sent = loopback_bytes()
    model.fit(data, epochs=1, steps_per_epoch=short, verbose=0)
    sent = loopback_bytes() - sent
    ideal = 4 * (args.batch_size * args.dim + 2 * args.batch_size * args.num_negatives)
    per_step = (rows[-1][1] - sent) / max(args.steps - short, 1)
    exact = None  # nobody computes it for gathered rows
    if kind != "gather":
        exact = float(model.evaluate(tests(args), steps=1, verbose=0))
        model.export(str(args.told.parent / "served"))
    row = args.steps / rows[-1][0], per_step / 1e6, per_step / ideal, rows[-1][2], exact
    args.told.write_text(json.dumps(row), encoding="utf-8")


def watch(cluster, used, is_over):
    """Tracks each process: its peak resident MiB, the same without code, and CPU seconds so far."""
    while not is_over.wait(0.25):
        for task, pid in list(cluster.tasks().items()):
            try:
                text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
                stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
            except OSError:
                continue
            megabytes = [int(found) >> 10 for found in re.findall(r"(?:VmHWM|RssAnon):\s*(\d+)", text)]
            if not megabytes:
                continue  # the process is ending
            before = used.get(f"{task[0]} {task[1]}", {"resident": 0, "anonymous": 0})
            used[f"{task[0]} {task[1]}"] = {
                "resident": max(before["resident"], megabytes[0]),
                "anonymous": max(before["anonymous"], megabytes[1]),
                "cpu_seconds": sum(map(int, stat.rpartition(")")[2].split()[11:13]))
                / os.sysconf("SC_CLK_TCK"),
            }


def run(args, servers, kind):
    """One training; returns the measurements of its coordinator, and the resources of each process."""
    name, used = f"{servers}:{kind}", {}
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "told.json"
        options = ["--setups", name, "--told", str(told)]
        for option in ("classes", "dim", "batch_size", "num_negatives", "steps", "epochs"):
            options += [f"--{option.replace('_', '-')}", str(getattr(args, option))]
        cluster = Cluster([sys.executable, __file__, *options], args.workers if servers else 0, servers)
        is_over = threading.Event()
        threading.Thread(target=watch, args=(cluster, used, is_over), daemon=True).start()
        cluster.run()
        is_over.set()
        measured = json.loads(told.read_text(encoding="utf-8"))
    return [name, *measured], [[name, process, *of_process.values()] for process, of_process in used.items()]


def main():
    args = parse_arguments()
    if "TF_CONFIG" in os.environ:
        die_with_parent()
        task = json.loads(os.environ["TF_CONFIG"])["task"]
        serve() if task["type"] in ("worker", "ps") else coordinate(args, *args.setups[0])
        return
    rows, memory = [], []
    for servers, kind in args.setups:
        row, of_processes = run(args, servers, kind)
        rows.append(row)
        memory += of_processes
        print(dict(zip(COLUMNS, row, strict=True)), flush=True)
    show(
        f"{args.classes:,} classes, D = {args.dim}, B = {args.batch_size}, S = {args.num_negatives}",
        rows,
        COLUMNS,
    )
    show("Memory", memory, MEMORY_COLUMNS)
    keep(args.results)


if __name__ == "__main__":
    main()
