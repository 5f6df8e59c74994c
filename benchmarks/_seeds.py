"""Runs of an example over several seeds, once each, and a table of means and deviations."""

import argparse
import json
import math
import statistics
import sys
from pathlib import Path

from _tables import add_results, keep, show


def compare_over_seeds(example, description, columns, share_of_full=None, first="sampler"):
    """The program of a benchmark: trains by an example's arguments, once for each seed, and shows a table.

    Args:
        example: the example's module: ``parse_arguments`` and ``run``.
        description: the description of the program for ``--help``.
        columns: by heading, the metric of a run and the format of its mean.
        share_of_full: the heading, metric and format of the last column, the mean's ratio to that of "full";
            None leaves it out.
        first: the heading of the runs' names.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("rest", nargs="*", help="after --: arguments of the example")
    add_results(parser)
    args = parser.parse_args()
    arguments = example.parse_arguments(args.rest)
    if arguments.output == example.parse_arguments([]).output:
        arguments.output = f"runs/{Path(arguments.data).stem}"
    results = run_seeds(example, arguments, args.seeds)
    headings, rows = [first, "train s", *columns], []
    for name, runs in results.items():
        quality = [spread([run[own] for run in runs], form) for own, form in columns.values()]
        rows.append([name, f"{mean(runs, 'seconds'):.0f}", *quality])
    if share_of_full is not None:
        heading, metric, form = share_of_full
        headings.append(heading)
        full = mean(results["full"], metric) if "full" in results else math.nan
        for row, runs in zip(rows, results.values(), strict=True):
            row.append("" if math.isnan(full) else form.format(mean(runs, metric) / full))
    show(f"{Path(arguments.data).name}: {len(args.seeds)} seed(s)", rows, headings)
    keep(args.results)


def run_seeds(example, arguments, seeds):
    """Runs ``example.run(arguments)`` once for each seed, into a folder for the seed.

    Returns:
        A dict from the name of a run to the list of its results, one for each seed.
    """
    folder, results = arguments.output, {}
    for arguments.seed in seeds:
        arguments.output = f"{folder}/seed-{arguments.seed}"
        for name, result in example.run(arguments).items():
            results.setdefault(name, []).append(result)
    return results


def once(folder, options, run):
    """The result of ``run(folder)``, or the saved result in the folder if a run had these options."""
    done = folder / "done.json"
    if done.exists():
        kept = json.loads(done.read_text(encoding="utf-8"))
        if kept["options"] != options:
            sys.exit(f"{folder} was made with {kept['options']}, not with {options}: give another --output.")
        return kept["result"]
    folder.mkdir(parents=True, exist_ok=True)
    result = run(folder)
    aside = done.with_suffix(".writing")
    aside.write_text(json.dumps({"options": options, "result": result}), encoding="utf-8")
    aside.replace(done)
    return result


def mean(runs, metric):
    return statistics.mean(run[metric] for run in runs)


def spread(values, form="{:.2f}"):
    """The mean and, for several values, the standard deviation, e.g. "0.2274 ± 0.0011"."""
    text = form.format(statistics.mean(values))
    return text if len(values) == 1 else f"{text} ± {form.format(statistics.stdev(values))}"
