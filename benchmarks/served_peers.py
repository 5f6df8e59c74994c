"""Ranking by an exported model beside FAISS, ScaNN and usearch, each tuned to a recall of .95.

Class vectors are the best that training could reach for classes as frequent as words, with biases and very
unequal lengths; with ``--planted``, clusters without biases; or those that ``served_search.py --keep`` left.
Each ranking has a process of its own, which builds or loads its index and takes the first setting that
reaches .95; then all take turns. The processes of exported models cannot import tfxc, those of the peers do
not import TensorFlow. Memory is by how much a process has grown with what it needs to answer. The peers that
search by neighbours (HNSW, usearch) get vectors that one more number makes equally long, so that the nearest
is the one with the largest product.

    pip install scann usearch
    python benchmarks/served_peers.py --num-classes 1000000 --results served_peers.json

Sources of the peers' settings: FAISS's guidelines to choose an index, ScaNN's rules of thumb for a tree of
the root of L leaves, usearch's defaults.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

K, RECALL, NUM_TUNED = 10, 0.95, 1024
BATCHES = {1: 40, 64: 1, 512: 1}


class FaissFlat:
    """All products, in blocks of classes."""

    settings = (None,)

    def __init__(self, vectors):
        import faiss

        self.index = faiss.IndexFlatIP(vectors.shape[1])
        self.index.add(vectors)

    def set(self, setting):
        pass

    def __call__(self, queries):
        return self.index.search(queries, K)[1]


class FaissIVF(FaissFlat):
    settings = tuple(sorted({round(2 ** (n / 4)) for n in range(48)}))

    def __init__(self, vectors):
        import faiss

        cells = int(4 * len(vectors) ** 0.5)
        self.index = faiss.index_factory(vectors.shape[1], f"IVF{cells},Flat", faiss.METRIC_INNER_PRODUCT)
        chosen = np.random.default_rng(0).choice(len(vectors), min(len(vectors), 40 * cells), False)
        self.index.train(vectors[chosen])
        self.index.add(vectors)

    def set(self, setting):
        self.index.nprobe = setting


class FaissHNSW(FaissFlat):
    settings = tuple(round(2 ** (n / 4)) for n in range(16, 49))

    def __init__(self, vectors):
        import faiss

        self.index = faiss.IndexHNSWFlat(vectors.shape[1] + 1, 32)
        self.index.add(of_one_length(vectors))

    def set(self, setting):
        self.index.hnsw.efSearch = setting

    def __call__(self, queries):
        return super().__call__(np.pad(queries, [(0, 0), (0, 1)]))


class Usearch:
    settings = FaissHNSW.settings

    def __init__(self, vectors):
        from usearch.index import Index

        self.index = Index(ndim=vectors.shape[1] + 1, metric="l2sq", dtype="f32")
        self.index.add(np.arange(len(vectors)), of_one_length(vectors))

    def set(self, setting):
        self.index.expansion_search = setting

    def __call__(self, queries):
        found = self.index.search(np.pad(queries, [(0, 0), (0, 1)]), K)
        return found.keys.reshape(len(queries), -1).astype(np.int64)


class Scann:
    settings = tuple(
        (round(2 ** (n / 2)), reordered) for n in range(2, 21) for reordered in (50, 100, 200, 400, 800)
    )

    def __init__(self, vectors):
        from scann.scann_ops.py import scann_ops_pybind

        build = scann_ops_pybind.builder(vectors, K, "dot_product").set_n_training_threads(os.cpu_count())
        leaves = int(len(vectors) ** 0.5)
        build = build.tree(leaves, num_leaves_to_search=leaves // 10, training_sample_size=250_000)
        self.index = build.score_ah(2, anisotropic_quantization_threshold=0.2).reorder(100).build()

    def set(self, setting):
        self.setting = dict(zip(("leaves_to_search", "pre_reorder_num_neighbors"), setting, strict=True))

    def __call__(self, queries):
        if len(queries) == 1:
            return self.index.search(queries[0], K, **self.setting)[0][np.newaxis]
        return self.index.search_batched_parallel(queries, K, **self.setting)[0]


class Exported:
    """A model that ``export`` wrote, loaded by TensorFlow alone."""

    settings = (None,)

    def __init__(self, folder):
        import tensorflow as tf

        self.make, self.model = tf.constant, tf.saved_model.load(str(folder))

    def set(self, setting):
        pass

    def __call__(self, queries):
        return self.model.serve(self.make(queries))["ids"].numpy()


PEERS = {
    "FAISS, Flat": FaissFlat,
    "FAISS, IVF": FaissIVF,
    "FAISS, HNSW": FaissHNSW,
    "usearch": Usearch,
    "ScaNN": Scann,
}
OURS = {"tfxc, all classes": None, "tfxc, index": "float32", "tfxc, index of int8": "int8"}


def of_one_length(vectors):
    """Vectors [L, D + 1] of the length of the longest one."""
    squares = np.square(vectors).sum(1)
    return np.concatenate([vectors, np.sqrt(squares.max() - squares)[:, np.newaxis]], 1)


def recall(found, wanted):
    return float(np.mean([np.isin(row, own).mean() for row, own in zip(wanted, found, strict=True)]))


def grown():
    """Megabytes that this process holds and that no file backs."""
    with open("/proc/self/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) / 1e3


def work(connection, name, folder):
    """In the process of a ranking: builds, tunes, then answers batches when asked."""
    sys.modules["tfxc" if name in OURS else "tensorflow"] = None
    given = np.load(folder / "queries.npz")
    queries, wanted = given["queries"], given["wanted"]
    if name in OURS:
        import tensorflow as tf

        tf.linalg.matmul(tf.ones([64, 64]), tf.ones([64, 64]))  # what TensorFlow itself starts with
    kind = Exported if name in OURS else PEERS[name]
    before = grown()
    source = folder / str(OURS[name]) if name in OURS else np.load(folder / "vectors.npy")
    start = time.perf_counter()
    task = kind(source)
    facts = {"build_seconds": time.perf_counter() - start}
    del source
    facts["megabytes"] = grown() - before
    for setting in kind.settings:
        task.set(setting)
        if recall(task(queries[-NUM_TUNED:]), wanted[-NUM_TUNED:]) >= RECALL:
            break
    facts |= {"setting": setting, "recall": recall(task(queries[:NUM_TUNED]), wanted[:NUM_TUNED])}
    connection.send(facts)
    while (batch := connection.recv()) is not None:
        size, first = batch
        seconds = []
        for number in range(BATCHES[size]):
            at = (first + number * size) % (len(queries) - size)
            start = time.perf_counter()
            task(queries[at : at + size])
            seconds.append(time.perf_counter() - start)
        connection.send(seconds)


def export(vectors, queries, folder):
    """Writes our models; returns the seconds of each and the best classes of the queries."""
    import tfxc
    from tfxc._keras import keras
    from tfxc._keras.weights import tf_variable

    encoder = keras.Sequential(
        [keras.Input((vectors.shape[1],), name="x"), keras.layers.Activation("linear")]
    )
    model = tfxc.ExtremeClassifier(encoder, tfxc.layers.DenseHead(len(vectors)), k=K)
    tf_variable(model.head.table).assign(vectors)
    seconds = {}
    for name, dtype in OURS.items():
        start = time.perf_counter()
        index = None if dtype is None else tfxc.search.InvertedIndex(dtype=dtype)
        if index is not None:
            index.tune(model.head, queries[2 * NUM_TUNED :], K, RECALL + 0.005)
        model.export(folder / str(dtype), index=index)
        seconds[name] = time.perf_counter() - start
    return seconds, model.head.top_k(queries[: 2 * NUM_TUNED], K).ids.numpy()


def generated(args):
    """Class vectors [L, D], with a bias as one more number, and queries."""
    from _planted import PlantedTruth, planted

    num_queries = 3 * NUM_TUNED
    if args.trained:
        kept = np.load(args.trained)
        return kept["vectors"], kept["queries"][:num_queries]
    if args.planted:
        return planted(args.num_classes, args.dim, num_queries)
    truth = PlantedTruth(args.num_classes, args.dim)
    vectors, biases = truth.optimum()
    queries = truth.examples(num_queries, np.random.default_rng(1))[0]
    vectors = np.concatenate([vectors, biases[:, np.newaxis]], 1).astype(np.float32)
    return vectors, np.pad(queries, [(0, 0), (0, 1)], constant_values=1)


def main():
    from _tables import add_results, keep, show

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-classes", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--planted", action="store_true", help="vectors in clusters, without biases")
    parser.add_argument("--trained", type=Path, help="file that served_search.py --keep has written: .npz")
    parser.add_argument("--rankings", nargs="+", choices=[*OURS, *PEERS], default=[*OURS, *PEERS])
    parser.add_argument("--rounds", type=int, default=15)
    add_results(parser)
    args = parser.parse_args()
    # Threads that spin while they wait for the next query would take the cores from the others.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        vectors, queries = generated(args)
        seconds, wanted = export(vectors, queries, folder)
        np.save(folder / "vectors.npy", vectors)
        np.savez(folder / "queries.npz", queries=queries[: 2 * NUM_TUNED], wanted=wanted)
        facts, pipes = {}, {}
        context = multiprocessing.get_context("spawn")
        for name in args.rankings:
            pipes[name], other = context.Pipe()
            context.Process(target=work, args=(other, name, folder), daemon=True).start()
            facts[name] = pipes[name].recv()
            print(name, facts[name], flush=True)
        for name in set(seconds) & set(facts):
            facts[name]["build_seconds"] = seconds[name]
        times = {name: {size: [] for size in BATCHES} for name in pipes}
        for turn in range(args.rounds):
            for size, requests in BATCHES.items():
                for name, pipe in pipes.items():
                    pipe.send((size, turn * size * requests))
                    times[name][size].append(pipe.recv())
        for name, pipe in pipes.items():
            pipe.send(None)
            of_one = np.array(times[name][1][1:])[:, 1:] * 1e3
            facts[name]["p50_ms"], facts[name]["p99_ms"] = map(float, np.percentile(of_one, [50, 99]))
            for size in (64, 512):
                facts[name][f"queries_per_second_{size}"] = float(size / np.median(times[name][size][1:]))
    columns = ["recall", "setting", "p50_ms", "p99_ms", "queries_per_second_64", "queries_per_second_512"]
    columns += ["build_seconds", "megabytes"]
    rows = [
        [name, *("" if own[column] is None else own[column] for column in columns)]
        for name, own in facts.items()
    ]
    show(f"{len(vectors):,} classes of width {vectors.shape[1]}, k = {K}", rows, ["", *columns])
    keep(args.results)


if __name__ == "__main__":
    main()
