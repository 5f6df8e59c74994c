"""Whatever the sampler, the sampled softmax fits the probabilities that the labels come from.

One context, twelve classes of known probability. Each sampler answers thousands of steps; the logits that
minimise the mean of these very losses, through ``head_loss``, are compared with the truth. Where candidates
do not depend on the labels of other rows, labels come in exact proportions, which takes noise out and leaves
the estimator as it is.
"""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
from long_cases import long_after
from sampler_checks import built, head_of
from scipy.optimize import minimize

import tfxc
from tfxc import samplers
from tfxc._keras import IS_KERAS_3
from tfxc._keras.weights import tf_variable

if not IS_KERAS_3:
    pytest.skip("Keras has no part in the estimates", allow_module_level=True)

TRUTH = np.array([0.5, 0.2, 0.1, 0.06, 0.04, 0.03, 0.02, 0.016, 0.012, 0.01, 0.007, 0.005])
NUM_CLASSES = len(TRUTH)
QUERY = np.full([1, 4], 0.5, np.float32)
# Class vectors of the index: their softmax is near the truth, and not it.
VECTORS = np.random.default_rng(3).normal(size=(NUM_CLASSES, 4)) + np.log(TRUTH)[:, np.newaxis] * QUERY / 2
PAIRS = np.array([*itertools.combinations(range(NUM_CLASSES), 2)])
FIRST, SECOND = TRUTH[PAIRS.T]
# The sets of labels, and the probability of each; two are drawn one after the other.
SETS = {
    1: (np.arange(NUM_CLASSES)[:, np.newaxis], TRUTH),
    2: (PAIRS, FIRST * SECOND * (1 / (1 - FIRST) + 1 / (1 - SECOND))),
}


def share_of_labels(num_labels):
    """What the mean over an example's labels fits: the share of each class among all labels."""
    sets, probs = SETS[num_labels]
    return np.bincount(sets.ravel(), np.repeat(probs, num_labels)) / num_labels


class OneRow:
    def rows(self, example_ids):
        return np.tile(np.int32([[0, 1, 3, 2, 4, 6]]), (len(example_ids), 1))

    def collect(self, example_ids, query):
        pass


def hard_negatives(size):
    sampler = samplers.HardNegatives(2, size - 2, num_retrieved=6, seed=1)
    sampler.table = OneRow()
    return sampler


# By name: a sampler of so many draws, given the share of each class among the labels.
SAMPLERS = {
    "Uniform": lambda size, share: samplers.Uniform(size, seed=1),
    "LogUniform": lambda size, share: samplers.LogUniform(size, seed=1),
    "Unigram": lambda size, share: samplers.Unigram(size, counts=1000 * share, power=0.75, seed=1),
    "Unigram, counting": lambda size, share: samplers.Unigram(size, seed=1),
    "MIDX rq": lambda size, share: samplers.MIDX(size, num_codewords=3, seed=1),
    "MIDX pq": lambda size, share: samplers.MIDX(size, num_codewords=3, quantizer="pq", seed=1),
    "LearnedMIDX": lambda size, share: samplers.LearnedMIDX(size, num_codewords=3, quantizer="pq", seed=1),
    "Softmax": lambda size, share: samplers.Softmax(size, seed=1),
    "Sphere": lambda size, share: samplers.Sphere(size, alpha=1.0, seed=1),
    "RFF": lambda size, share: samplers.RFF(size, seed=1),
    "LSH": lambda size, share: samplers.LSH(size, num_tables=4, num_bits=2, seed=1),
    "LSH, union": lambda size, share: samplers.LSH(
        size, num_tables=4, num_bits=2, candidates="union", seed=1
    ),
    "HardNegatives": lambda size, share: hard_negatives(size),
    "SearchedHardNegatives": lambda size, share: samplers.SearchedHardNegatives(
        2, size - 2, num_cells=4, seed=1
    ),
    "InBatch": lambda size, share: samplers.InBatch(counts=1e6 * share, seed=1),
    "InBatch, counting": lambda size, share: samplers.InBatch(seed=1),
    "InBatch, draws": lambda size, share: samplers.InBatch(size, counts=1e6 * share, seed=1),
    "Mixture": lambda size, share: samplers.Mixture(
        [samplers.Uniform(size // 2, seed=1), samplers.InBatch(counts=1e6 * share, seed=2)]
    ),
}
FLAT = 4e-4  # a gradient: below it float32 has no more to say, and the KL is right to 2e-4
OF_THE_BATCH = {name for name in SAMPLERS if name.startswith(("InBatch", "Mixture"))}


def index_head():
    return head_of(VECTORS.astype(np.float32))


def labels_in_proportion(num, num_labels):
    """Labels [num, P], each set as often as its probability says."""
    sets, probs = SETS[num_labels]
    places = (np.arange(num) + 0.5) / num
    return sets[np.minimum(np.searchsorted(np.cumsum(probs), places), len(sets) - 1)]


def labels_by_chance(num, num_labels, seed):
    sets, probs = SETS[num_labels]
    return sets[np.random.default_rng(seed).choice(len(sets), size=num, p=probs / probs.sum())]


def answers(sampler, labels, batch_size):
    """``Draw`` of labels [N, P], as if the candidates of each batch were each row's own."""

    def ask(labels):
        size = tf.shape(labels)[0]
        query = tf.repeat(tf.constant(QUERY), size, axis=0)
        draw = sampler.sample(samplers.Step(query, labels, tf.range(size)))
        ids = draw.ids if draw.ids.shape.rank == 2 else tf.repeat(draw.ids[tf.newaxis], size, axis=0)
        slots = tf.zeros_like(draw.label_log_expected_count) if draw.label_slots is None else draw.label_slots
        counts = tf.broadcast_to(draw.log_expected_count, tf.shape(ids))
        return ids, counts, draw.label_log_expected_count, slots

    if batch_size == len(labels):
        return samplers.Draw(*ask(tf.constant(labels, tf.int32)))
    batches = tf.constant(labels.reshape(-1, batch_size, labels.shape[1]), tf.int32)
    kinds = tf.int32, tf.float32, tf.float32, tf.float32
    every = tf.function(lambda: tf.map_fn(ask, batches, fn_output_signature=kinds), autograph=False)()
    return samplers.Draw(*(tf.reshape(part, [len(labels), part.shape[2]]) for part in every))


class Replay(samplers.Sampler):
    def sample(self, step):
        return self.answer


@functools.cache
def loss_of_logits(estimator, num_labels):
    """A traced function of logits [L], labels and draw to the loss and its gradient."""
    head, loss = head_of(np.zeros((NUM_CLASSES, 1), np.float32)), tfxc.losses.SoftmaxCrossentropy(estimator)
    replay = built(Replay(1), NUM_CLASSES, 1)
    table, floats = tf_variable(head.table), tf.TensorSpec([None, None])
    labels_like = tf.TensorSpec([None, num_labels], tf.int32)
    of_labels = tf.TensorSpec([None, num_labels])
    draw_like = samplers.Draw(tf.TensorSpec([None, None], tf.int32), floats, of_labels, of_labels)

    @tf.function(input_signature=[tf.TensorSpec([NUM_CLASSES]), labels_like, draw_like], autograph=False)
    def function(logits, labels, draw):
        table.assign(logits[:, tf.newaxis])
        replay.answer = draw
        query = tf.ones([tf.shape(labels)[0], 1])
        with tf.GradientTape() as tape:
            value = tfxc.head_loss(head, loss, query, labels, replay)
        return value, tf.convert_to_tensor(tape.gradient(value, table))[:, 0]

    return function


def fitted(estimator, labels, draw):
    """The logits float64 [L] that these steps fit: the losses are convex, so the truth is as good a start."""
    function, start = loss_of_logits(estimator, labels.shape[1]), np.log(share_of_labels(labels.shape[1]))
    given = tf.constant(labels, tf.int32), draw

    def value_and_gradient(logits):
        value, gradient = function(tf.constant(logits, tf.float32), *given)
        return float(value), gradient.numpy().astype(np.float64)

    return minimize(value_and_gradient, start, jac=True, method="BFGS", options={"gtol": FLAT}).x


# What a sampler answers is seen best by "nce", which takes the count of a draw, of a label and of a label's
# slots, and is not blind to a common factor. Each of the others takes an answer of each form: plain, with
# empty slots, with certain ones, with a label's own, and a mixture's.
OF_LABELS = {"Unigram, counting", "HardNegatives", "SearchedHardNegatives", *OF_THE_BATCH}
FORMS = "HardNegatives", "Uniform", "InBatch, counting", "LSH, union", "Mixture"
CELLS = [(name, "nce", 2) for name in SAMPLERS]
CELLS += long_after(0, *[(name, "nce", 1) for name in SAMPLERS if name in {"Uniform", *OF_LABELS}])
OTHERS = itertools.product(reversed(SETS), FORMS, ("ranking", "partition"))
CELLS += long_after(6, *[(name, estimator, num_labels) for num_labels, name, estimator in OTHERS])


@pytest.mark.traced
@pytest.mark.parametrize(("name", "estimator", "num_labels"), CELLS)
def test_the_truth_is_fitted(name, estimator, num_labels):
    # Draws from a batch's labels are no better than the labels: of these it takes more, and fewer each.
    noisy = name in ("InBatch, draws", "Mixture")
    size = 16 if estimator != "partition" else 128
    truth = share_of_labels(num_labels)
    sampler = built(SAMPLERS[name](size, truth), NUM_CLASSES, QUERY.shape[1])
    if "counting" in name:
        answers(sampler, labels_by_chance(8000, num_labels, seed=9), batch_size=100)
    sampler.refresh(index_head())
    if name in OF_THE_BATCH:
        labels = labels_by_chance(4096 if noisy else 1024, num_labels, seed=1)
        batch_size = size // num_labels
    else:
        batch_size = 1000 if estimator == "partition" else 10_000 if name == "LSH, union" else 3000
        labels = labels_in_proportion(batch_size, num_labels)
    logits = fitted(estimator, labels, answers(sampler, labels, batch_size))
    log_total = np.log(np.exp(logits).sum())
    assert np.sum(truth * (np.log(truth) - logits + log_total)) <= 0.003
    if estimator == "nce":  # which fits the probabilities themselves
        assert abs(log_total) < 0.03
