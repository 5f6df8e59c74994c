"""The heads of tfxc beside Omikuji's label trees, on the same TF-IDF features: precision, time and memory.

    pip install -e ".[bench]"
    python benchmarks/omikuji_peers.py --seeds 0 1
    python benchmarks/omikuji_peers.py -- --data Delicious --output runs/delicious
    python benchmarks/omikuji_peers.py --only-heads -- --heads sparse --evolve 0 --output runs/static

Parabel is Omikuji's default, Bonsai the setting its documentation gives. Whatever follows ``--`` goes to
examples/extreme_classification.py, which trains the heads, each in a process of its own.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from _measure import peak_memory
from _tables import add_results, keep, show

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import extreme_classification  # noqa: E402

import tfxc  # noqa: E402

RANKS = extreme_classification.RANKS
BONSAI = {"cluster_balanced": False, "cluster_k": 100, "max_depth": 3}
PEERS = {"Omikuji Parabel": {}, "Omikuji Bonsai": BONSAI}


def train_omikuji(set_up_done, data, settings, folder):
    """Trains one forest and writes its result to ``folder/result.json``."""
    import omikuji

    train, test, _ = extreme_classification.load(Path(data))
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "train.txt")
    tfxc.data.write_extreme_classification(path, train)
    parameters = omikuji.Model.default_hyper_param()
    for name, value in settings.items():
        setattr(parameters, name, value)
    set_up_done()
    start = time.perf_counter()
    model = omikuji.Model.train_on_data(path, parameters)
    result = {"seconds": time.perf_counter() - start}
    os.remove(path)
    model.init_prediction_thread_pool(1)
    ids = np.full((len(test), max(RANKS)), -1, np.int32)
    for row in range(len(test)):
        features = test.features[row]
        pairs = zip(features.indices.tolist(), features.data.tolist(), strict=True)
        best = model.predict(list(pairs), top_k=max(RANKS))
        ids[row, : len(best)] = [label for label, _ in best]
    result.update(precisions(test, ids))
    Path(folder, "result.json").write_text(json.dumps(result), encoding="utf-8")


def precisions(test, ids):
    """P@k of predicted ids [N, 5], -1 where there is none."""
    width = np.diff(test.labels.indptr).max()
    labels = np.full((len(test), width), -1, np.int32)
    for row in range(len(test)):
        own = test.labels[row].indices
        labels[row, : len(own)] = own
    metrics = {f"precision_at_{k}": tfxc.metrics.PrecisionAtK(k, average="all") for k in RANKS}
    for metric in metrics.values():
        metric.update_state(labels, ids)
    return {name: float(metric.result()) for name, metric in metrics.items()}


def train_head(set_up_done, arguments):
    extreme_classification.run(extreme_classification.parse_arguments(arguments))


def measure(seeds, peers, rest):
    """(name, result, peak MB) of every run."""
    arguments = extreme_classification.parse_arguments(rest)
    for name, settings in peers.items():
        folder = os.path.join(arguments.output, name.replace(" ", "-").lower())
        peak = peak_memory(train_omikuji, arguments.data, settings, folder)
        yield name, json.loads(Path(folder, "result.json").read_text(encoding="utf-8")), peak
    for name in arguments.heads:
        for seed in seeds:
            folder = os.path.join(arguments.output, f"seed-{seed}", name)
            own = ["--heads", name, "--seed", str(seed), "--output", folder, "--verbose", "2"]
            peak = peak_memory(train_head, [*rest, *own])
            written = json.loads(Path(folder, "results.json").read_text(encoding="utf-8"))
            yield f"tfxc {name}", written["results"][name], peak


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only-heads", action="store_true", help="without Omikuji")
    parser.add_argument("rest", nargs="*", help="after --: arguments of the example")
    add_results(parser)
    args = parser.parse_args()
    runs = {}
    for name, result, peak in measure(args.seeds, {} if args.only_heads else PEERS, args.rest):
        runs.setdefault(name, []).append({**result, "peak": peak})
    rows = []
    for name, each in runs.items():
        mean = {key: statistics.mean(run[key] for run in each) for key in each[0]}
        values = [f"{100 * mean[f'precision_at_{k}']:.1f}" for k in RANKS]
        by_seed = " ".join(f"{100 * run['precision_at_1']:.1f}" for run in each)
        rows.append([name, *values, by_seed, f"{mean['seconds']:.0f}", f"{mean['peak']:,.0f}"])
    columns = [*(f"P@{k}" for k in RANKS), "P@1 by run", "train s", "peak MB"]
    show("Extreme multi-label classification", rows, ["model", *columns])
    keep(args.results)


if __name__ == "__main__":
    main()
