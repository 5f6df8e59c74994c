"""Ranking among the classes that a request's attributes leave, by a SavedModel with an inverted index.

Classes are as frequent as words, and the head is the best that training could reach for them; or vectors and
queries are those that ``served_search.py --keep`` left. Each filter lets a share of the classes pass: by a
string drawn at random, by the limit of a price drawn at random, or by a string that one region of the class
vectors has. The index is tuned to a recall of .95 without filters. A process that cannot import tfxc serves
the model. Recall and answers with all cells probed are compared with a ranking of all classes; random
requests are checked for what must not be in them, and for k classes wherever so many pass.

    python benchmarks/served_filters.py --num-classes 1000000 --results served_filters.json
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from _planted import PlantedTruth, best_head
from _tables import add_results, keep, show
from served_search import NUM_TUNED, megabytes, recall

K, TUNED_TO = 10, 0.965  # of other queries an index finds a point less
EXACT = 10  # of so many random requests one is compared with a ranking of all classes
SHARES = 0.5, 0.05, 0.005, 0.0001
KINDS = {"string": "where_kind", "price": "where_price_max", "region": "where_region"}


def strings(order):
    """A string for each class: those at the front of the order get that of the smallest share, and so on."""
    names = np.full(len(order), "other", object)
    taken = 0
    for share in reversed(SHARES):
        size = round(share * len(order))
        names[order[taken : taken + size]] = str(share)
        taken += size
    return names.tolist()


def attributes_of(vectors):
    """Attributes of classes, each of which lets every one of ``SHARES`` pass."""
    random = np.random.default_rng(2)
    along = vectors @ random.standard_normal(vectors.shape[1])
    return {
        "kind": strings(random.permutation(len(vectors))),
        "price": random.permutation(len(vectors)) / len(vectors),
        "region": strings(np.argsort(-along)),
    }


def export(head, queries, folder):
    """Writes the model with and without attributes; returns facts and the effective vectors and queries."""
    import tfxc
    from tfxc._keras import keras

    encoder = keras.Sequential(
        [keras.Input((queries.shape[1],), name="x"), keras.layers.Activation("linear")]
    )
    model = tfxc.ExtremeClassifier(encoder, head, k=K)
    index = tfxc.search.InvertedIndex()
    index.tune(head, queries[-NUM_TUNED:], K, TUNED_TO)
    vectors = head.class_vectors(0, head.num_classes).numpy()
    attributes = attributes_of(vectors)
    start = time.perf_counter()
    model.export(folder / "plain", index=index)
    plain_seconds = time.perf_counter() - start
    start = time.perf_counter()
    model.export(folder / "filtered", index=index, attributes=attributes)
    facts = {
        "cells": index.num_cells,
        "probes": index.num_probes,
        "scanned classes": index.num_scanned,
        "MB without attributes": megabytes(folder / "plain"),
        "MB with three attributes": megabytes(folder / "filtered"),
        "seconds to export without": plain_seconds,
        "seconds to export with": time.perf_counter() - start,
    }
    price = np.array(attributes["price"], np.float32)
    np.savez(
        folder / "given.npz",
        vectors=vectors,
        queries=queries[:-NUM_TUNED],
        effective=head.effective_query(queries[:-NUM_TUNED]).numpy(),
        kind=attributes["kind"],
        region=attributes["region"],
        price=price,
    )
    return facts


def passing(given, kind, share):
    """Which classes pass a filter, and what a request says."""
    if kind == "price":
        limit = np.float32(share)
        return given["price"] <= limit, [[limit]]
    return given["kind" if kind == "string" else kind] == str(share), [[str(share)]]


def best(logits, passes):
    """The k best classes that pass, -1 where there are fewer."""
    where = np.flatnonzero(passes)
    logits = logits[:, where]
    order = np.argsort(-logits, axis=1, kind="stable")[:, :K]
    found = np.full([len(logits), K], -1)
    found[:, : order.shape[1]] = where[order]
    return found


def serve(folder, num_checked, num_requests, rounds):
    """In the serving process: prints the facts as JSON."""
    sys.modules["tfxc"] = None
    import tensorflow as tf

    given = dict(np.load(folder / "given.npz", allow_pickle=True))
    queries, vectors = given["queries"], given["vectors"]
    plain, model = (tf.saved_model.load(str(folder / name)) for name in ("plain", "filtered"))
    filters = {"model without attributes": (plain, {}, None), "no filter": (model, {}, None)}
    for kind, name in KINDS.items():
        for share in SHARES:
            passes, wanted = passing(given, kind, share)
            filters[f"{kind}, {share:.2%}"] = model, {name: tf.constant(wanted)}, passes
    logits = given["effective"][:num_checked] @ vectors.T
    every = np.ones(len(vectors), bool)
    facts = {}
    for name, (served, where, passes) in filters.items():
        wanted = best(logits, every if passes is None else passes)
        ask = lambda i, **more: served.serve(tf.constant(queries[i : i + 1]), **where, **more)  # noqa: B023, E731
        found = np.concatenate([ask(i)["ids"].numpy() for i in range(num_checked)])
        scores = np.concatenate([ask(i, num_probes=1 << 30)["scores"].numpy() for i in range(20)])
        want = np.where(
            wanted[:20] >= 0, np.take_along_axis(logits[:20], np.maximum(wanted[:20], 0), 1), -np.inf
        )
        facts[name] = {
            "classes that pass": int((every if passes is None else passes).sum()),
            "recall": recall(found, wanted),
            "answers short of k": int(((found >= 0).sum(1) < (wanted >= 0).sum(1)).sum()),
            "that differ with all cells": int((~np.isclose(scores, want, rtol=1e-4, atol=1e-4)).any(1).sum()),
        }
    del logits
    seconds = {name: [] for name in filters}
    for turn in range(rounds):
        for name, (served, where, _) in filters.items():
            for i in range(turn * 20, turn * 20 + 20):
                x = tf.constant(queries[i % len(queries)][np.newaxis])
                start = time.perf_counter()
                served.serve(x, **where)["ids"].numpy()
                if i % 20:  # the first finds in the caches what another filter has left there
                    seconds[name].append(time.perf_counter() - start)
    for name, own in seconds.items():
        facts[name]["p50_ms"], facts[name]["p99_ms"] = map(
            float, np.percentile(np.array(own) * 1e3, [50, 99])
        )
    broken, differ = random_requests(model, given, num_requests)
    facts = {
        "filters": facts,
        "random requests": num_requests,
        "that hold a class that does not pass, or too few": broken,
        "random requests with all cells": -(-num_requests // EXACT),
        "that differ from a ranking of all": differ,
    }
    print(json.dumps(facts))


def random_requests(model, given, num_requests):
    """Asks for random queries with one or two random filters, in batches of random sizes.

    Returns how many answers hold a class that does not pass, or fewer than k where so many pass; and how many
    of one in ``EXACT``, with all cells probed, have other scores than the best of all classes that pass.
    """
    import tensorflow as tf

    random = np.random.default_rng(0)
    choices = [(kind, *passing(given, kind, share)) for kind in KINDS for share in SHARES]
    passes = np.stack([passes for _, passes, _ in choices])
    num_passing = np.array([[np.count_nonzero(own & other) for other in passes] for own in passes])
    broken = differ = first = 0
    told = time.perf_counter()
    while first < num_requests:
        size = min(int(random.integers(1, 129)), num_requests - first)
        rows = random.integers(len(given["queries"]), size=size)
        asked = random.permutation(list(KINDS))[: random.integers(1, 3)]
        chosen = np.stack(
            [random.choice([i for i, own in enumerate(choices) if own[0] == kind], size) for kind in asked]
        )
        where = {
            KINDS[kind]: tf.constant(np.concatenate([choices[i][2] for i in own]))
            for kind, own in zip(asked, chosen, strict=True)
        }
        x = tf.constant(given["queries"][rows])
        ids = model.serve(x, **where)["ids"].numpy()
        fits = passes[chosen[0][:, np.newaxis], ids] & passes[chosen[-1][:, np.newaxis], ids] & (ids >= 0)
        wanted = np.minimum(K, num_passing[chosen[0], chosen[-1]])
        distinct = np.array([len(np.unique(own[own >= 0])) for own in ids])
        broken += int(((fits.sum(1) != wanted) | ((ids >= 0).sum(1) != wanted) | (distinct != wanted)).sum())
        exact = np.arange(-first % EXACT, size, EXACT)
        if len(exact):
            some = {name: tf.gather(own, exact) for name, own in where.items()}
            found = model.serve(tf.gather(x, exact), **some, num_probes=1 << 30)["scores"].numpy()
            logits = given["effective"][rows[exact]] @ given["vectors"].T
            for own, row, scores in zip(logits, chosen.T[exact], found, strict=True):
                best = -np.sort(-own[passes[row[0]] & passes[row[-1]]])[:K]
                best = np.pad(best, (0, K - len(best)), constant_values=-np.inf)
                differ += not np.allclose(scores, best, rtol=1e-4, atol=1e-4)
        first += size
        if time.perf_counter() > told + 30:
            told = time.perf_counter()
            print(f"{first:,} of {num_requests:,} random requests", file=sys.stderr)
    return broken, differ


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-classes", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--trained", type=Path, help="file that served_search.py --keep has written: .npz")
    parser.add_argument("--checked", type=int, default=200)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=15)
    add_results(parser)
    parser.add_argument("--serve", metavar="FOLDER", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(Path(args.serve), args.checked, args.requests, args.rounds)
        return
    with tempfile.TemporaryDirectory() as folder:
        if args.trained:
            head, queries = kept(args.trained)
        else:
            truth = PlantedTruth(args.num_classes, args.dim)
            head, queries = best_head(truth), truth.examples(4 * NUM_TUNED, np.random.default_rng(1))[0]
        facts = export(head, queries, Path(folder))
        command = [sys.executable, __file__, "--serve", folder, "--checked", str(args.checked)]
        command += ["--requests", str(args.requests), "--rounds", str(args.rounds)]
        served = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    filters = served.pop("filters")
    columns = list(next(iter(filters.values())))
    rows = [[name, *own.values()] for name, own in filters.items()]
    show(f"Filters: {head.num_classes:,} classes, k = {K}", rows, ["filter", *columns])
    show("Model and requests", [[name, value] for name, value in (facts | served).items()], ["", "value"])
    keep(args.results)


def kept(path):
    """A head of the class vectors in a file, and the queries there."""
    import tfxc
    from tfxc._keras.weights import tf_variable

    given = np.load(path)
    head = tfxc.layers.DenseHead(len(given["vectors"]))
    head.build((None, given["vectors"].shape[1]))
    tf_variable(head.table).assign(given["vectors"])
    return head, given["queries"]


if __name__ == "__main__":
    main()
