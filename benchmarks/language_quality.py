"""Exact perplexity of a language model by sampler, over several seeds, with equal budgets.

Whatever follows ``--`` goes to examples/language_model.py, which trains the models; a run that was cut off
goes on where it stopped. For example, with Penn Treebank as a folder of train, valid and test files:

    python benchmarks/language_quality.py --seeds 0 1 2 -- --data ptb --output runs/ptb --batch-size 32 \\
        --num-blocks 1 --epochs 6 --learning-rate 0.004 --refresh-steps 50 --samplers full midx-rq

Without arguments: the novels that come with the package, one seed.
"""

import argparse
import sys
from pathlib import Path

from _seeds import mean, run_seeds, spread
from _tables import add_results, keep, show

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import language_model  # noqa: E402

COLUMNS = ["sampler", "train s", "validation perplexity", "test perplexity", "x full"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("rest", nargs="*", help="after --: arguments of the example")
    add_results(parser)
    args = parser.parse_args()
    arguments = language_model.parse_arguments(args.rest)
    results = run_seeds(language_model, arguments, args.seeds)
    rows = []
    for name, runs in results.items():
        quality = [spread(runs, metric, "{:.1f}") for metric in ("validation_perplexity", "perplexity")]
        multiple = ""
        if "full" in results:
            multiple = f"{mean(runs, 'perplexity') / mean(results['full'], 'perplexity'):.3f}"
        rows.append([name, f"{mean(runs, 'seconds'):.0f}", *quality, multiple])
    show(f"{Path(arguments.data).name}: {len(args.seeds)} seed(s)", rows, COLUMNS)
    keep(args.results)


if __name__ == "__main__":
    main()
