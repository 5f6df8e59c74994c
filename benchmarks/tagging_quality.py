"""Heads and negatives of tfxc against label trees, on the same TF-IDF features: precision, time and memory.

    pip install -e ".[bench]"
    python benchmarks/tagging_quality.py --seeds 0 1 2
    python benchmarks/tagging_quality.py --pecos-python pecos/bin/python
    python benchmarks/tagging_quality.py --data Delicious -- --epochs 12
    python benchmarks/tagging_quality.py --compare negatives -- --label-texts
    python benchmarks/tagging_quality.py --compare sweeps
    python benchmarks/tagging_quality.py --compare memory

Omikuji's Parabel has its defaults, Bonsai the setting of its documentation; their times include reading the
training file. PECOS' XR-Linear has its defaults and needs a Python of its own (see ``_pecos.py``). The
arguments after ``--`` go to examples/extreme_classification.py, which trains the heads, each in a process of
its own, or with negatives as in ASTRA's tables, in this process, where training waits for searches. They do
not override the options of a row (see HEADS: "dense, fast" always has 6 epochs). Finished results are read
from the output folder. Processor seconds are those of all cores; other programs disturb them less than clock
time. Peak memory is that of training and prediction, without the data.
"""

import argparse
import functools
import itertools
import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import scipy.sparse
from _measure import measured
from _seeds import once, spread
from _tables import add_results, keep, show

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import extreme_classification as example  # noqa: E402
from common.classification_data import BUNDLED, first, load  # noqa: E402

import tfxc  # noqa: E402
from tfxc._keras import keras  # noqa: E402
from tfxc.mining import background_search, hard_negative_mining  # noqa: E402
from tfxc.mining.background_search import BackgroundSearch  # noqa: E402

K = 5
NUM_VALIDATED = 1000  # test points after each epoch; all of them count at the end
loaded = functools.cache(lambda data, texts=False, most=0: load(data, texts, max_points=most))
OMIKUJI = {
    "Omikuji Parabel": {},
    "Omikuji Bonsai": {"cluster_balanced": False, "cluster_k": 100, "max_depth": 3},
}
PECOS = "PECOS XR-Linear"
MEMORY = "head MB, with Adam"
FAST = ("--dim", "256", "--batch-size", "256", "--learning-rate", "5e-3", "--epochs", "6")
SPARSE = ("--heads", "sparse")
GROUPED = (*SPARSE, "--group-size")
HEADS = {
    "dense": ("--heads", "dense"),
    "dense, squared hinge": ("--heads", "dense", "--loss", "squared-hinge"),
    "dense, fast": ("--heads", "dense", *FAST),
    "sparse": SPARSE,
    "sparse, squared hinge": (*SPARSE, "--loss", "squared-hinge"),
    "sparse, static": (*SPARSE, "--evolve", "0"),
    "sparse, groups of 4": (*GROUPED, "4", "--label-order", "together"),
    "sparse, groups of 16": (*GROUPED, "16", "--label-order", "together"),
    "sparse, groups of 16 at random": (*GROUPED, "16", "--label-order", "random"),
    "sparse, direct": ("--heads", "sparse-direct"),
    "sparse, narrow": (*SPARSE, "--num-inputs", "800"),
    "sparse, narrow, ReLU": (*SPARSE, "--num-inputs", "800", "--wide-activation", "relu"),
    "dense, narrow": ("--heads", "dense", "--dim", "76"),
    # For Delicious, which has an eighth of Tate's labels.
    "sparse, 98 inputs": (*SPARSE, "--num-inputs", "98"),
    "sparse, 98 inputs, ReLU": (*SPARSE, "--num-inputs", "98", "--wide-activation", "relu"),
    "dense, as small": ("--heads", "dense", "--dim", "75"),
    "MACH, a quarter": ("--heads", "mach"),
}
MINED = ("--heads", "dense", "--dim", "128", "--batch-size", "256", "--learning-rate", "5e-3")
MINED = (*MINED, "--epochs", "8", "--start-epoch", "2", "--refresh-every", "2")
NEGATIVES = {
    "random": "uniform",
    "random by frequency": "unigram",
    "labels: hard": "label-hard",
    "labels: hard and random": "label-astra",
    "labels: curriculum": "label-curriculum",
    "classes: hard": "hard",
    "classes: hard and random": "astra",
    "classes: curriculum": "curriculum",
    "classes, up to date": "up-to-date",
}
NEGATIVES = {name: ("--samplers", sampler) for name, sampler in NEGATIVES.items()}
MIXED = "classes: hard and random"
DECAYED = {
    f"{MIXED}, weight decay {decay}": (*NEGATIVES[MIXED], "--weight-decay", decay) for decay in ("0.1", "1")
}
BEHIND = ("--heads", "sparse", "--dim", "256", "--num-inputs", "2048", "--epochs", "10", "--start-epoch", "3")
BEHIND = (*BEHIND, "--batch-size", "128", "--learning-rate", "3e-3")
ON_SPARSE = {
    f"sparse, {activation}, {negatives}": (*BEHIND, "--wide-activation", activation, "--negatives", negatives)
    for activation, negatives in itertools.product(("linear", "relu"), ("random", "astra"))
}
SWEPT = {"--num-hard": (2, 16, 32), "--start-epoch": (4, 6), "--refresh-every": (1, 4)}
SWEEPS = {"as in the table above": ("--samplers", "astra")}
for option, values in SWEPT.items():
    SWEEPS |= {f"{option} {value}": ("--samplers", "astra", option, str(value)) for value in values}


def train_omikuji(set_up_done, data, settings, folder):
    import omikuji

    train, test, _ = loaded(data)
    path = folder / "train.txt"
    tfxc.data.write_extreme_classification(path, train)
    parameters = omikuji.Model.default_hyper_param()
    for name, value in settings.items():
        setattr(parameters, name, value)
    set_up_done()
    start, processor = time.perf_counter(), time.process_time()
    model = omikuji.Model.train_on_data(str(path), parameters)
    result = {
        "seconds": time.perf_counter() - start,
        "processor_seconds": time.process_time() - processor,
    }
    path.unlink()
    model.init_prediction_thread_pool(1)
    ids = np.full((len(test), K), -1, np.int32)
    for row in range(len(test)):
        features = test.features[row]
        pairs = zip(features.indices.tolist(), features.data.tolist(), strict=True)
        best = model.predict(list(pairs), top_k=K)
        ids[row, : len(best)] = [label for label, _ in best]
    return {**result, **scores(train, test, ids)}


def train_pecos(python, data, folder):
    train, test, _ = loaded(data)
    for name, matrix in (("features", train.features), ("labels", train.labels), ("test", test.features)):
        scipy.sparse.save_npz(folder / f"{name}.npz", scipy.sparse.csr_matrix(matrix))
    script = Path(__file__).with_name("_pecos.py")
    subprocess.run([python, str(script), str(folder), str(K)], check=True)
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return {**result, **scores(train, test, np.load(folder / "ids.npy"))}


def train_head(set_up_done, options, folder):
    args = example.parse_arguments([*options, "--output", str(folder), "--verbose", "2"])
    train, test, names = example.ordered(loaded(args.data, args.label_texts, args.max_points), args)
    set_up_done()
    data = train, first(test, NUM_VALIDATED), names
    model, _, result = example.train_head(args.heads[0], args.samplers[0], data, args)
    ids = model.predict(tfxc.data.classification_dataset(test, 256, seed=None), verbose=0)["ids"]
    own = {name: result[name] for name in ("seconds", "processor_seconds", "head_mb")}
    return {**own, **scores(train, test, ids)}


class Waited(BackgroundSearch):
    """A search that training waits for: how old a table is depends on no other program of the machine."""

    def __init__(self, *args):
        super().__init__(*args)
        self.wait()


def train_mined(options, folder):
    """As ``train_head``, in this process."""
    keras.backend.clear_session()
    with (
        mock.patch.object(hard_negative_mining, "BackgroundSearch", Waited),
        mock.patch.object(background_search, "lower_priority"),
    ):
        return train_head(lambda: None, options, folder)


def scores(train, test, ids):
    """Precision, nDCG and propensity-scored precision of predicted ids [N, K], -1 where there is none."""
    width = np.diff(test.labels.indptr).max()
    labels = np.full((len(test), width), -1, np.int32)
    for row in range(len(test)):
        own = test.labels[row].indices
        labels[row, : len(own)] = own
    chances = tfxc.metrics.propensities(train.label_counts(), len(train))
    metrics = {f"P@{k}": tfxc.metrics.PrecisionAtK(k, average="all") for k in (1, 3, K)}
    metrics[f"nDCG@{K}"] = tfxc.metrics.NDCGAtK(K, average="all")
    metrics |= {f"PSP@{k}": tfxc.metrics.PSPAtK(k, chances) for k in (1, K)}
    for metric in metrics.values():
        metric.update_state(labels, ids)
    return {name: float(metric.result()) for name, metric in metrics.items()}


def in_process(task, *arguments):
    """The result of a task in a process of its own, with its memory."""
    peak, result = measured(task, *arguments)
    return {"peak": peak, **result}


def measure(args, ours):
    """The results of each model by name, one for each seed."""
    runs, output, data = {}, args.output / args.data.name, str(args.data)
    if args.compare == "heads" and not args.without_peers:
        for name, settings in OMIKUJI.items():
            train = partial(in_process, train_omikuji, args.data, settings)
            runs[name] = [once(output / name, [data, settings], train)]
        if args.pecos_python:
            runs[PECOS] = [once(output / PECOS, [data], partial(train_pecos, args.pecos_python, args.data))]
    for seed in args.seeds:
        for name in args.rows or ours:
            task, common = (partial(in_process, train_head), ()) if ours is HEADS else (train_mined, MINED)
            options = ["--data", data, "--seed", str(seed), *common, *args.rest, *ours[name]]
            train = partial(task, options)
            runs.setdefault(name, []).append(once(output / f"seed-{seed}" / name, options, train))
    return runs


def memory(args, ours):
    """Rows with the MB of each head, its wide layer and their slots; the models need no training for that."""
    for name in args.rows or ours:
        arguments = example.parse_arguments(["--data", str(args.data), *args.rest, *ours[name]])
        train, _, names = example.ordered(loaded(arguments.data), arguments)
        model = example.make_model(arguments.heads[0], "full", train, names, 1, arguments)
        yield [name, f"{example.head_megabytes(model):.1f}"]


def metrics_of(runs):
    return [name for name in next(iter(runs.values()))[0] if "@" in name]


def columns_of(runs):
    """The headings of ``rows_of``."""
    return ["model", *metrics_of(runs), "s", "processor s", "peak MB", MEMORY]


def rows_of(runs):
    columns = metrics_of(runs)
    for name, each in runs.items():
        quality = [spread([100 * run[column] for run in each], "{:.1f}") for column in columns]
        means = {key: np.mean([run[key] for run in each]) for key in each[0]}
        head = f"{means['head_mb']:.1f}" if "head_mb" in means else ""
        times = [f"{means[key]:.0f}" for key in ("seconds", "processor_seconds")]
        yield [name, *quality, *times, f"{means['peak']:,.0f}" if "peak" in means else "", head]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--data", type=Path, default=BUNDLED, help="folder with train.txt and test.txt")
    add("--compare", choices=("heads", "negatives", "sweeps", "memory"), default="heads")
    add("--rows", nargs="+", metavar="NAME", help="only these heads or negatives")
    add("--seeds", type=int, nargs="+", default=[0])
    add("--without-peers", action="store_true", help="without Omikuji")
    add("--pecos-python", metavar="FILE", help="a Python with libpecos: PECOS, too")
    add("--output", type=Path, default=Path("runs/tagging"), help="folder; one in it for each data set")
    add("rest", nargs="*", help="after --: arguments of the example")
    add_results(parser)
    args = parser.parse_args()
    ours = {"negatives": NEGATIVES, "sweeps": SWEEPS}.get(args.compare, HEADS)
    if ours is NEGATIVES and args.rows:
        ours = {**NEGATIVES, **DECAYED, **ON_SPARSE}
    if unknown := sorted(set(args.rows or ()) - set(ours)):
        parser.error(f"--rows has {unknown}; there are {list(ours)}")
    if args.compare == "memory":
        show(f"{args.data.name}: memory", list(memory(args, ours)), ["model", MEMORY])
    else:
        runs = measure(args, ours)
        title = f"{args.data.name}: {args.compare}, {len(args.seeds)} seed(s)"
        show(title, list(rows_of(runs)), columns_of(runs))
    keep(args.results)


if __name__ == "__main__":
    main()
