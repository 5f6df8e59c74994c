"""Trainings over several processes, one of which is killed at a random moment: do all finish, and how well?

    python benchmarks/cluster_faults.py --runs 20

Every run is that of examples/cluster.py: next words, two workers, two servers. The first few runs are not
disturbed, and show how much two runs differ anyway. In the others a worker, a server or the coordinator, in
turns, gets SIGKILL at a random moment.
"""

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

from _tables import add_results, keep, show  # noqa: E402
from common.processes import COORDINATOR, Cluster, name_of  # noqa: E402

VICTIMS = ("worker", "ps", COORDINATOR)
COLUMNS = "killed", "at (s)", "seconds", "new workers", "restarts", "loss", "NDCG@10"


def run(options, job, moment):
    """One training, in which a process of the job dies after ``moment`` seconds; with None, none does.

    Returns None for a training that ended before that.
    """
    killed = []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(EXAMPLES / "cluster.py"), "--output", folder, *options]
        cluster = Cluster(command, 2, 2)
        timer = threading.Timer(moment, lambda: killed.extend(kill(cluster, job)))
        if job is not None:
            timer.start()
        start = time.perf_counter()
        cluster.run()
        timer.cancel()
        results = json.loads((Path(folder) / "results.json").read_text(encoding="utf-8"))
    if job is not None and not killed:
        return None
    seconds = time.perf_counter() - start
    quality = results["loss"], results["ndcg_at_10"]
    return job or "none", moment, seconds, cluster.num_new_workers, cluster.num_restarts, *quality


def kill(cluster, job):
    """Kills one of the processes of the job, if any is left; returns a list of the killed ones."""
    victims = [task for task in cluster.tasks() if task[0] == job]
    random.shuffle(victims)
    for victim in victims[:1]:
        print(f"Killing {name_of(victim)}.", flush=True)
        cluster.kill(victim)
    return victims[:1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--alone", type=int, default=3, help="runs without a kill, at least 1")
    parser.add_argument("--runs", type=int, default=20, help="runs with one")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100, help="of an epoch")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    add_results(parser)
    args = parser.parse_args()
    random.seed(args.seed)
    options = []
    for option in ("epochs", "steps", "batch_size"):
        options += [f"--{option.replace('_', '-')}", str(getattr(args, option))]
    rows = [run(options, None, 0.0) for _ in range(args.alone)]
    shortest = min(row[COLUMNS.index("seconds")] for row in rows)
    for number in range(args.runs):
        row = None
        while row is None:
            moment = random.uniform(5.0, max(0.9 * shortest, 6.0))
            row = run(options, VICTIMS[number % len(VICTIMS)], moment)
        rows.append(row)
        print(dict(zip(COLUMNS, row, strict=True)), flush=True)
    show("One process killed at a random moment", rows, COLUMNS)
    keep(args.results)


if __name__ == "__main__":
    main()
