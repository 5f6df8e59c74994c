"""A model carried over from day to day against a model trained from scratch each day, over several seeds.

The arguments after ``--`` go to examples/daily_catalogue.py, which trains the models. Each data set has a
folder in that of --output; seeds whose results are there are not trained again. For example, with the
sessions of Diginetica in the order of time:

    python benchmarks/daily_quality.py --seeds 0 1 -- --data diginetica.txt --format sessions

Without arguments it uses the bundled novels and one seed.
"""

import argparse
import json
import statistics
import sys
from functools import partial
from pathlib import Path

from _seeds import once
from _tables import add_results, keep, show

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import daily_catalogue  # noqa: E402

COLUMNS = ["seed", "day", "classes", "new", "retired", "steps", "steps anew", "NDCG@10", "anew", "share"]


def train(options, folder):
    """The results of a run of the example."""
    daily_catalogue.main([*options, "--output", str(folder)])
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def days_of(result):
    """The days of a run as rows of the table, without the seed."""
    runs = [dict(zip(result["columns"], row, strict=True)) for row in result["rows"]]
    for carried, anew in zip(runs[::2], runs[1::2], strict=True):
        share = float(carried["NDCG@10"]) / float(anew["NDCG@10"])
        about = [carried[name] for name in ("day", "classes", "new", "retired", "steps")]
        yield [*about, anew["steps"], carried["NDCG@10"], anew["NDCG@10"], f"{share:.1%}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("rest", nargs="*", help="after --: arguments of the example")
    add_results(parser)
    args = parser.parse_args()
    options = vars(daily_catalogue.parse_arguments(args.rest))
    data, folder, rows = options["data"], options.pop("output"), []
    folder, options["data"] = folder / data.stem, str(data)
    for options["seed"] in args.seeds:
        seed = str(options["seed"])
        run = partial(train, [*args.rest, "--seed", seed])
        rows += [[seed, *row] for row in days_of(once(folder / f"seed-{seed}", options, run))]
    carried, anew = (statistics.mean(float(row[place]) for row in rows) for place in (-3, -2))
    rows.append(["all", "", "", "", "", "", "", f"{carried:.4f}", f"{anew:.4f}", f"{carried / anew:.1%}"])
    show(f"carried over and anew: {data.name}", rows, COLUMNS)
    keep(args.results)


if __name__ == "__main__":
    main()
