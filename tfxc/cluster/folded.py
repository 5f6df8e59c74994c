"""A training step whose candidates stay where their classes lie."""

import tensorflow as tf

from tfxc.cluster.sharded_head import ShardedHead
from tfxc.cluster.sharded_sampler import ShardedSampler
from tfxc.ids import hits
from tfxc.samplers.step import Step
from tfxc.scored import Scored


def is_folded(head, loss, sampler) -> bool:
    """Whether each server can draw, score and fold candidates of its own.

    Else candidates come together: if head or sampler are not cut into the same shards, if all queries share
    one set of draws, or if the loss cannot merge what the servers make of theirs.
    """
    if not isinstance(head, ShardedHead) or not isinstance(sampler, ShardedSampler) or sampler.shared:
        return False
    is_merged = loss.over_candidates is not None and loss.over_candidates.merge is not None
    places = [[(shard.start, shard.device) for shard in own.shards] for own in (head, sampler)]
    return is_merged and places[0] == places[1]


def folded_losses(head, loss, query, labels, sampler) -> tf.Tensor:
    """Losses [N] of queries [N, D] over candidates that stay where each server draws and scores them."""
    steps = []
    for part, shard in zip(head.parts, head.shards, strict=True):
        with tf.device(shard.device):
            own = part.effective_query(tf.stop_gradient(query))
            steps.append(Step(own, labels, approximate=head.approximate))
    asked = sampler.ask_parts(steps)
    sampler.observe(steps[0])
    shares = sampler.deal(asked, sampler.next_seed())

    def question(number, part):
        def answer(query, labels, *share):
            ids, log_expected_count, given = sampler.draw_of(number, asked, *share)
            positives, candidates = part._score_both(query, labels, ids)
            candidates = Scored(candidates, tf.stop_gradient(log_expected_count)).without(ids < 0)
            folded = loss.over_candidates.of(candidates, hits(ids, labels))
            return [folded, positives, sampler.count_of(number, asked, given, labels)]

        return answer, [query, head.shards[number].own(labels), *shares[number]]

    folded, positives, log_expected_counts = zip(*head.ask(question), strict=True)
    positives = Scored(tf.add_n(positives), tf.stop_gradient(tf.add_n(log_expected_counts)))
    return loss.with_candidates(positives, loss.over_candidates.merge(list(folded)), labels >= 0)
