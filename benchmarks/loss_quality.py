"""Quality of a sequential recommender by loss and sampler, over several seeds, with equal budgets.

A run is a loss and a sampler of examples/sequential_recommendation.py, for example ``gbce:uniform``. The
arguments after ``--`` go to that example, which trains the models; an interrupted run resumes. For example,
with sessions, one a line:

    python benchmarks/loss_quality.py --seeds 0 1 --runs softmax:midx-rq gbce:uniform -- --data train.txt \\
        --test-data test.txt --format sessions --max-length 10 --batch-size 128 --epochs 2

Without arguments it uses the bundled novels, one epoch and one seed.
"""

import argparse
import sys
from pathlib import Path

from _seeds import mean, run_seeds, spread
from _tables import add_results, keep, show

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import sequential_recommendation as example  # noqa: E402

RUNS = "softmax:midx-rq", "partition:midx-rq", "softmax:in-batch", "partition:in-batch", "gbce:uniform"


def parse_run(text):
    """Loss and sampler of "gbce:uniform"."""
    loss, _, sampler = text.partition(":")
    if loss not in example.LOSSES or sampler not in example.SAMPLERS:
        losses, samplers = ", ".join(example.LOSSES), ", ".join(example.SAMPLERS)
        raise argparse.ArgumentTypeError(f"{text!r} is no LOSS:SAMPLER, of {losses} and {samplers}")
    return loss, sampler


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--seeds", type=int, nargs="+", default=[0])
    add("--runs", type=parse_run, nargs="+", default=[parse_run(run) for run in RUNS], metavar="LOSS:SAMPLER")
    add("rest", nargs="*", help="after --: arguments of the example")
    add_results(parser)
    args = parser.parse_args()
    arguments = example.parse_arguments(args.rest)
    title = f"{Path(arguments.data).name}: {len(args.seeds)} seed(s)"
    folder, rows = arguments.output, []
    if folder == example.parse_arguments([]).output:
        folder = f"runs/losses/{Path(arguments.data).stem}"
    for arguments.loss, sampler in args.runs:
        arguments.samplers, arguments.output = [sampler], f"{folder}/{arguments.loss}"
        runs = run_seeds(example, arguments, args.seeds)[sampler]
        quality = [
            spread([run[metric] for run in runs], "{:.4f}") for metric in ("ndcg_at_10", "recall_at_10")
        ]
        rows.append([arguments.loss, sampler, f"{mean(runs, 'seconds'):.0f}", *quality])
    show(title, rows, ["loss", "sampler", "train s", "NDCG@10", "Recall@10"])
    keep(args.results)


if __name__ == "__main__":
    main()
