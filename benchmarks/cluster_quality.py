"""Next items by workers and servers, compared with one process: are they as good after equal epochs?

    python benchmarks/cluster_quality.py --data diginetica.txt --test-data diginetica-test.txt

Without arguments it uses the words of the bundled novels. The model, its data and their shuffling are those
of examples/cluster.py, in one process and in a cluster. Each saves a checkpoint, which one process reads and
evaluates: on the last click of each test session, or on every word of the held-out pages. The seed is that of
the draws; initial weights and the order of the data differ from run to run.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

import cluster  # noqa: E402
from _tables import add_results, keep, show  # noqa: E402
from common.processes import Cluster, die_with_parent  # noqa: E402

COLUMNS = "processes", "seed", "NDCG@10", "Recall@10", "exact loss", "train s"
SUMMARY = "processes", "NDCG@10", "Recall@10", "NDCG of one process"
ALONE = "one"


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, help="sessions to train on, a line each, oldest first; default: the novels")
    add("--test-data", type=Path, help="later sessions")
    add("--sessions", type=int, default=40_000, help="to train on: the last so many")
    add("--min-count", type=int, default=1, help="novels: rarer words are left out")
    add("--workers", type=int, default=2)
    add("--servers", type=int, default=2)
    add("--seeds", type=int, nargs="+", default=[0, 1])
    add("--epochs", type=int, default=3)
    add("--batch-size", type=int, default=128, help="sessions")
    add("--max-length", type=int, default=10)
    add("--dim", type=int, default=64)
    add("--num-negatives", type=int, default=100)
    add("--num-codewords", type=int, default=32)
    add("--learning-rate", type=float, default=3e-3)
    add("--told", type=Path, help=argparse.SUPPRESS)  # where the coordinator writes its measurements
    add_results(parser)
    return parser.parse_args(argv)


def load(args):
    """The split sequences, and the test batches. Classes are those of all training sessions."""
    import numpy as np

    from tfxc import data

    if args.data is None:
        split = cluster.load(args)
        return split, data.sequence_training_dataset(
            split.test, args.max_length, 64, windows="all", seed=None
        )
    sessions = data.read_sessions(str(args.data))
    usable = np.flatnonzero(sessions.lengths >= 2)
    test = data.read_sessions(str(args.test_data), vocabulary=sessions.vocabulary)
    test = test.select(test.lengths >= 2)
    split = data.Split(sessions.select(usable[-args.sessions :]), test, test)
    return split, data.sequence_evaluation_dataset(test, args.max_length, 256)


def coordinate(args, servers, seed):
    """Trains, and writes the measurements."""
    import contextlib

    import tensorflow as tf

    import tfxc

    scope = contextlib.nullcontext()
    if servers:  # before any dataset: joining the cluster renames the device of this process
        scope = tfxc.cluster.strategy(tf.distribute.cluster_resolver.TFConfigClusterResolver()).scope()
    (split, tests), folder = load(args), args.told.parent / "checkpoints"
    num_classes = split.train.num_classes
    with scope:
        model = cluster.make_model(num_classes, args, seed)
    once = tfxc.data.sequence_training_dataset(
        split.train, args.max_length, args.batch_size, windows="all", seed=None
    )
    steps = int(once.cardinality())
    start = time.perf_counter()
    model.fit(
        cluster.training_batches(split, args),
        epochs=args.epochs,
        steps_per_epoch=steps,
        callbacks=[tfxc.callbacks.SamplerRefresh()],
        verbose=0,
    )
    seconds = time.perf_counter() - start
    tfxc.cluster.Checkpoint(model, folder).save(args.epochs)
    alone = cluster.make_model(num_classes, args, seed)
    tfxc.cluster.Checkpoint(alone, folder).restore()
    metrics = [tfxc.metrics.NDCGAtK(10), tfxc.metrics.RecallAtK(10)]
    alone.compile(tfxc.optimizers.LazyAdam(), loss=tfxc.losses.SoftmaxCrossentropy(), metrics=metrics)
    loss, ndcg, recall = alone.evaluate(tests, verbose=0)
    told = ndcg, recall, loss, seconds, num_classes, len(split.train), len(split.test), steps
    args.told.write_text(json.dumps(told), encoding="utf-8")


def run(workers, servers, seed):
    """One training; returns the measurements of its coordinator."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "told.json"
        # argparse takes the last value of an option that is given twice.
        own = ["--workers", workers, "--servers", servers, "--seeds", seed, "--told", told]
        Cluster([sys.executable, __file__, *sys.argv[1:], *map(str, own)], workers, servers).run()
        return json.loads(told.read_text(encoding="utf-8"))


def main():
    args = parse_arguments()
    if "TF_CONFIG" in os.environ:
        die_with_parent()
        task = json.loads(os.environ["TF_CONFIG"])["task"]
        cluster.serve() if task["type"] in ("worker", "ps") else coordinate(args, args.servers, args.seeds[0])
        return
    several = f"{args.workers} workers, {args.servers} servers"
    rows = []
    for seed in args.seeds:
        for name, workers, servers in ((ALONE, 0, 0), (several, args.workers, args.servers)):
            *measured, num_classes, num_sequences, num_tests, steps = run(workers, servers, seed)
            rows.append([name, seed, *measured])
            print(dict(zip(COLUMNS, rows[-1], strict=True)), flush=True)
    name = "novels" if args.data is None else args.data.stem
    title = (
        f"{name}: {num_sequences:,} sequences, {num_classes:,} classes, {args.epochs} epochs of {steps:,} "
        f"steps; {num_tests:,} tests"
    )
    show(title, rows, COLUMNS)
    means = {
        name: [sum(row[place] for row in rows if row[0] == name) / len(args.seeds) for place in (2, 3)]
        for name in (ALONE, several)
    }
    summary = [[name, *mean, f"{mean[0] / means[ALONE][0]:.1%}"] for name, mean in means.items()]
    show(f"Means of {len(args.seeds)} seeds", summary, SUMMARY)
    keep(args.results)


if __name__ == "__main__":
    main()
