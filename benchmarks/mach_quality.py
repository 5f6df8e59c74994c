"""Quality of MACH heads against their memory, compared with a dense head: a table, and a plot in the output.

    python benchmarks/mach_quality.py
    python benchmarks/mach_quality.py -- --data Delicious --epochs 12 --output runs/mach-delicious
    python benchmarks/mach_quality.py --sequences -- --data train.txt --test-data test.txt \\
        --format sessions --max-length 10 --batch-size 128 --epochs 2 --output runs/mach-diginetica

R repetitions have M = share · L / R buckets each, which take that share of the dense head's memory. Each
size is trained once; all decoders rank with its weights. Other ways to save memory: ``--dims`` adds
narrower dense heads, and ``--rowwise-adagrad``, for sequences, adds all of them in bfloat16 with an
optimizer that keeps one number a class. ``--apart``, for labels, adds MACH as in its paper: each repetition
trains an encoder of its own, whose memory counts beyond the first. The arguments after ``--`` go to
examples/extreme_classification.py or to examples/sequential_recommendation.py. The dense head of the latter
shares its table with the encoder, but is counted as if it had its own; it trains with a sampler, which at
equal quality takes a fraction of the time of all classes. An interrupted run resumes.
"""

import argparse
import itertools
import os
import statistics
import sys
from pathlib import Path

from _seeds import spread
from _tables import add_results, keep, show

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import extreme_classification  # noqa: E402
import mach_workers  # noqa: E402
import sequential_recommendation  # noqa: E402
from common.plots import pyplot  # noqa: E402
from mach_workers import decoded_by  # noqa: E402
from tensorflow import keras  # noqa: E402

import tfxc  # noqa: E402

DECODERS = {"mean": "-", "min": ":", "median": "--", "geometric": "-."}  # with their line styles in the plot
BYTES = 12  # a weight and its two moments in Adam


class Labels:  # that apply to a point
    metrics = {"P@1": (tfxc.metrics.PrecisionAtK, 1), "P@5": (tfxc.metrics.PrecisionAtK, 5)}

    def __init__(self, rest):
        self.rest = rest
        self.args = extreme_classification.parse_arguments(["--output", "runs/mach-tate", *rest])
        self.data = extreme_classification.load(self.args.data, hash_features=self.args.hash_features)
        self.test_set = tfxc.data.classification_dataset(self.data[1], 256, seed=None)

    def train(self, head):
        return extreme_classification.train_head(head, "full", self.data, self.args)[0]

    def train_apart(self):
        """MACH with an encoder for each repetition."""
        own = {"num-buckets": self.args.num_buckets, "seed": self.args.seed, "output": self.args.output}
        options = [*self.rest, *(f"--{name}={value}" for name, value in own.items())]
        ranges = [f"{repetition}-{repetition}" for repetition in range(self.args.num_repetitions)]
        for what in ["--repetitions", *ranges], ["--merge"]:
            mach_workers.run(mach_workers.parse_arguments([*options, *what]))
        return keras.models.load_model(os.path.join(self.args.output, "model.keras"))


class Sequences:  # and their next items
    metrics = {"Recall@10": (tfxc.metrics.RecallAtK, 10), "NDCG@10": (tfxc.metrics.NDCGAtK, 10)}

    def __init__(self, rest):
        self.args = sequential_recommendation.parse_arguments(["--output", "runs/mach-novels", *rest])
        self.split = sequential_recommendation.load_split(self.args)
        self.test_set = sequential_recommendation.batches(self.split, self.args)[2]

    def train(self, head):
        return sequential_recommendation.train({"dense": "midx-rq"}.get(head, head), self.split, self.args)[0]


def evaluated(model, decoder, problem):
    """Test results of a trained model by column and decoder; a MACH head decodes that way."""
    head = model.head
    if isinstance(head, tfxc.layers.MACHHead):
        head = decoded_by(decoder, head)
    other = tfxc.ExtremeClassifier(model.encoder, head)
    other.compile(loss=model.classification_loss, metrics=[kind(k) for kind, k in problem.metrics.values()])
    _, *results = other.evaluate(problem.test_set, verbose=0)
    return {(column, decoder): 100 * value for column, value in zip(problem.metrics, results, strict=True)}


def measure(problem, args):
    """Yields R (0: a dense head) and the head's name, and its memory "MB" and results."""
    folder, width = problem.args.output, problem.args.dim
    rates = [None] if args.rowwise_adagrad is None else [None, args.rowwise_adagrad]
    for problem.args.rowwise_adagrad, problem.args.dim in itertools.product(rates, (width, *args.dims)):
        small = problem.args.rowwise_adagrad is not None
        problem.args.table_dtype = "bfloat16" if small else "float32"
        name = "dense" if problem.args.dim == width else f"dense, D = {problem.args.dim}"
        name += ", bfloat16, RowwiseAdagrad" if small else ""
        problem.args.output = os.path.join(folder, name)
        model = problem.train("dense")
        num_classes, dim = model.head.num_classes, model.head.effective_dim
        num_bytes = num_classes * (2 * dim + 4 if small else dim * BYTES)
        yield (0, name), {"MB": num_bytes / 2**20, **evaluated(model, "mean", problem)}
    problem.args.dim, problem.args.table_dtype, problem.args.rowwise_adagrad = width, "float32", None
    buckets = problem.args.num_buckets, problem.args.num_repetitions
    for share, num_repetitions, apart in itertools.product(args.shares, args.repetitions, args.apart):
        num_buckets = round(share * num_classes / num_repetitions)
        problem.args.num_buckets, problem.args.num_repetitions = num_buckets, num_repetitions
        suffix = ", apart" if apart else ""
        problem.args.output = os.path.join(folder, f"{num_repetitions}x{num_buckets}{suffix}")
        model = problem.train_apart() if apart else problem.train("mach")
        num_encoders = num_repetitions if apart else 1
        weights = num_repetitions * num_buckets * (model.head.query_dim // num_encoders + 1)
        weights += model.encoder.count_params() * (num_encoders - 1) // num_encoders
        row = {"MB": weights * BYTES / 2**20}
        for decoder in DECODERS:
            row.update(evaluated(model, decoder, problem))
        yield (num_repetitions, f"MACH {num_repetitions} x {num_buckets:,}{suffix}"), row
    # Dense heads of other seeds lack these options: a run resumes with the options it was made with.
    problem.args.num_buckets, problem.args.num_repetitions = buckets


def table(problem, runs):
    """Shows all sizes, the dense head first: means and deviations over the seeds."""
    dense, *_ = map(means, runs.values())
    best, *others = itertools.product(problem.metrics, DECODERS)
    rows = []
    for (_, name), each in runs.items():
        row = means(each)
        cells = {key: spread([own[key] for own in each], "{:.1f}") if key in row else "" for key in others}
        memory = f"{row['MB']:.1f} ({row['MB'] / dense['MB']:.1%})"
        quality = f"{spread([own[best] for own in each], '{:.1f}')} ({row[best] / dense[best]:.1%})"
        rows.append([name, memory, quality, *cells.values()])
    columns = ["MB with slots (of dense)", f"{' '.join(best)} (of dense)", *map(" ".join, others)]
    num_seeds = len(next(iter(runs.values())))
    show(f"{Path(problem.args.data).name}: {num_seeds} seed(s)", rows, ["head", *columns])


def means(each):
    """The mean row of one size, from a row for each seed."""
    return {key: statistics.mean(row[key] for row in each) for key in each[0]}


def plot(column, sizes, path):
    """Quality against memory, both as shares of the dense head's."""
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    axes.axhline(1, color="black", linewidth=1)
    dense, *_ = sizes.values()
    for colour, num_repetitions in enumerate(sorted({repetitions for repetitions, _ in sizes})):
        rows = [row for (repetitions, _), row in sizes.items() if repetitions == num_repetitions]
        memory = [row["MB"] / dense["MB"] for row in rows]
        for decoder, line in DECODERS.items():
            if (column, decoder) not in rows[0]:
                continue
            shares = [row[column, decoder] / dense[column, "mean"] for row in rows]
            name = f"R = {num_repetitions}, {decoder}" if num_repetitions else "dense"
            axes.plot(memory, shares, line, marker=".", color=f"C{colour}", label=name)
    axes.set(xlabel="share of the dense head's memory", ylabel=f"share of the dense head's {column}")
    axes.set_xscale("log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", action="store_true", help="next items instead of labels")
    parser.add_argument("--shares", type=float, nargs="+", default=[1 / 8, 1 / 4, 1 / 2])
    parser.add_argument("--repetitions", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--dims", type=int, nargs="*", default=[], help="widths of more dense heads")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("rest", nargs="*", help="after --: arguments of the example")
    parser.add_argument(
        "--rowwise-adagrad", type=float, metavar="RATE", help="learning rate of dense heads of bfloat16"
    )
    parser.add_argument(
        "--apart",
        action="store_const",
        const=(False, True),
        default=(False,),
        help="also an encoder for each repetition",
    )
    add_results(parser)
    args = parser.parse_args()
    if any(args.apart) and args.sequences:
        parser.error("--apart trains labels, without --sequences.")
    if args.rowwise_adagrad is not None and not args.sequences:
        parser.error("--rowwise-adagrad needs --sequences.")
    problem, runs = (Sequences if args.sequences else Labels)(args.rest), {}
    folder = problem.args.output
    for problem.args.seed in args.seeds:
        problem.args.output = os.path.join(folder, f"seed-{problem.args.seed}")
        for size, row in measure(problem, args):
            runs.setdefault(size, []).append(row)
    sizes = {size: means(each) for size, each in runs.items()}
    table(problem, runs)
    plot(next(iter(problem.metrics)), sizes, os.path.join(folder, "quality_against_memory.png"))
    keep(args.results)


if __name__ == "__main__":
    main()
