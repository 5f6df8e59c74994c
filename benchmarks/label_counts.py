"""The time of the labels' counts: a training step's ``sample`` against the draws alone, for every sampler.

    python benchmarks/label_counts.py [--classes 10000 1000000] [--proposals Sphere LSH] [--rounds 31]

Both return the draws, 100 for each of 256 queries, with the log of their expected counts; a training step
also needs those of the positives. Each turn makes 20 draws with them and 20 without, called from Python,
whose time is part of both. Queries, class vectors and class counts are generated, D = 64.
"""

import argparse

from _measure import in_turns
from _tables import add_results, keep, show
from sampler_draws import SAMPLERS, generated, refreshed_sampler, repeated


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--proposals", nargs="+", choices=SAMPLERS, default=[*SAMPLERS], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=31)
    add_results(parser)
    args = parser.parse_args()
    ratios = {name: [] for name in args.proposals}
    for num_classes in args.classes:
        step, head = generated(num_classes)
        for name in args.proposals:
            sampler, _ = refreshed_sampler(name, head)
            answers = {"both": sampler.sample, "alone": lambda step, own=sampler: own.ask(step).draw()}
            tasks = {key: repeated(answer, step) for key, answer in answers.items()}
            seconds = in_turns(tasks, args.rounds)
            ratios[name].append(seconds["both"] / seconds["alone"])
            print(f"{num_classes:,} classes, {name}: {ratios[name][-1]:.3f}", flush=True)
    rows = [[name, *own] for name, own in ratios.items()]
    show(
        "A draw with the labels' counts, by the draw alone",
        rows,
        ["sampler", *map("{:,}".format, args.classes)],
    )
    keep(args.results)


if __name__ == "__main__":
    main()
