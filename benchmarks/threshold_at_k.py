"""The distance of the threshold of ``SoftmaxAtK`` from the true k-th best logit, by sampler.

    python benchmarks/threshold_at_k.py [--num-classes 500000] [--k 20]

Classes have a planted truth, as skewed as words. The head is the best possible one, so that the figures
measure the estimate alone. Every sampler scores 100 classes a query.
"""

import argparse

import numpy as np
import tensorflow as tf
from _planted import PlantedTruth, best_head
from _tables import add_results, keep, show

import tfxc
from tfxc import samplers
from tfxc.losses.softmax_at_k import kth_largest
from tfxc.scored import Scored

DIM, SCORED = 64, 100


def thresholds(head, sampler, earlier, query, labels, k):
    """The estimate [N] of the k-th largest logit, from one draw of the sampler.

    An index may depend on the queries of earlier steps, so the sampler first sees some queries and labels.
    """
    sampler.build((head.num_classes, head.effective_dim))
    sampler.sample(step_of(head, *earlier))
    sampler.refresh(head)
    draw = sampler.sample(step_of(head, query, labels))
    ids = tf.broadcast_to(draw.ids, [len(query), draw.ids.shape[-1]])
    negatives = Scored(head.score(query, ids), draw.log_expected_count).without((ids < 0) | (ids == labels))
    positives = Scored(head.score(query, labels), draw.label_log_expected_count)
    return kth_largest(k, positives, negatives, labels >= 0)[:, 0].numpy()


def step_of(head, query, labels):
    return samplers.Step(head.effective_query(query), labels, score=lambda ids: head.score(query, ids))


def weights(own, threshold, temperature):
    """The weight [N] of each label's term."""
    return 1 / (1 + np.exp((threshold - own) / temperature))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-classes", type=int, default=500_000)
    parser.add_argument("--num-queries", type=int, default=512)
    parser.add_argument("--k", type=int, default=20)
    add_results(parser)
    args = parser.parse_args()
    truth = PlantedTruth(args.num_classes, DIM)
    head = best_head(truth)
    random = np.random.default_rng(1)
    query, labels = map(tf.constant, truth.examples(args.num_queries, random))
    earlier = [*map(tf.constant, truth.examples(args.num_queries, random))]
    exact = head.top_k(query, args.k).scores[:, -1].numpy()
    own = head.score(query, labels)[:, 0].numpy()
    proposals = {
        "Uniform": samplers.Uniform(SCORED, seed=0),
        "Unigram": samplers.Unigram(SCORED, counts=1e6 * truth.frequencies, seed=0),
        "MIDX": samplers.MIDX(SCORED, num_codewords=64, seed=0),
    }
    searched = samplers.SearchedHardNegatives(args.k, num_uniform=0, seed=0)
    rest = samplers.MIDX(SCORED - searched.num_negatives, num_codewords=64, seed=0)
    proposals[f"Mixture of MIDX and {args.k} searched"] = samplers.Mixture([rest, searched])
    loss = tfxc.losses.SoftmaxAtK(args.k)
    true_weights = weights(own, exact, loss.temperature)
    rows = [["the k-th largest itself", 0.0, float(true_weights.mean()), 0.0]]
    for name, sampler in proposals.items():
        found = thresholds(head, sampler, earlier, query, labels, args.k)
        estimates = weights(own, found, loss.temperature)
        figures = np.median(found - exact), estimates.mean(), np.abs(estimates - true_weights).mean()
        rows.append([name, *map(float, figures)])
    show(
        f"The threshold at {args.k} of {args.num_classes:,} classes",
        rows,
        ["sampler", "median error of the threshold", "mean weight", "mean error of a weight"],
    )
    keep(args.results)


if __name__ == "__main__":
    main()
