import json
import pathlib
from unittest.mock import patch

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="package", autouse=True)
def older_tensorflow():
    """The answers of older versions; and each export here fails that holds what the oldest does not know."""
    file = ROOT / "benchmarks" / "results" / "older_servers.json"
    features, unknown = json.loads(file.read_text(encoding="utf-8"))["tables"]
    unknown = {tuple(row) for row in unknown["rows"]}  # (op, attribute); "" if the op itself is newer
    save = tf.saved_model.save

    def checked(module, path, **options):
        save(module, path, **options)
        content = pathlib.Path(path, "saved_model.pb").read_bytes()
        graph = saved_model_pb2.SavedModel.FromString(content).meta_graphs[0].graph_def
        parts = [graph.node, *(function.node_def for function in graph.library.function)]
        used = {(node.op, name) for part in parts for node in part for name in ("", *node.attr)}
        newer = sorted(used & unknown)
        assert not newer, newer

    with patch.object(tf.saved_model, "save", checked):
        yield features
