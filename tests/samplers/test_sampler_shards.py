"""Samplers that are cut into shards: the distribution of one machine, and losses folded where classes lie."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from sampler_checks import all_probs, head_of, p_value, queries
from tensorflow.python.distribute.sharded_variable import ShardedVariable

import tfxc
from tfxc._keras.weights import tf_variable
from tfxc.ids import hits
from tfxc.layers.head_shards import HeadShards
from tfxc.losses import GBCE, BinaryCrossentropy, SoftmaxAtK, SoftmaxCrossentropy, SquaredHinge
from tfxc.samplers import MIDX, Step, Uniform, Unigram, sampler, unigram
from tfxc.scored import Scored

NUM_CLASSES, DIM, STARTS = 40, 6, [0, 7, 30]
DEVICE = tf.zeros([]).device


class Cut(ShardedVariable):
    """As parameter servers hold a table, but on this machine."""

    value = property(lambda self: self)  # as Keras 3 would wrap it


@pytest.fixture(autouse=True)
def rows_in_shards(monkeypatch):
    """Has samplers make what has a row for each class in shards."""
    add_weight = sampler.add_weight

    def add(layer, name, shape, initializer="zeros", dtype="float32", **options):
        if name not in ("cell", "class_weight", "log_probs"):
            return add_weight(layer, name, shape, initializer, dtype, **options)
        parts = np.split(np.array(initializer(shape, dtype)), STARTS[1:])
        return Cut([tf.Variable(part, trainable=False) for part in parts])

    monkeypatch.setattr(sampler, "add_weight", add)
    monkeypatch.setattr(unigram, "with_servers", lambda: True)


SAMPLERS = {
    "uniform": Uniform,
    "unigram": functools.partial(Unigram, counts=np.arange(NUM_CLASSES) % 5),
    "counted": Unigram,
    "midx": functools.partial(MIDX, num_codewords=3),
}


def table():
    random = np.random.default_rng(0)
    centres = random.normal(size=(4, DIM))[random.integers(4, size=NUM_CLASSES)]
    return (centres + 0.3 * random.normal(size=(NUM_CLASSES, DIM))).astype(np.float32)


def make(kind, num_negatives=20, seed=1, **options):
    return SAMPLERS[kind](num_negatives, seed=seed, **options)


def built(kind, *args, **options):
    sampler = make(kind, *args, **options)
    sampler.build((NUM_CLASSES, DIM))
    sampler.sample(Step(tf.constant(queries(8, DIM, seed=5)), tf.constant([[3]] * 7 + [[-1]])))
    sampler.refresh(head_of(table()))
    return sampler


def step(num_queries=5):
    return Step(tf.constant(queries(num_queries, DIM)), tf.zeros([num_queries, 0], tf.int32))


@pytest.fixture(params=SAMPLERS)
def kind(request):
    return request.param


def test_the_distribution_is_that_of_one_machine(kind, monkeypatch):
    query, cut = queries(5, DIM), built(kind)
    monkeypatch.undo()
    whole = built(kind)
    assert not whole.parts and len(cut.parts) == (0 if kind == "uniform" else 3)
    np.testing.assert_allclose(all_probs(cut, query), all_probs(whole, query), rtol=2e-5)
    np.testing.assert_allclose(all_probs(cut, query).sum(1), 1, rtol=1e-5)
    if kind == "midx":
        for moments in zip(cut.queries.moments(), whole.queries.moments(), strict=True):
            np.testing.assert_allclose(*moments, rtol=1e-5)


def test_draws_follow_it(kind):
    sampler = built(kind, 4000)
    query = queries(3, DIM)
    draw = sampler.shards_at(STARTS, [DEVICE] * 3)
    ids, log_expected_count = draw.draw(
        draw.prepare(Step(tf.constant(query), tf.zeros([3, 0], tf.int32))), [7, 8]
    )
    probs = all_probs(sampler, query)
    for row, expected, count in zip(ids.numpy(), probs, log_expected_count.numpy(), strict=True):
        assert p_value(row, expected) > 1e-3
        np.testing.assert_allclose(np.exp(count), 4000 * expected[row], rtol=2e-5)


def test_one_set_of_draws_for_all_queries():
    draw = built("midx", shared=True).sample(step())
    assert draw.ids.shape == draw.log_expected_count.shape == (20,) and draw.ids.dtype == tf.int32


def losses_of_both(kind, loss, labels, scale=1):
    """Losses, and gradients by queries and by the shards' tables: folded by shards, and of all candidates."""
    sampler = built(kind)
    heads = [tfxc.layers.DenseHead(size, use_bias=True) for size in np.diff([*STARTS, NUM_CLASSES])]
    for head, rows in zip(heads, np.split(table(), STARTS[1:]), strict=True):
        head.build((None, DIM - 1))
        tf_variable(head.table).assign(rows[:, :-1])
        tf_variable(head.bias).assign(rows[:, -1])
    shards, query = HeadShards(heads, STARTS), tf.constant(scale * queries(len(labels), DIM - 1))
    labels, weights = tf.constant(labels), [weight for head in heads for weight in head.trainable_variables]
    draws, seed = shards.draws_of(sampler, loss), [3, 4]
    assert draws is not None

    def folded():
        return shards.sampled_losses(query, labels, loss, draws, seed)

    def together():
        asked = draws.prepare(Step(heads[0].effective_query(query), labels))
        ids, log_expected_count = draws.draw(asked, seed)
        positives, negatives = shards._score_both(query, labels, ids)
        positives = Scored(positives, draws.log_expected_count(asked, labels))
        return loss.sampled(positives, Scored(negatives, log_expected_count), labels >= 0, hits(ids, labels))

    for losses in (folded, together):
        with tf.GradientTape() as tape:
            tape.watch(query)
            found = losses()
        gradients = tape.gradient(found, [query, *map(tf_variable, weights)])
        yield [found, *map(tf.convert_to_tensor, gradients)]


LABELS = {"one": [[3], [7], [39]], "several": [[3, 8, -1], [-1, -1, -1], [30, 0, 29]]}
LOSSES = [SoftmaxCrossentropy(name) for name in ("ranking", "partition", "nce")]
LOSSES += [SoftmaxCrossentropy("partition", decoupled=True), BinaryCrossentropy(), SquaredHinge()]


# Every loss with labels in one shard and in several; and the draws of every kind, folded in two ways.
FOLDS = [("midx", loss, labels) for loss in LOSSES for labels in LABELS]
FOLDS += [
    (kind, loss, "several")
    for kind in SAMPLERS
    for loss in (SoftmaxCrossentropy("ranking"), BinaryCrossentropy())
    if kind != "midx"
]


@pytest.mark.parametrize(
    ("kind", "loss", "labels"),
    FOLDS,
    ids=lambda part: getattr(part, "estimator", getattr(part, "name", part)),
)
def test_folds_of_shards_make_the_loss_of_all_candidates(kind, loss, labels):
    for got, want in zip(*losses_of_both(kind, loss, LABELS[labels]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: getattr(loss, "estimator", loss.name))
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
    head = tfxc.layers.DenseHead(NUM_CLASSES)
    head.build((None, DIM))
    assert HeadShards([head], [0]).draws_of(built("uniform"), loss) is None


def test_a_batch_without_a_query(kind):
    sampler = built(kind)
    draw = sampler.shards_at(STARTS, [DEVICE] * 3)
    asked = draw.prepare(step(0))
    assert draw.draw(asked, [1, 2])[0].shape == (0, 20)
    assert draw.draws_of(1, asked, draw.deal(asked, [1, 2])[1])[0].shape == (0, 0)


def test_shards_that_lie_otherwise_do_not_draw():
    sampler = built("midx")
    assert sampler.shards_at([0, 8, 30], [DEVICE] * 3) is None
    assert sampler.shards_at(STARTS, ["/job:ps/task:0"] * 3) is None
