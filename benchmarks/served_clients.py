"""Clients in threads against one loaded model: throughput, latency, memory, and correct answers.

Each request holds a few queries, a random k, and sometimes ``exclude`` and ``allow``. No answer may hold an
excluded class, a class that is not allowed, or fewer than k classes where there are k. Some requests are
repeated with all cells probed, and compared with a ranking of all classes in NumPy. A process that cannot
import tfxc serves the model.

    python benchmarks/served_clients.py --num-classes 1000000 --results served_clients.json
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from _measure import status
from _planted import planted
from _tables import add_results, keep, show
from served_search import export

K = 10


def request(random, queries, num_classes):
    """The arguments of a random request."""
    size = int(random.integers(1, 9))
    x = queries[random.integers(len(queries), size=size)]
    arguments = {"x": x, "k": np.int32(random.integers(1, 2 * K))}
    kind = random.integers(4)
    if kind % 2:
        arguments["exclude"] = random.integers(-1, num_classes, (size, 20)).astype(np.int32)
    if kind >= 2:
        rows = size if random.integers(2) else 1
        arguments["allow"] = random.integers(-1, num_classes, (rows, int(random.integers(1, 200)))).astype(
            np.int32
        )
    return arguments


def candidates(arguments, row, num_classes):
    """The classes that may be in an answer, as bool [L]."""
    fits = np.ones(num_classes, bool)
    if "allow" in arguments:
        allow = arguments["allow"][row % len(arguments["allow"])]
        if (allow >= 0).any():
            fits[:] = False
            fits[allow[allow >= 0]] = True
        else:
            fits[:] = False
    exclude = arguments.get("exclude", np.zeros([len(arguments["x"]), 0], np.int32))[row]
    fits[exclude[exclude >= 0]] = False
    return fits


def faults(arguments, ids, num_classes):
    """The number of rows of an answer that break a promise; scores are not compared."""
    found = 0
    for row, own in enumerate(ids):
        valid = own[own >= 0]
        exclude = arguments.get("exclude", np.zeros([len(ids), 0], np.int32))[row]
        exclude = np.unique(exclude[exclude >= 0])
        wrong = np.isin(valid, exclude).any() or len(np.unique(valid)) != len(valid)
        num_possible = num_classes - len(exclude)
        if "allow" in arguments:
            allow = arguments["allow"][row % len(arguments["allow"])]
            allow = np.setdiff1d(allow[allow >= 0], exclude)
            wrong |= not np.isin(valid, allow).all()
            num_possible = len(allow)
        wrong |= len(valid) != min(int(arguments["k"]), num_possible)
        found += bool(wrong)
    return found


def serve(folder, num_requests, num_threads, num_checked):
    """In the serving process: prints the facts as JSON."""
    sys.modules["tfxc"] = None
    import tensorflow as tf

    given = np.load(folder / "given.npz")
    vectors, queries = given["vectors"], given["queries"]
    num_classes = len(vectors)
    model = tf.saved_model.load(str(folder / "float32"))

    def ask(arguments, **more):
        return model.serve(**{name: tf.constant(value) for name, value in {**arguments, **more}.items()})

    random = np.random.default_rng(1)
    differ = 0
    for _ in range(num_checked):
        arguments = request(random, queries, num_classes)
        answer = ask(arguments, num_probes=np.int32(1 << 30))
        logits = arguments["x"].astype(np.float64) @ vectors.T.astype(np.float64)
        for row, own in enumerate(answer["scores"].numpy()):
            fits = candidates(arguments, row, num_classes)
            want = np.sort(logits[row][fits])[::-1][: len(own)]
            differ += not np.allclose(own[: len(want)], want, rtol=1e-4, atol=1e-4)
    seconds, wrong, memory = [[] for _ in range(num_threads)], [0] * num_threads, []

    def client(number):
        random = np.random.default_rng(100 + number)
        for turn in range(num_requests // num_threads):
            arguments = request(random, queries, num_classes)
            start = time.perf_counter()
            ids = ask(arguments)["ids"].numpy()
            seconds[number].append(time.perf_counter() - start)
            wrong[number] += faults(arguments, ids, num_classes)
            if number == 0 and turn % max(num_requests // num_threads // 10, 1) == 0:
                memory.append(status("VmRSS") / 1024)
                print(f"{turn * num_threads:,} requests", file=sys.stderr, flush=True)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(num_threads)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - start
    every = np.concatenate(seconds) * 1e3
    p50, p99 = np.percentile(every, [50, 99])
    facts = {
        "requests": len(every),
        "client threads": num_threads,
        "requests per second": len(every) / elapsed,
        "p50 ms": p50,
        "p99 ms": p99,
        "rows that break a promise": sum(wrong),
        "requests ranked again with all cells": num_checked,
        "rows that differ from all classes ranked": differ,
        "MB after a tenth": memory[1],
        "MB at the end": memory[-1],
    }
    print(json.dumps({name: float(value) for name, value in facts.items()}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-classes", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--checked", type=int, default=200)
    add_results(parser)
    parser.add_argument("--serve", metavar="FOLDER", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(Path(args.serve), args.requests, args.threads, args.checked)
        return
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        vectors, queries = planted(args.num_classes, args.dim, 4096)
        export(vectors, queries[:256], folder, ["float32"], None)
        np.savez(folder / "given.npz", vectors=vectors, queries=queries)
        command = [sys.executable, __file__, "--serve", str(folder), "--requests", str(args.requests)]
        command += ["--threads", str(args.threads), "--checked", str(args.checked)]
        facts = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    rows = [[name, int(value) if value == int(value) else value] for name, value in facts.items()]
    show(f"Clients: {args.num_classes:,} classes of width {args.dim}", rows, ["", "value"])
    keep(args.results)


if __name__ == "__main__":
    main()
