"""The quality of a trained recommender that ranks through an index: NDCG@10 and recall against exact ranking.

The arguments after ``--`` go to examples/sequential_recommendation.py. The model of its first sampler is
trained, or loaded if it is there. Indices are tuned to several recalls on validation queries.

    python benchmarks/indexed_quality.py -- --data train.txt --test-data test.txt --format sessions \\
        --max-length 10 --batch-size 128 --epochs 2 --samplers midx-rq --output runs/diginetica
"""

import argparse
import sys
from pathlib import Path

import tensorflow as tf
from _tables import add_results, keep, show

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import sequential_recommendation  # noqa: E402

import tfxc  # noqa: E402

K = 10
TUNING_BATCHES = 16  # of validation: numbers chosen by a few hundred queries suit these better than others
INDICES = [("float32", recall) for recall in (0.95, 0.99, 0.999)] + [("bfloat16", 0.99), ("int8", 0.99)]


def quality(rank, test_queries):
    """NDCG@10 and Recall@10 of a function from queries, and ids to exclude or None, to ids."""
    metrics = [tfxc.metrics.NDCGAtK(K), tfxc.metrics.RecallAtK(K)]
    for query, labels, exclude in test_queries:
        ids = rank(query, exclude)
        for metric in metrics:
            metric.update_state(labels, ids)
    return [float(metric.result()) for metric in metrics]


def queries_of(model, batches):
    """(query [N, D], labels [N, P], ids to exclude [N, E] or None) of every batch."""
    return [
        (*model.examples(x, y)[:2], x.get("exclude") if isinstance(x, dict) else None) for x, y in batches
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rest", nargs="*", help="after --: arguments of the example")
    add_results(parser)
    args = parser.parse_args()
    arguments = sequential_recommendation.parse_arguments(args.rest)
    split = sequential_recommendation.load_split(arguments)
    model, _, _ = sequential_recommendation.train(arguments.samplers[0], split, arguments)
    _, validation_set, test_set = sequential_recommendation.batches(split, arguments)
    tuning = tf.concat([query for query, *_ in queries_of(model, validation_set.take(TUNING_BATCHES))], 0)
    test_queries = queries_of(model, test_set)
    exact = quality(lambda query, exclude: model.head.top_k(query, K, exclude).ids, test_queries)
    rows = [["all classes", "", "", "", *exact, 1.0]]
    for dtype, target in INDICES:
        index = tfxc.search.InvertedIndex(dtype=dtype)
        index.tune(model.head, tuning, recall=target, k=K)

        def rank(query, exclude, own=index):
            return own.top_k(model.head.effective_query(query), K, exclude).ids

        found = quality(rank, test_queries)
        recall = sum(index.recall(model.head, query, K) for query, *_ in test_queries) / len(test_queries)
        cells = f"{index.num_probes} of {index.num_cells}"
        share = found[0] / exact[0]
        rows.append([f"index, {dtype}, tuned to {target}", index.num_scanned, cells, recall, *found, share])
    columns = ["ranking", "scanned", "cells read", "recall", "NDCG@10", "Recall@10", "NDCG of exact"]
    title = f"{Path(arguments.data).name}: {split.train.num_classes:,} classes, D = {arguments.dim}"
    show(
        title,
        [[cell if not isinstance(cell, float) else f"{cell:.4f}" for cell in row] for row in rows],
        columns,
    )
    keep(args.results)


if __name__ == "__main__":
    main()
