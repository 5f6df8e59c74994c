"""Queries an exported model as a server would: with TensorFlow alone, tfxc must not even be importable.

python examples/query_saved_model.py demo/served
"""

import argparse
import json
import sys
from pathlib import Path

sys.modules["tfxc"] = None  # any import of tfxc would now fail

import common  # noqa: E402, F401  (before TensorFlow)
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("folder", nargs="?", type=Path, default=Path("demo/served"), help="of the SavedModel")
    add("--history", default="the old man looked at the", help="names of items, oldest first")
    return parser.parse_args(argv)


def main(argv=None):
    args = parse_arguments(argv)
    if not (args.folder / "saved_model.pb").exists():
        raise SystemExit(
            f"{args.folder} holds no SavedModel: run examples/sequential_recommendation.py, or name another."
        )
    served = tf.saved_model.load(str(args.folder))
    names = json.loads((args.folder / "assets.extra" / "class_names.json").read_text(encoding="utf-8"))
    max_length = served.signatures["serving_default"].structured_input_signature[1]["items"].shape[1]

    history = [names.index(name) for name in args.history.split() if name in names][-max_length:]
    items = np.zeros([1, max_length], np.int32)
    items[0, max_length - len(history) :] = np.array(history) + 1  # 0 is padding

    for options in ({}, {"k": tf.constant(5), "exclude": tf.constant([history])}):
        # k and exclude may be left out: here, and in requests to TensorFlow Serving or saved_model_cli.
        answer = served.serve(tf.constant(items), **options)
        pairs = zip(answer["ids"][0].numpy(), answer["scores"][0].numpy(), strict=True)
        best = ", ".join(f"{names[i]} {score:.2f}" for i, score in pairs)
        note = "  (none of them again)" if options else ""
        print(f"{' '.join(names[i] for i in history)} -> {best}{note}")


if __name__ == "__main__":
    main()
