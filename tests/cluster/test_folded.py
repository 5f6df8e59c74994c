"""Losses of candidates that stay where their classes lie; here all shards lie on this machine."""

import numpy as np
import pytest
import tensorflow as tf
from long_cases import long_after
from sampler_checks import built, queries
from shards import in_shards
from test_sharded_sampler import DIM, NUM_CLASSES, SAMPLERS, STARTS, made, table

import tfxc
from tfxc._keras.weights import tf_variable
from tfxc.cluster.folded import folded_losses, is_folded
from tfxc.ids import hits
from tfxc.losses import GBCE, BinaryCrossentropy, SoftmaxAtK, SoftmaxCrossentropy, SquaredHinge
from tfxc.samplers import Step
from tfxc.scored import Scored


def sharded_head(starts=STARTS):
    head = built(tfxc.layers.DenseHead(NUM_CLASSES, use_bias=True), None, DIM - 1)
    tf_variable(head.table).assign(table()[:, :-1])
    tf_variable(head.bias).assign(table()[:, -1])
    return in_shards(head, ["table", "bias"], starts)


def losses_of_both(kind, loss, labels, scale=1):
    """Losses, and gradients by queries and by the shards' tables: folded by shards, and of all candidates."""
    head = sharded_head()
    query, labels = tf.constant(scale * queries(len(labels), DIM - 1)), tf.constant(labels)
    weights = head.trainable_variables
    assert is_folded(head, loss, made(kind, head=head))

    def folded(sampler):
        return folded_losses(head, loss, query, labels, sampler)

    def together(sampler):
        step = Step(tf.stop_gradient(head.effective_query(query)), labels)
        given = sampler.prepare(step)
        sampler.observe(step)
        ids, log_expected_count = sampler.draw(given, sampler.next_seed())
        positives, negatives = head._score_both(query, labels, ids)
        positives = Scored(positives, sampler.log_expected_count(given, labels))
        return loss.sampled(positives, Scored(negatives, log_expected_count), labels >= 0, hits(ids, labels))

    for losses in (folded, together):
        sampler = made(kind, head=head)
        with tf.GradientTape() as tape:
            tape.watch(query)
            found = losses(sampler)
        gradients = tape.gradient(found, [query, *map(tf_variable, weights)])
        yield [found, *map(tf.convert_to_tensor, gradients)]


LABELS = {"one": [[3], [7], [39]], "several": [[3, 8, -1], [-1, -1, -1], [30, 0, 29]]}
LOSSES = [SoftmaxCrossentropy(name) for name in ("ranking", "partition", "nce")]
LOSSES += [SoftmaxCrossentropy("partition", decoupled=True), BinaryCrossentropy(), SquaredHinge()]


# Every loss with labels in several shards and in one; and the draws of every kind, folded in two ways.
KINDS = [kind for kind in SAMPLERS if kind != "midx"]
FOLDS = [("midx", loss, "several") for loss in LOSSES] + [(kind, LOSSES[0], "several") for kind in KINDS]
LONG = [("midx", loss, "one") for loss in LOSSES]
LONG += [(kind, BinaryCrossentropy(), "several") for kind in KINDS]


@pytest.mark.parametrize(
    ("kind", "loss", "labels"),
    long_after(len(FOLDS), *FOLDS, *LONG),
    ids=lambda part: getattr(part, "estimator", getattr(part, "name", part)),
)
def test_folds_of_shards_make_the_loss_of_all_candidates(kind, loss, labels):
    for got, want in zip(*losses_of_both(kind, loss, LABELS[labels]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "loss", long_after(1, *LOSSES), ids=lambda loss: getattr(loss, "estimator", loss.name)
)
def test_so_they_do_where_a_shard_has_hardly_a_chance(loss):
    for got, want in zip(*losses_of_both("midx", loss, LABELS["one"], scale=200), strict=True):
        assert np.isfinite(want).all()
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


class Own(BinaryCrossentropy):
    over_candidates = None

    def sampled(self, positives, negatives, is_label, hits, label_slots=None):
        return 2 * super().sampled(positives, negatives, is_label, hits)


@pytest.mark.parametrize(
    "loss",
    [SoftmaxCrossentropy(decoupled=True), SoftmaxAtK(), GBCE(), Own()],
    ids=["decoupled", "at k", "gbce", "own"],
)
def test_a_loss_that_wants_all_candidates_gets_them_together(loss):
    head = sharded_head()
    assert not is_folded(head, loss, made("uniform", head=head))


def test_shards_that_lie_otherwise_do_not_draw():
    sampler, loss = made("midx", head=sharded_head()), SoftmaxCrossentropy()
    assert not is_folded(sharded_head([0, 8, 30]), loss, sampler)
    assert is_folded(sharded_head(), loss, sampler)
