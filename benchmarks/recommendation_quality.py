"""Quality of a sequential recommender by sampler, over several seeds, with equal budgets.

Whatever follows ``--`` goes to examples/sequential_recommendation.py, which trains the models; a run that was
cut off goes on where it stopped. For example, with MovieLens-1M as lines of ``user item``, oldest first:

    python benchmarks/recommendation_quality.py --seeds 0 1 -- --data ml-1m.txt --output runs/ml-1m \\
        --format interactions --max-length 200 --epochs 24 --patience 4 \\
        --num-codewords 32 --samplers full midx-rq

Without arguments: the novels that come with the package, one epoch, one seed.
"""

import argparse
import statistics
import sys
from pathlib import Path

from _tables import add_results, keep, show

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import sequential_recommendation  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("rest", nargs="*", help="after --: arguments of the example")
    add_results(parser)
    args = parser.parse_args()
    arguments = sequential_recommendation.parse_arguments(args.rest)
    if arguments.output == "demo":
        arguments.output = "runs/novels"
    folder, results = arguments.output, {}
    for arguments.seed in args.seeds:
        arguments.output = f"{folder}/seed-{arguments.seed}"
        for name, result in sequential_recommendation.run(arguments).items():
            results.setdefault(name, []).append(result)
    rows, full = [], _mean(results, "full", "ndcg_at_10") if "full" in results else None
    for name, runs in results.items():
        ndcg = _mean(results, name, "ndcg_at_10")
        seconds = _mean(results, name, "seconds")
        each = " ".join(f"{run['ndcg_at_10']:.4f}" for run in runs)
        share = f"{ndcg / full:.1%}" if full else ""
        rows.append(
            [
                name,
                f"{seconds:.0f}",
                each,
                f"{ndcg:.4f}",
                f"{_mean(results, name, 'recall_at_10'):.4f}",
                share,
            ]
        )
    columns = ["sampler", "train s", "NDCG@10 by seed", "NDCG@10", "Recall@10", "NDCG of full"]
    show(f"{Path(arguments.data).name}: {len(args.seeds)} seed(s)", rows, columns)
    keep(args.results)


def _mean(results, name, metric):
    return statistics.mean(run[metric] for run in results[name])


if __name__ == "__main__":
    main()
