"""Updates of exports: seconds and memory beside an export anew, and recall after a year of daily updates.

    python benchmarks/served_updates.py --num-classes 1000000 --year 0
    python benchmarks/served_updates.py --num-classes 0 --year 1000000 --rows float32 --drift no

Generated class vectors in clusters of 200, width 64. One class in a hundred is retired, and as many are new.
The update has the folder of the earlier export alone; to export anew, the model and its index are in memory,
``index.rebuilt`` follows the new vectors, and a model with the new rows is written. Each runs in a process of
its own; memory counts from a process that has TensorFlow and tfxc loaded, or, for the export anew, the model
too. The names of answers, with all cells probed, are compared with a ranking of all classes in NumPy; rows of
8 bits rank a little otherwise.

In the year, one class in a hundred is exchanged each day, at random. With drift, the centres of the clusters
have moved to others by the end of the year. Recall counts the exact 10 best of the present classes for
queries as they are by then. An update warns once the vectors lie too far from the centres of their cells.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from _measure import measured
from _tables import add_results, keep, show

import tfxc
from tfxc._keras import keras
from tfxc._keras.weights import tf_variable
from tfxc.search import InvertedIndex
from tfxc.search.recall import Wanted
from tfxc.search.updated_index import updated_index
from tfxc.serving.update import MOST_SPREAD

DIM, CLUSTER, SHARE, K, RECALL, DAYS = 64, 200, 100, 10, 0.95, 365
NUM_QUERIES = 1000


class Clusters:
    """Vectors around centres, which move to other places within a year if they drift."""

    def __init__(self, num_classes, drift=False):
        self.random = np.random.default_rng(0)
        size = 2, max(num_classes // CLUSTER, 1), DIM
        self.places = self.random.normal(size=size).astype(np.float32)
        self.drift = drift

    def draw(self, size, day=0):
        angle = np.float32(self.drift * np.pi / 2 * day / DAYS)
        centres = np.cos(angle) * self.places[0] + np.sin(angle) * self.places[1]
        noise = self.random.standard_normal((size, DIM), np.float32) / 2
        return centres[self.random.integers(len(centres), size=size)] + noise


def head_of(vectors):
    head = tfxc.layers.DenseHead(len(vectors), embeddings_initializer="zeros")
    head.build((None, DIM))
    tf_variable(head.table).assign(vectors)
    return head


def model_of(vectors, names):
    encoder = keras.Sequential([keras.Input((DIM,), name="x"), keras.layers.Activation("linear")])
    return tfxc.ExtremeClassifier(encoder, head_of(vectors), k=K, class_names=names)


def names_of(num_classes):
    """Names before and after: every hundredth is new, and takes the id of the one that is gone."""
    old = [f"item-{number}" for number in range(num_classes)]
    new = [f"new-{number}" for number in range(0, num_classes, SHARE)]
    return old, new, old[::SHARE]


def given(num_classes):
    """Vectors, those of new classes, and queries."""
    clusters = Clusters(num_classes)
    return [clusters.draw(size) for size in (num_classes, -(-num_classes // SHARE), NUM_QUERIES)]


def export(set_up_done, folder, num_classes, dtype):
    """Writes the export that is updated; and the next day's from the model: returns its seconds."""
    (vectors, new_vectors, _), (names, added, _) = given(num_classes), names_of(num_classes)
    model, index = model_of(vectors, names), None
    if dtype:
        index = InvertedIndex(dtype=dtype)
        index.build_from(model.head)
    model.export(folder / "1", index=index)
    vectors[::SHARE] = new_vectors
    names[::SHARE] = added
    model = model_of(vectors, names)
    del vectors
    set_up_done()
    start = time.perf_counter()
    model.export(folder / "anew", index=index and index.rebuilt(model.head))
    return time.perf_counter() - start


def update(set_up_done, folder, num_classes):
    """Updates an export; returns its seconds."""
    vectors, (_, added, removed) = given(num_classes)[1], names_of(num_classes)
    set_up_done()
    start = time.perf_counter()
    tfxc.serving.update(folder / "1", folder / "2", added, vectors, removed=removed)
    return time.perf_counter() - start


def differences(set_up_done, folder, num_classes, has_index, num_queries=100):
    """How many answers of the update hold a name that is not among the best of all classes."""
    (vectors, new_vectors, queries), (names, added, _) = given(num_classes), names_of(num_classes)
    vectors[::SHARE] = new_vectors
    names[::SHARE] = added
    queries, served = queries[:num_queries], tf.saved_model.load(str(folder / "2"))
    out = served.serve(
        tf.constant(queries), **({"num_probes": tf.constant(num_classes)} if has_index else {})
    )
    scores, ids = queries @ vectors.T, {name: number for number, name in enumerate(names)}
    least = -np.partition(-scores, K - 1, axis=1)[:, K - 1 : K]
    found = np.array([[ids[name.decode()] for name in row] for row in out["names"].numpy()])
    return int((np.take_along_axis(scores, found, 1) < least - 1e-4).any(1).sum())


def year(num_classes, dtype, drift):
    """Recall before the year, half way and at its end; the first day with a warning, and recall then."""
    clusters = Clusters(num_classes, drift)
    vectors = clusters.draw(num_classes)
    index = InvertedIndex(dtype=dtype)
    index.tune(head_of(vectors), tf.constant(clusters.draw(NUM_QUERIES)), K, RECALL)
    recalls, spread, warned = [recall_of(index, vectors, clusters, 0)], index.spread, ("never", "")
    for day in range(1, DAYS + 1):
        gone = np.sort(clusters.random.choice(num_classes, num_classes // SHARE, replace=False))
        old_ids = np.arange(num_classes)
        old_ids[gone] = -1
        vectors[gone] = clusters.draw(len(gone), day)
        index = updated_index(index.stored, dtype, index.num_probes, old_ids, vectors[gone])
        if warned[0] == "never" and index.spread > MOST_SPREAD * spread:
            warned = day, recall_of(index, vectors, clusters, day)
        if day in (DAYS // 2, DAYS):
            recalls.append(recall_of(index, vectors, clusters, day))
    return *recalls, *warned


def recall_of(index, vectors, clusters, day):
    queries = tf.constant(clusters.draw(NUM_QUERIES, day))
    return Wanted.of(head_of(vectors), queries, K, None).recall(index, index.num_probes)


def day(args):
    rows = []
    for title, dtype in (("no index", None), *((f"index, {dtype}", dtype) for dtype in args.rows)):
        with tempfile.TemporaryDirectory() as folder:
            given = Path(folder), args.num_classes
            anew = measured(export, *given, dtype)
            own = measured(update, *given)
            wrong = measured(differences, *given, dtype is not None)[1]
            table = args.num_classes * DIM * 4 / 2**20
        rows.append([title, own[1], anew[1], own[0], own[0] / table, wrong])
    columns = ["export", "update s", "export anew s", "update MB", "of the table", "answers that differ"]
    show(f"A day: {args.num_classes:,} classes", rows, columns)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-classes", type=int, default=1_000_000, help="of the day; 0 for no day")
    parser.add_argument("--year", type=int, default=100_000, metavar="CLASSES", help="0 for no year")
    parser.add_argument("--rows", nargs="+", choices=["float32", "int8"], default=["float32", "int8"])
    parser.add_argument("--drift", nargs="+", choices=["no", "yes"], default=["no", "yes"])
    add_results(parser)
    args = parser.parse_args()
    if args.num_classes:
        day(args)
    if args.year:
        cases = [(dtype, drift) for drift in args.drift for dtype in args.rows]
        rows = [[*case, *year(args.year, case[0], case[1] == "yes")] for case in cases]
        columns = [
            "rows",
            "drift",
            "recall at first",
            "after half a year",
            "after a year",
            "day of the warning",
        ]
        columns.append("recall then")
        show(f"A year: {args.year:,} classes", rows, columns)
    keep(args.results)


if __name__ == "__main__":
    main()
