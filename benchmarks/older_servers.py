"""Exports of this release, loaded and asked by older TensorFlow.

A small model of each feature is exported and asked here. Then pip installs each older version into an
environment of its own, without tfxc, which is removed once it has answered: by ``tf.saved_model.load``, and
by the graph of ``serving_default`` in a session, as TensorFlow Serving does. "yes" means the same ids and
names, and scores that differ by less than 1e-5; otherwise the cell says what came instead. A second table
holds the ops, and the attributes of ops, that the first of the versions does not know.

    python benchmarks/older_servers.py --folder environments --results older_servers.json

Python is that of this process, 3.11 or 3.12: all these versions are made for it. An environment takes 2 GB.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import numpy as np

VERSIONS = "2.16", "2.17", "2.18", "2.19", "2.20"
DIM, NUM_CLASSES, NUM_QUERIES, LENGTH = 16, 600, 8, 12


def normal(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def features():
    """Yields features, each with a model, options of its export, and requests: dicts of arrays."""
    import tfxc
    from tfxc._keras import keras
    from tfxc.layers import DenseHead, EncodedHead, MACHHead, UniformSparseHead

    random = np.random.default_rng(1)
    names = [f"item {number}" for number in range(NUM_CLASSES)]
    ids = random.integers(0, NUM_CLASSES, (NUM_QUERIES, LENGTH), np.int32)
    requests = [
        {},
        {"k": np.int32(3), "exclude": ids[:, :2]},
        {"allow": ids},
        {"allow": ids[:1], "exclude": ids[:, :3]},
    ]
    probes = [{"num_probes": np.int32(number)} for number in (8, 999)]

    def case(feature, head, more=(), encoder=None, dtype=None, **options):
        given = {"x": normal(NUM_QUERIES, DIM)} if encoder is None else {"items": ids + 1}
        encoder = encoder or keras.Sequential([keras.Input((DIM,), name="x"), keras.layers.Dense(DIM)])
        model = tfxc.ExtremeClassifier(encoder, head, k=10, class_names=names)
        model.queries(*given.values())
        if dtype is not None:
            options["index"] = tfxc.search.InvertedIndex(dtype=dtype, num_scanned=20)
            options["index"].build_from(head)
        asked = [given | request for request in [*requests, *more, *(probes if dtype else ())]]
        return feature, model, options, asked

    yield case("`DenseHead`", DenseHead(NUM_CLASSES, use_bias=True))
    yield case("table of bfloat16", DenseHead(NUM_CLASSES, table_dtype="bfloat16"))
    of_items = keras.Sequential([keras.Input((5,)), keras.layers.Dense(DIM)])
    yield case("`EncodedHead`", EncodedHead(of_items, normal(NUM_CLASSES, 5)))
    yield case("`MACHHead`", MACHHead(NUM_CLASSES, 32, 4, num_probes=4), probes[:1])
    yield case("`UniformSparseHead`", UniformSparseHead(NUM_CLASSES, 4))
    for dtype in ("float32", "bfloat16", "int8"):
        yield case(f"index of {dtype}", DenseHead(NUM_CLASSES, use_bias=True), dtype=dtype)
    attributes = {
        "country": random.choice(["DE", "FR", "IT"], NUM_CLASSES),
        "price": random.uniform(1, 100, NUM_CLASSES),
        "tags": [["new", "sale", "used"][: number % 4] for number in range(NUM_CLASSES)],
    }
    wanted = [
        {"where_country": np.array([["DE", "FR"]]), "where_price_max": np.float32([[20]])},
        {"where_tags": np.array([["sale", ""]] * NUM_QUERIES), "exclude": ids[:, :2]},
    ]
    yield case("attributes", DenseHead(NUM_CLASSES), wanted, attributes=attributes)
    yield case("attributes, index", DenseHead(NUM_CLASSES), wanted, dtype="int8", attributes=attributes)
    encoder = tfxc.encoders.gru4rec(NUM_CLASSES, LENGTH, DIM)
    head, named = DenseHead(NUM_CLASSES, tied_to="item_embedding", row_offset=1), np.array(names)[ids]
    feature, model, options, _ = case("`strings=True`, `gru4rec`", head, encoder=encoder, strings=True)
    yield feature, model, options, [{"items": named[:, :5]} | more for more in ({}, {"exclude": named})]


def export(folder):
    """Writes a folder for each feature, of its export and of requests; returns the features."""
    import tfxc

    written = []
    for place, (feature, model, options, requests) in enumerate(features()):
        model.export(folder / f"{place:02}" / "export", **options)
        for number, request in enumerate(requests):
            np.savez(folder / f"{place:02}" / f"{number}.npz", **request)
        written.append(feature)
    place = written.index("attributes, index")
    before, after = folder / f"{place:02}", folder / f"{len(written):02}"
    shutil.copytree(before, after, ignore=lambda *_: ["export"])
    new = {"country": ["DE", "ES"], "price": [2.0, 3.0], "tags": [["sale"], []]}
    arguments = ["item 3", "item 600"], normal(2, DIM) / DIM
    tfxc.serving.update(before / "export", after / "export", *arguments, removed=["item 5"], attributes=new)
    return [*written, "`tfxc.serving.update`"]


def ask(folder, out):
    """In the process of a version: answers the requests of each feature, or writes why it does not."""
    import tensorflow as tf

    out.mkdir()
    (out / "version").write_text(tf.__version__)
    (out / "ops.json").write_text(json.dumps(known_ops()))
    for case in sorted(folder.glob("*/export")):
        requests = [dict(np.load(file)) for file in sorted(case.parent.glob("*.npz"))]
        answers = {}
        try:
            for way in (loaded_answers, session_answers):
                for number, answer in enumerate(way(tf, str(case), requests)):
                    answers |= {f"{way.__name__} {number} {name}": value for name, value in answer.items()}
        except Exception as error:  # any, to be reported
            (out / f"{case.parent.name}.txt").write_text(f"{type(error).__name__}: {error}")
            continue
        for key, value in answers.items():
            if value.dtype == object:  # names, which a file of arrays does not hold so
                answers[key] = value.astype(str)
        np.savez(out / f"{case.parent.name}.npz", **answers)


def known_ops():
    """The attributes of each op that this version knows."""
    from tensorflow.core.framework import op_def_pb2
    from tensorflow.python.client import pywrap_tf_session as session

    ops = op_def_pb2.OpList.FromString(session.TF_GetBuffer(session.TF_GetAllOpList())).op
    return {op.name: [attribute.name for attribute in op.attr] for op in ops}


def loaded_answers(tf, path, requests):
    loaded = tf.saved_model.load(path)
    for request in requests:
        answer = loaded.serve(**{name: tf.constant(value) for name, value in request.items()})
        yield {name: value.numpy() for name, value in answer.items()}


def session_answers(tf, path, requests):
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True  # which takes most of the time
    with tf.Graph().as_default(), tf.compat.v1.Session(config=config) as session:
        signature = tf.compat.v1.saved_model.load(session, ["serve"], path).signature_def["serving_default"]
        defaults = {name: tf.make_ndarray(value) for name, value in signature.defaults.items()}
        fetched = {name: tensor.name for name, tensor in signature.outputs.items()}
        for request in requests:
            given = {signature.inputs[name].name: value for name, value in (defaults | request).items()}
            yield session.run(fetched, given)


def compared(got, want, place):
    """A cell of the table: "yes", or what came instead of the answers of this version."""
    reason = got / f"{place:02}.txt"
    if reason.exists():
        print(reason.read_text())
        return reason.read_text().splitlines()[0][:100]
    with np.load(got / f"{place:02}.npz") as own, np.load(want / f"{place:02}.npz") as expected:
        for key in expected:
            if key.endswith(" scores"):
                if not np.allclose(own[key], expected[key], rtol=1e-5, atol=1e-5):
                    return "other scores"
            elif not np.array_equal(own[key], expected[key]):
                return "other classes"
    return "yes"


def newer(oldest, newest):
    """Rows of the ops that the oldest version does not know, and of the attributes of others."""
    old, new = (json.loads((answers / "ops.json").read_text()) for answers in (oldest, newest))
    ops = [[op, ""] for op in new if op not in old]
    return ops + [[op, name] for op in new if op in old for name in new[op] if name not in old[op]]


def run(python, folder, out):
    """Has the process of another environment answer, which cannot see tfxc."""
    hidden = "PYTHONPATH", "TF_USE_LEGACY_KERAS"
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    command = [python, __file__, "--ask", folder, out]
    subprocess.run(command, check=True, env=environment | {"TF_CPP_MIN_LOG_LEVEL": "3"})
    return (out / "version").read_text()


def main():
    from _tables import add_results, keep, show

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--versions", nargs="+", default=VERSIONS, metavar="VERSION")
    parser.add_argument("--folder", type=Path, required=True, help="where environments are made, and removed")
    add_results(parser)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        exports, answers = Path(folder, "exports"), Path(folder, "answers")
        answers.mkdir()
        cases = export(exports)
        run(sys.executable, exports, answers / "newest")
        columns = {}
        for version in args.versions:
            environment, out = args.folder / version, answers / version
            try:
                venv.create(environment, with_pip=True)
                python = environment / "bin" / "python"
                install = [python, "-m", "pip", "install", "--quiet", f"tensorflow-cpu=={version}.*"]
                subprocess.run(install, check=True)
                name = run(python, exports, out)
            finally:
                shutil.rmtree(environment, ignore_errors=True)
            columns[name] = [compared(out, answers / "newest", place) for place in range(len(cases))]
        unknown = newer(answers / args.versions[0], answers / "newest")
    rows = [[case, *(cells[place] for cells in columns.values())] for place, case in enumerate(cases)]
    show("Features by version of TensorFlow", rows, ["", *columns])
    show("Unknown to the first of these versions", unknown, ["op", "attribute"])
    keep(args.results)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ask"]:
        ask(*map(Path, sys.argv[2:]))
    else:
        main()
