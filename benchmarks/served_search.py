"""Ranking from a SavedModel, in turns: all classes, an inverted index, and FAISS with as many cells.

Class vectors are planted in clusters, and a query is a class plus noise; or both are those of a model that
trains for some steps on such classes, whose frequencies are those of words. A process that cannot import tfxc
serves the models. The index and FAISS, with as many cells, are tuned to a recall of .95. The seconds of a
build are those of tuning, which compares three numbers of cells and several numbers of scanned classes.

    python benchmarks/served_search.py --num-classes 1000000 --results served_search.json
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from _planted import planted, trained
from _tables import add_results, keep, show

K, RECALL = 10, 0.95
# Tuning and recall use different queries: a little more here, so that the others reach it, too.
TUNED_TO, NUM_TUNED = 0.955, 1024
INDICES = {"float32": "index", "bfloat16": "index, bfloat16", "int8": "index, int8"}


def export(vectors, queries, folder, dtypes, num_probes):
    """Writes the models; returns the number of cells, and for each model seconds, folder size and recall."""
    import tfxc
    from tfxc._keras import keras
    from tfxc._keras.weights import tf_variable

    encoder = keras.Sequential(
        [keras.Input((vectors.shape[1],), name="x"), keras.layers.Activation("linear")]
    )
    model = tfxc.ExtremeClassifier(encoder, tfxc.layers.DenseHead(len(vectors)), k=K)
    tf_variable(model.head.table).assign(vectors)
    model.export(folder / "exact")
    facts = {"exact": {"megabytes": megabytes(folder / "exact")}}
    for dtype in dtypes:
        index = tfxc.search.InvertedIndex(num_probes=num_probes, dtype=dtype)
        start = time.perf_counter()
        if num_probes is None:
            index.tune(model.head, queries[-NUM_TUNED:], K, TUNED_TO)
        else:
            index.build_from(model.head)
        seconds = time.perf_counter() - start
        model.export(folder / dtype, index=index)
        facts[INDICES[dtype]] = {
            "build_seconds": seconds,
            "megabytes": megabytes(folder / dtype),
            "num_cells": index.num_cells,
            "num_probes": index.num_probes,
            "num_scanned": index.num_scanned,
        }
    return model.head.top_k(queries, K).ids.numpy(), facts


def kept_or_trained(path, *arguments):
    """The result of ``trained``, kept in a file: training takes longer than all else."""
    if path is None or not path.exists():
        vectors, queries, found = trained(*arguments)
        if path is not None:
            np.savez(path, vectors=vectors, queries=queries, found=found, arguments=arguments)
        return vectors, queries, found
    kept = np.load(path)
    if kept["arguments"].tolist() != list(arguments):
        raise SystemExit(f"{path} was trained for {kept['arguments'].tolist()}, not for {list(arguments)}.")
    return kept["vectors"], kept["queries"], float(kept["found"])


def megabytes(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


def probe_enough(index, queries, wanted):
    """Sets a FAISS index to the fewest cells that reach the recall."""

    def reaches(num_probes):
        index.nprobe = num_probes
        return recall(index.search(queries, K)[1], wanted) >= TUNED_TO

    enough = 1
    while enough < index.nlist and not reaches(enough):
        enough = min(2 * enough, index.nlist)
    too_few = enough // 2
    while enough - too_few > 1:
        between = (enough + too_few) // 2
        too_few, enough = (too_few, between) if reaches(between) else (between, enough)
    index.nprobe = enough


def recall(found, wanted):
    return float(np.mean([np.isin(row, own).mean() for row, own in zip(wanted, found, strict=True)]))


def serve(folder, dtypes, num_cells, rounds):
    """In the serving process: recall, queries a second in batches and milliseconds of single queries."""
    sys.modules["tfxc"] = None
    import faiss
    import tensorflow as tf

    given = np.load(folder / "given.npz")
    vectors, queries, wanted = given["vectors"], given["queries"], given["wanted"]
    faiss.omp_set_num_threads(os.cpu_count())
    start = time.perf_counter()
    index = faiss.index_factory(vectors.shape[1], f"IVF{num_cells},Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(
        vectors[np.random.default_rng(0).choice(len(vectors), min(len(vectors), 40 * num_cells), False)]
    )
    index.add(vectors)
    facts = {"FAISS": {"build_seconds": time.perf_counter() - start, "megabytes": vectors.nbytes / 1e6}}
    probe_enough(index, queries[-NUM_TUNED:][:256], wanted[-NUM_TUNED:][:256])
    facts["FAISS"].update(num_cells=index.nlist, num_probes=index.nprobe)
    loaded = {name: tf.saved_model.load(str(folder / name)) for name in ["exact", *dtypes]}

    def answers(model):
        return lambda x: model.serve(tf.constant(x))["ids"].numpy()

    tasks = {INDICES.get(name, name): answers(model) for name, model in loaded.items()}
    tasks["FAISS"] = lambda x: index.search(x, K)[1]
    for name, task in tasks.items():
        found = [task(queries[i : i + 256]) for i in range(0, len(wanted) - NUM_TUNED, 256)]
        facts.setdefault(name, {})["recall"] = recall(np.concatenate(found), wanted[:-NUM_TUNED])
    for batch_size, requests in ((512, 1), (64, 1), (1, 40)):
        seconds = {name: [] for name in tasks}
        for turn in range(rounds):
            for name, task in tasks.items():
                own = []
                for number in range(turn * requests, (turn + 1) * requests):
                    first = number * batch_size % (len(queries) - batch_size)
                    start = time.perf_counter()
                    task(queries[first : first + batch_size])
                    own.append(time.perf_counter() - start)
                seconds[name].append(own)
        for name, times in seconds.items():
            times = np.array(times[1:])
            if batch_size > 1:
                facts[name][f"queries_per_second_{batch_size}"] = float(batch_size / np.median(times))
                facts[name][f"best_queries_per_second_{batch_size}"] = float(batch_size / times.min())
            else:
                # A server has only its model in the cache: the first of many single queries, which finds what
                # another model has left there, is counted separately.
                facts[name]["first_ms"] = float(np.median(times[:, 0]) * 1e3)
                facts[name]["p50_ms"], facts[name]["p99_ms"] = map(
                    float, np.percentile(times[:, 1:], [50, 99]) * 1e3
                )
    print(json.dumps(facts))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-classes", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--num-queries", type=int, default=1024, help="that recall is measured of")
    parser.add_argument("--num-steps", type=int, default=0, help="of training; 0: as planted")
    parser.add_argument("--keep", type=Path, help="file for what was trained, or that holds it: .npz")
    parser.add_argument("--num-probes", type=int, help="default: what reaches a recall of .95")
    parser.add_argument("--dtypes", nargs="+", choices=list(INDICES), default=list(INDICES))
    parser.add_argument("--rounds", type=int, default=15)
    add_results(parser)
    parser.add_argument("--serve", nargs=2, metavar=("FOLDER", "CELLS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(Path(args.serve[0]), args.dtypes, int(args.serve[1]), args.rounds)
        return
    sizes = args.num_classes, args.dim, 4 * args.num_queries
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        if args.num_steps:
            vectors, queries, found = kept_or_trained(args.keep, *sizes, args.num_steps)
            show("Training", [["classes of unseen examples among the 10 best", found]], ["", "share"])
        else:
            vectors, queries = planted(*sizes)
        checked = queries[: args.num_queries + NUM_TUNED]
        wanted, facts = export(vectors, checked, folder, args.dtypes, args.num_probes)
        np.savez(folder / "given.npz", vectors=vectors, queries=checked, wanted=wanted)
        index = facts[INDICES[args.dtypes[0]]]
        command = [sys.executable, __file__, "--serve", str(folder), str(index["num_cells"])]
        command += ["--dtypes", *args.dtypes, "--rounds", str(args.rounds)]
        # FAISS's threads spin while they wait for the next query, and would take the cores from TensorFlow.
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
        served = json.loads(
            subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment).stdout
        )
    for name, more in served.items():
        facts.setdefault(name, {}).update(more)
    columns = ["megabytes", "build_seconds", "num_cells", "num_probes", "num_scanned", "recall"]
    columns += ["queries_per_second_64", "queries_per_second_512", "best_queries_per_second_64"]
    columns += ["best_queries_per_second_512", "first_ms", "p50_ms", "p99_ms"]
    rows = [[name, *(own.get(column, "") for column in columns)] for name, own in facts.items()]
    show(f"{args.num_classes:,} classes of width {args.dim}, k = {K}", rows, ["", *columns])
    keep(args.results)


if __name__ == "__main__":
    main()
