"""Queries an exported model as a server would: with TensorFlow alone, tfxc must not even be importable.

python examples/query_saved_model.py demo/served
"""

import json
import sys
from pathlib import Path

import numpy as np

sys.modules["tfxc"] = None  # any import of tfxc would now fail

import tensorflow as tf  # noqa: E402

WORDS = ["the", "old", "man", "looked", "at", "the"]

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "demo/served")
served = tf.saved_model.load(str(folder))
names = json.loads((folder / "assets.extra" / "class_names.json").read_text(encoding="utf-8"))
max_length = served.signatures["serving_default"].structured_input_signature[1]["items"].shape[1]

history = [names.index(word) for word in WORDS if word in names]
items = np.zeros([1, max_length], np.int32)
items[0, max_length - len(history) :] = np.array(history) + 1  # 0 is padding

for options in ({}, {"k": tf.constant(5), "exclude": tf.constant([history])}):
    # k and exclude may be left out: here, and in requests to TensorFlow Serving or saved_model_cli.
    answer = served.serve(tf.constant(items), **options)
    pairs = zip(answer["ids"][0].numpy(), answer["scores"][0].numpy(), strict=True)
    best = ", ".join(f"{names[i]} {score:.2f}" for i, score in pairs)
    print(f"{' '.join(names[i] for i in history)} -> {best}" + ("  (no word again)" if options else ""))
