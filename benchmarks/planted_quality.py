"""Every sampler on data with a known best ranking: the share of its quality against training time.

A run is a sampler and its number of steps of 512 examples, for example ``midx-rq:20000``. In addition to the
samplers of the examples there are ``searched`` (hard negatives from an index behind training) and ``mach``
(buckets). An interrupted run resumes. Time is processor time over all cores, which other programs disturb
less than clock time, of the seed that they disturbed least; a plot of these seeds is in the folder of
--output.

    python benchmarks/planted_quality.py --num-classes 1000000 --output runs/planted --seeds 0 1 2 \\
        --runs full:2000 midx-rq:2000 midx-rq:20000 uniform:20000
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
from _planted import PlantedTruth, best_head
from _seeds import spread
from _tables import add_results, keep, show

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from common.plots import plot  # noqa: E402
from common.quality_sample import QualitySample, spread_batches  # noqa: E402
from common.sampler_choice import SAMPLERS, Settings  # noqa: E402
from common.training_log import TrainingLog  # noqa: E402

import tfxc  # noqa: E402
from tfxc._keras import keras  # noqa: E402

DIM, BATCH_SIZE, NUM_EPOCHS = 64, 512, 10
NUM_NEGATIVES, NUM_CODEWORDS = 100, 128
OPTIONS = "num_classes", "learning_rate", "num_buckets", "num_held_out"  # which change the figures
MORE_SAMPLERS = {
    "searched": lambda s: tfxc.samplers.SearchedHardNegatives(s.num_negatives // 5, 4 * s.num_negatives // 5)
}
RUNS = "full:2000", "midx-rq:2000", "midx-rq:20000", "uniform:20000"


def parse_run(text):
    """Name and steps of "midx-rq:20000"."""
    name, _, num_steps = text.partition(":")
    if name not in (*SAMPLERS, *MORE_SAMPLERS, "mach") or not num_steps.isdecimal() or int(num_steps) < 10:
        names = ", ".join([*SAMPLERS, *MORE_SAMPLERS, "mach"])
        raise argparse.ArgumentTypeError(f"{text!r} is no SAMPLER:STEPS, of at least 10 steps and {names}")
    return name, int(num_steps)


def make_model(name, truth, num_steps, seed, args):
    """A compiled classifier: two dense layers and a head."""
    keras.utils.set_random_seed(seed)
    num_classes = len(truth.vectors)
    expected_counts = num_steps * BATCH_SIZE * truth.frequencies
    settings = Settings(NUM_NEGATIVES, NUM_CODEWORDS, expected_counts)
    if name == "mach":
        head, sampler = tfxc.layers.MACHHead(num_classes, args.num_buckets, 8, seed=seed), None
    else:
        head = tfxc.layers.DenseHead(num_classes, use_bias=True)
        sampler = {**SAMPLERS, **MORE_SAMPLERS}[name](settings)
    layers = [keras.layers.Dense(4 * DIM, "gelu"), keras.layers.Dense(DIM)]
    model = tfxc.ExtremeClassifier(
        keras.Sequential([keras.Input((DIM,)), *layers]), head=head, sampler=sampler, k=10
    )
    rate = keras.optimizers.schedules.CosineDecay(args.learning_rate, num_steps)
    model.compile(
        tfxc.optimizers.LazyAdam(rate),
        loss=tfxc.losses.SoftmaxCrossentropy(),
        metrics=[tfxc.metrics.NDCGAtK(10), tfxc.metrics.RecallAtK(10)],
    )
    return model


def train(name, num_steps, truth, held_out, seed, args):
    """Trains to the end, or resumes; returns the rows of the log and the quality on the held-out examples."""
    model = make_model(name, truth, num_steps, seed, args)
    steps = num_steps // NUM_EPOCHS
    log = TrainingLog(
        Path(args.output) / f"seed-{seed}" / f"{name}-{num_steps}",
        model,
        patience=NUM_EPOCHS,
        sample=QualitySample(model, held_out, tfxc.metrics.NDCGAtK(10)),
        num_steps=steps,
        verbose=2,
        options={name: getattr(args, name) for name in OPTIONS},
    )
    done = log.resume()
    log.fit(truth.batches(BATCH_SIZE, (seed, 1, done)), held_out, NUM_EPOCHS, steps_per_epoch=steps)
    return log.rows, model.evaluate(held_out, return_dict=True, verbose=0)


def quality_of(head, batches):
    """NDCG@10 of a head's own ranking of examples."""
    metric = tfxc.metrics.NDCGAtK(10)
    for x, y in batches:
        metric.update_state(y, head.top_k(x, 10).ids)
    return float(metric.result())


def curve(rows):
    """A run's measurements on its sample, ten an epoch."""
    return [point for row in rows for point in row["curve"]]


def early_quality(logs, least_disturbed, seconds):
    """The sample of each seed after the steps that the least disturbed seed made in so many seconds."""
    count = sum(point["processor_seconds"] <= seconds for point in curve(least_disturbed))
    return [curve(rows)[count - 1]["quality"] for rows in logs] if count else []


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--num-classes", type=int, default=1_000_000)
    add("--runs", type=parse_run, nargs="+", default=[parse_run(run) for run in RUNS], metavar="NAME:STEPS")
    add("--learning-rate", type=float, default=5e-3, help="at the start; falls to 0 along a cosine")
    add("--num-buckets", type=int, default=8192, help="mach: buckets of each of 8 repetitions")
    add("--num-held-out", type=int, default=10_240, help="examples that quality is measured of")
    add("--seeds", type=int, nargs="+", default=[0])
    add("--output", default="runs/planted", help="folder for checkpoints and the picture")
    add_results(parser)
    args = parser.parse_args()
    truth = PlantedTruth(args.num_classes, DIM)
    inputs, labels = truth.examples(args.num_held_out, np.random.default_rng(0))
    held_out = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(BATCH_SIZE)
    best = best_head(truth)
    optimum, optimum_of_sample = (quality_of(best, own) for own in (held_out, spread_batches(held_out)))
    del best
    logs, results = {}, {}  # for each run: a log and a result of each seed
    for seed in args.seeds:
        print(f"\nSeed {seed}")
        for name, num_steps in args.runs:
            run = f"{name}, {num_steps:,} steps"
            rows, result = train(name, num_steps, truth, held_out, seed, args)
            logs.setdefault(run, []).append(rows)
            results.setdefault(run, []).append(result)
    seconds = lambda rows: rows[-1]["processor_seconds"]  # noqa: E731
    timed = {run: min(own, key=seconds) for run, own in logs.items()}
    full = [seconds(rows) for run, rows in timed.items() if run.startswith("full")]
    table = []
    for run, rows in timed.items():
        ndcg = np.array([result["ndcg_at_10"] for result in results[run]])
        recall = np.array([result["recall_at_10"] for result in results[run]])
        early = np.array(early_quality(logs[run], rows, full[0] / 10) if full else [])
        shares = [ndcg, ndcg / optimum, recall, early / optimum_of_sample]
        table.append([run, seconds(rows), *(spread(own, "{:.3f}") if len(own) else "" for own in shares)])
    early_column = "of the optimum after a tenth of full's time"  # measured on a sample, like its optimum
    columns = ["run", "processor s", "NDCG@10", "of the optimum", "Recall@10", early_column]
    title = f"{args.num_classes:,} classes, {len(args.seeds)} seed(s), NDCG@10 of the optimum {optimum:.4f}"
    show(title, table, columns)
    picture = str(Path(args.output) / "planted.png")
    plot(timed, picture, label="NDCG@10 on held-out examples", clock="processor_seconds")
    keep(args.results)


if __name__ == "__main__":
    main()
