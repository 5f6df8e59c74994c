"""Asks an exported model which items come next, with TensorFlow alone: tfxc cannot be imported here.

    python examples/query_saved_model.py demo/served the old man looked at the

The arguments are names of items, oldest first; unknown names are ignored. Without names, the program reads
lines of names from the standard input, separated by tabs, so that names may contain blanks, or by blanks. It
prints the milliseconds of a call, the median of twenty.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.modules["tfxc"] = None  # makes any import of tfxc fail

import common  # noqa: E402, F401  (before TensorFlow)
import tensorflow as tf  # noqa: E402
from common.arguments import count  # noqa: E402

NUM_CALLS = 20


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("folder", nargs="?", type=Path, default=Path("demo/served"), help="of the SavedModel")
    add("names", nargs="*", help="of items, oldest first; default: lines of the standard input")
    add("--k", type=count, default=5, help="how many items to recommend")
    return parser.parse_args(argv)


def names_in(line):
    """The names in a line: between its tabs; without one, between its blanks."""
    return [name for name in line.rstrip("\r\n").split("\t" if "\t" in line else None) if name]


def takes_names_alone(served):
    """Whether a SavedModel needs only the names of a history, and names to exclude."""
    signature = served.signatures.get("serving_default")
    inputs = dict(signature.structured_input_signature[1]) if signature else {}
    of_exclude, *_ = (inputs.pop(name, None) for name in ("exclude", "k", "allow", "num_probes"))
    names = [of_exclude, *inputs.values()]
    kinds = [spec and (spec.dtype, str(spec.shape)) for spec in names]  # a shape of unknown rank has no list
    return kinds == 2 * [(tf.string, "(None, None)")]


def answer(served, names, k):
    """The best items that are not among the names, and the milliseconds of a call."""
    history = tf.constant([names])
    seconds = []
    for _ in range(NUM_CALLS + 1):  # the first call allocates memory
        start = time.perf_counter()
        best = served.serve(history, k=tf.constant(k), exclude=history)
        seconds.append(time.perf_counter() - start)
    pairs = zip(best["names"][0].numpy(), best["scores"][0].numpy(), strict=True)
    found = ", ".join(f"{name.decode()} {score:.2f}" for name, score in pairs if name)
    return f"{' '.join(names)} -> {found}  ({1e3 * statistics.median(seconds[1:]):.1f} ms)"


def main(argv=None):
    args = parse_arguments(argv)
    if not (args.folder / "saved_model.pb").exists():
        raise SystemExit(
            f"{args.folder} holds no SavedModel: run examples/sequential_recommendation.py, or name another."
        )
    served = tf.saved_model.load(str(args.folder))
    if not takes_names_alone(served):
        raise SystemExit(
            f"{args.folder} does not take names alone: name what model.export(path, strings=True) wrote, of "
            "an encoder whose one input is a history of items."
        )
    sys.stdin.reconfigure(errors="replace")  # invalid UTF-8 matches no name
    for names in [args.names] if args.names else map(names_in, sys.stdin):
        if names:
            print(answer(served, names, args.k), flush=True)


if __name__ == "__main__":
    main()
