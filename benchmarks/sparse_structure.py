"""K weights of each class against as many weights anywhere, and numbers of weights and of inputs.

    python benchmarks/sparse_structure.py --data Delicious
    python benchmarks/sparse_structure.py --rows "weights anywhere" -- --epochs 20

These are the tables 1 to 3 of the paper on uniformly sparse layers: squared hinge, connections that move, a
rate that halves where P@3 stalls. The weights that lie anywhere are a product of stock TensorFlow. Each model
is trained in a process of its own; the arguments after ``--`` go to examples/extreme_classification.py and do
not override the option that names a row. Peak memory is that of training and prediction, without the data.
"""

import argparse
from functools import partial
from pathlib import Path
from unittest import mock

import tagging_quality
from _seeds import once
from _tables import add_results, keep, show
from _unstructured_head import UnstructuredHead
from tagging_quality import BUNDLED, in_process, train_head

COMMON = ("--heads", "sparse", "--loss", "squared-hinge", "--wide-activation", "relu", "--dim", "128")
COMMON = (*COMMON, "--num-inputs", "2048", "--batch-size", "128", "--learning-rate", "2e-3", "--epochs", "8")
COMMON = (*COMMON, "--halve-after", "1")
ANYWHERE = "weights anywhere"
ROWS = {"dense": ("--heads", "dense"), "--fan-in 32, --num-inputs 2048": (), ANYWHERE: ()}
SWEPT = {"--fan-in": (8, 64), "--num-inputs": (512, 8192)}
for option, values in SWEPT.items():
    ROWS |= {f"{option} {value}": (option, str(value)) for value in values}


def make_unstructured_head(name, train, args):
    bias = tagging_quality.example.classification_heads.first_bias(train, args.loss, train.num_labels)
    return UnstructuredHead(train.num_labels, args.fan_in, bias, args.seed)


def train_unstructured(set_up_done, options, folder):
    with mock.patch.object(tagging_quality.example, "make_head", make_unstructured_head):
        return train_head(set_up_done, options, folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--data", type=Path, default=BUNDLED, help="as of the example")
    add("--rows", nargs="+", metavar="NAME", choices=ROWS, default=[*ROWS], help="only these")
    add("--seeds", type=int, nargs="+", default=[0])
    add(
        "--output",
        type=Path,
        default=Path("runs/sparse_structure"),
        help="folder; one in it for each data set",
    )
    add("rest", nargs="*", help="after --: arguments of the example")
    add_results(parser)
    args, runs = parser.parse_args(), {}
    for seed in args.seeds:
        for name in args.rows:
            options = [*COMMON, "--data", str(args.data), "--seed", str(seed), *args.rest, *ROWS[name]]
            task = train_unstructured if name == ANYWHERE else train_head
            folder = args.output / args.data.name / f"seed-{seed}" / name
            runs.setdefault(name, []).append(once(folder, options, partial(in_process, task, options)))
    title = f"{args.data.name}: sparse structure, {len(args.seeds)} seed(s)"
    show(title, list(tagging_quality.rows_of(runs)), tagging_quality.columns_of(runs))
    keep(args.results)


if __name__ == "__main__":
    main()
