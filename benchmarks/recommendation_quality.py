"""Quality of a sequential recommender by sampler, over several seeds, with equal budgets.

Whatever follows ``--`` goes to examples/sequential_recommendation.py, which trains the models; a run that was
cut off goes on where it stopped. For example, with MovieLens-1M as lines of ``user item``, oldest first:

    python benchmarks/recommendation_quality.py --seeds 0 1 -- --data ml-1m.txt --output runs/ml-1m \\
        --format interactions --max-length 200 --epochs 24 --patience 4 \\
        --num-codewords 32 --samplers full midx-rq

Without arguments: the novels that come with the package, one epoch, one seed.
"""

import argparse
import sys
from pathlib import Path

from _seeds import mean, run_seeds, spread
from _tables import add_results, keep, show

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import sequential_recommendation  # noqa: E402

COLUMNS = ["sampler", "train s", "NDCG@10", "Recall@10", "NDCG of full"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("rest", nargs="*", help="after --: arguments of the example")
    add_results(parser)
    args = parser.parse_args()
    arguments = sequential_recommendation.parse_arguments(args.rest)
    if arguments.output == "demo":
        arguments.output = "runs/novels"
    results = run_seeds(sequential_recommendation, arguments, args.seeds)
    rows = []
    for name, runs in results.items():
        quality = [spread(runs, metric, "{:.4f}") for metric in ("ndcg_at_10", "recall_at_10")]
        share = ""
        if "full" in results:
            share = f"{mean(runs, 'ndcg_at_10') / mean(results['full'], 'ndcg_at_10'):.1%}"
        rows.append([name, f"{mean(runs, 'seconds'):.0f}", *quality, share])
    show(f"{Path(arguments.data).name}: {len(args.seeds)} seed(s)", rows, COLUMNS)
    keep(args.results)


if __name__ == "__main__":
    main()
