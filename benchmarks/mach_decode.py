"""Top 10 of a million classes from a MACH head's buckets, against plain TensorFlow; and pruned decodes.

    python benchmarks/mach_decode.py [--classes 1000000 10000000] [--batch-sizes 1 64]

There are R = 16 repetitions of M = 10,000 buckets. "Plain" gathers each repetition's scores by a table of
bucket ids, sums them to [B, L] and calls ``tf.math.top_k``. "All classes" and "tfxc" are exact, "probes" are
not: they look into 12 buckets of each repetition. Tables resemble those after training: half of the
probability of each query is spread over 10,000 classes by Zipf's law, which each repetition has learnt up to
a factor (log-normal, sigma 0.5), and half over all buckets (log-normal, sigma 2). "Flat" tables (softmax of
standard normal logits) show the time where pruning cannot help.
"""

import argparse

import numpy as np
from _measure import in_turns, peak_memory
from _tables import add_results, keep, show

NUM_REPETITIONS, NUM_BUCKETS, K, SUPPORT = 16, 10_000, 10, 10_000
NUM_PROBES = 12


def make_family(num_classes):
    import tensorflow as tf

    from tfxc.hashing import UniversalHash, universal_coefficients

    coefficients = universal_coefficients(num_classes, range(NUM_REPETITIONS), seed=0)
    return UniversalHash(tf.constant(coefficients), num_classes, NUM_BUCKETS)


def trained_tables(family, num_queries):
    """Bucket probabilities [B, R, M] of queries with peaked class probabilities."""
    random = np.random.default_rng(1)
    tables = random.lognormal(sigma=2.0, size=(num_queries, NUM_REPETITIONS, NUM_BUCKETS))
    tables *= 0.5 / tables.sum(2, keepdims=True)
    probability = 1 / np.arange(1, SUPPORT + 1)
    probability *= 0.5 / probability.sum()
    for table in tables:
        classes = random.choice(family.num_keys, SUPPORT, replace=False)
        for own, buckets in zip(table, family.buckets(classes).numpy(), strict=True):
            np.add.at(own, buckets, probability * random.lognormal(sigma=0.5, size=SUPPORT))
    return (tables / tables.sum(2, keepdims=True)).astype(np.float32)


def flat_tables(num_queries):
    logits = np.random.default_rng(1).normal(size=(num_queries, NUM_REPETITIONS, NUM_BUCKETS))
    tables = np.exp(logits)
    return (tables / tables.sum(2, keepdims=True)).astype(np.float32)


def plain(num_classes, tables):
    """Gathers by a table of bucket ids, and sums."""
    import tensorflow as tf

    bucket_ids = tf.Variable(make_family(num_classes).buckets(tf.range(num_classes)))

    def all_at_once():
        parts = zip(tf.unstack(tables, axis=1), tf.unstack(bucket_ids), strict=True)
        return tf.add_n([tf.gather(table, ids, axis=1) for table, ids in parts])

    def add(r, scores):
        return r + 1, scores + tf.gather(tables[:, r], tf.gather(bucket_ids, r), axis=1)

    def one_by_one():
        first = (0, tf.zeros([len(tables), num_classes]))
        return tf.while_loop(lambda r, _: r < NUM_REPETITIONS, add, first, parallel_iterations=1)[1]

    # This is faster, but holds the values of all repetitions at once.
    fits = 4 * len(tables) * num_classes * NUM_REPETITIONS < 8e9
    total = all_at_once if fits else one_by_one
    return tf.function(lambda: tf.math.top_k(total() / NUM_REPETITIONS, K))


def compiled(num_classes, tables, prune):
    import tensorflow as tf

    from tfxc.ops.mach_decode import mach_top_k

    family = make_family(num_classes)
    return tf.function(lambda: mach_top_k(tables, family, K, prune=prune))


def stock_blocks(num_classes, tables, block=8192):
    """The way of a SavedModel without num_probes."""
    import tensorflow as tf

    from tfxc.ops.mach_decode import class_scores
    from tfxc.search.exact import BlockTopK

    family, ranking = make_family(num_classes), BlockTopK(K)

    def step(start, carry):
        stop = tf.minimum(start + block, num_classes)
        return stop, ranking.fold(carry, class_scores(tables, family, tf.range(start, stop)), start)

    @tf.function
    def ranked():
        start, carry = tf.constant(0), ranking.initial(tables.shape[0])
        carry = tuple(tf.compat.v1.placeholder_with_default(part, [None, None]) for part in carry)
        return ranking.finish(tf.while_loop(lambda start, _: start < num_classes, step, (start, carry))[1])

    return ranked


def stock_probes(num_classes, tables):
    import tensorflow as tf

    from tfxc.ops.library import stock_ops
    from tfxc.ops.mach_decode import mach_top_k_probed

    family = make_family(num_classes)
    return tf.function(lambda: stock_ops()(mach_top_k_probed)(tables, family, K, NUM_PROBES))


def probes(num_classes, tables):
    import tensorflow as tf

    from tfxc.ops.mach_decode import mach_top_k_probed

    family = make_family(num_classes)
    return tf.function(lambda: mach_top_k_probed(tables, family, K, NUM_PROBES))


PLAIN, ALL, STOCK = "plain gather and sum", "tfxc, all classes", "stock ops, all classes in blocks"
MAKERS = {
    PLAIN: plain,
    ALL: lambda *problem: compiled(*problem, prune=False),
    "tfxc": lambda *problem: compiled(*problem, prune=True),
    f"tfxc, {NUM_PROBES} probes": probes,
    STOCK: stock_blocks,
    f"stock ops, {NUM_PROBES} probes": stock_probes,
}


def rank_some(set_up_done, name, num_classes, num_queries):
    """Runs a task a few times, to measure its memory beyond the tables."""
    import tensorflow as tf

    tables = tf.constant(flat_tables(num_queries))
    set_up_done()
    task = MAKERS[name](num_classes, tables)
    for _ in range(3):
        task()


def recall(ids, exact):
    """The mean share of the exact ids that a search finds."""
    pairs = zip(ids.numpy(), exact.numpy(), strict=True)
    return float(np.mean([len(set(found) & set(wanted)) / K for found, wanted in pairs]))


def measure(num_classes, tables, kind, args):
    import tensorflow as tf

    names = list(MAKERS) if kind == "trained" else [PLAIN, ALL, "tfxc"]
    tasks = {name: MAKERS[name](num_classes, tf.constant(tables)) for name in names}
    exact = tasks[ALL]()[1]
    seconds = in_turns(tasks, args.rounds, warmup=1)
    rows = []
    for name, task in tasks.items():
        peers = [seconds[peer] / seconds[name] if peer in seconds else 1.0 for peer in (PLAIN, ALL, STOCK)]
        row = [name, seconds[name] * 1e3, *(f"{ratio:.1f}x" for ratio in peers), recall(task()[1], exact)]
        if args.memory:
            row.append(round(peak_memory(rank_some, name, num_classes, len(tables))))
        rows.append(row)
    columns = ["decode", "ms", "faster than plain", "than all classes", "than stock blocks", f"recall@{K}"]
    columns += ["peak MB"] * args.memory
    show(f"{kind} tables, L = {num_classes:,}, B = {len(tables)}", rows, columns)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory", action="store_true", help="measure peak memory too")
    add_results(parser)
    args = parser.parse_args()
    for num_classes in args.classes:
        look_ups = num_classes * NUM_REPETITIONS
        as_many_bytes = np.ones(look_ups // 4)
        floor = in_turns({"read": as_many_bytes.sum}, 5)["read"]
        print(
            f"\nL = {num_classes:,}: {look_ups / 1e6:.0f} million look-ups a query. A table of 16-bit bucket "
            f"ids, which tfxc does not keep, would be {2 * look_ups / 2**20:.0f} MB; one core reads it in "
            f"{floor * 1e3:.1f} ms."
        )
        for num_queries in args.batch_sizes:
            trained = trained_tables(make_family(num_classes), num_queries)
            measure(num_classes, trained, "trained", args)
            measure(num_classes, flat_tables(num_queries), "flat", args)
    keep(args.results)


if __name__ == "__main__":
    main()
