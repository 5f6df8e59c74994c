import numpy as np
import pytest
import tensorflow as tf
from long_cases import long_after
from loss_checks import (
    CASES,
    check_over_classes,
    logits_for,
    no_hits,
    positives_of,
    sampled_losses,
    sampled_statistics,
    softmax,
    softmax_reference,
    value_and_gradient,
)
from memory_checks import all_shapes
from sampler_checks import built, log_expected_count, refreshed

from tfxc._keras import keras
from tfxc.ids import hits
from tfxc.losses import SoftmaxCrossentropy
from tfxc.samplers import MIDX, InBatch, LogUniform, Uniform
from tfxc.scored import MASKED_LOGIT, Scored

LABELS = pytest.mark.parametrize("labels", CASES.values(), ids=CASES)


@LABELS
@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_value_and_gradient(labels, scale):
    check_over_classes(SoftmaxCrossentropy(), softmax_reference, labels, scale)


def test_labels_of_rank_one_and_one_class():
    logits = logits_for(3, 4)
    want, _ = softmax_reference(logits, [[2], [0], [3]])
    np.testing.assert_allclose(SoftmaxCrossentropy()([2, 0, 3], logits), want.mean(), rtol=1e-6)
    assert float(SoftmaxCrossentropy()([0], [[17.0]])) == 0


@pytest.mark.parametrize("kind", ["ragged", "sparse", "int16"])
def test_every_form_of_labels(kind):
    rows = [[1, 3], [], [2]]
    labels = tf.ragged.constant(rows, tf.int64)
    if kind == "sparse":
        labels = labels.to_sparse()
    elif kind == "int16":
        labels = tf.cast(labels.to_tensor(-1), tf.int16)
    want, _ = softmax_reference(logits_for(3, 4), rows)
    np.testing.assert_allclose(SoftmaxCrossentropy()(labels, logits_for(3, 4)), want.mean(), rtol=1e-6)


def test_reductions_and_weights():
    logits, labels, weights = logits_for(5, 7), CASES["padded"], np.array([1.0, 5, 0, 2, 0.5])
    want, _ = softmax_reference(logits, labels)

    def reduced(reduction, **options):
        return SoftmaxCrossentropy(reduction=reduction)(np.array(labels), logits, **options)

    np.testing.assert_allclose(reduced("none"), want, rtol=1e-5)
    np.testing.assert_allclose(reduced("sum"), want.sum(), rtol=1e-5)
    np.testing.assert_allclose(reduced("sum", sample_weight=weights), (weights * want).sum(), rtol=1e-5)
    mean = reduced("sum_over_batch_size", sample_weight=weights[:, np.newaxis])
    np.testing.assert_allclose(mean, (weights * want).sum() / 5, rtol=1e-5)


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "none"])
def test_only_the_result_is_of_the_narrow_dtype(reduction):
    num_examples = weight = 70_000
    loss = SoftmaxCrossentropy(reduction=reduction, dtype="float16")
    labels, logits = tf.zeros([num_examples], tf.int32), tf.tile([[7.0, 0.0]], [num_examples, 1])
    value = loss(labels, logits, sample_weight=tf.fill([num_examples], float(weight)))
    assert value.dtype == tf.float16
    np.testing.assert_allclose(value, tf.fill(tf.shape(value), weight * np.log1p(np.exp(-7))), rtol=2e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"estimator": "blackout"}, "estimator must be one of"),
        ({"estimator": "nce", "decoupled": True}, '="nce" and decoupled do not go together'),
        ({"estimator": "nce", "label_smoothing": 0.1}, '="nce" and label_smoothing do not go together'),
        ({"decoupled": True, "label_smoothing": 0.1}, "decoupled and label_smoothing do not go together"),
        ({"filter_below": 0.1, "label_smoothing": 0.1}, "filter_below and label_smoothing do not go"),
        ({"label_smoothing": 1}, r"label_smoothing must be in \[0, 1\), but got 1"),
        ({"decoupled": True, "filter_below": 0.01}, "decoupled and filter_below do not go together"),
        *(({"filter_below": bad}, r"filter_below .* in \(0, 1\)") for bad in (0, 1, -0.5, 2**12, np.nan)),
        *(({"filter_below": bad}, "filter_below must be a number") for bad in (True, "low")),
        ({"reduction": "mean_with_sample_weight"}, "mean_with_sample_weight.* is not supported"),
    ],
)
def test_arguments_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        SoftmaxCrossentropy(**options)


def test_bad_input():
    loss, logits = SoftmaxCrossentropy(), logits_for(2, 4)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"outside \[0, 4\)"):
        loss([0, 4], logits)
    with pytest.raises(ValueError, match="integer class ids, but have dtype float32"):
        loss(np.eye(4, dtype=np.float32)[:2], logits)
    assert np.isnan(loss([0], [[np.nan, 1.0]]))
    assert float(loss(tf.zeros([0], tf.int32), tf.zeros([0, 4]))) == 0


@LABELS
def test_smoothed_labels(labels):
    share = 0.3

    def reference(logits, labels):
        every = [range(7) if max(row) >= 0 else [] for row in labels]
        parts = zip(softmax_reference(logits, labels), softmax_reference(logits, every), strict=True)
        return [(1 - share) * own + share * of_all for own, of_all in parts]

    check_over_classes(SoftmaxCrossentropy(label_smoothing=share), reference, labels, 20.0, atol=0)


def test_smoothed_as_keras_smooths():
    logits, labels = logits_for(5, 7), np.array([0, 6, 3, 3, 1])
    want = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.2)
    got = SoftmaxCrossentropy(label_smoothing=0.2)(labels, logits)
    np.testing.assert_allclose(got, want(np.eye(7, dtype=np.float32)[labels], logits), rtol=1e-5)


@pytest.mark.parametrize("estimator", ["ranking", "partition"])
@pytest.mark.parametrize("labels", [[3], [1, 5], [-1, -1]])
def test_draws_estimate_the_smoothing_without_bias(estimator, labels):
    logits, query = logits_for(1, 9)[0], np.array([0.5, -1.0], np.float32)
    sampler = built(LogUniform(4, seed=3), 9, 2)

    def smoothed(share):
        sampler.counter.assign(0)  # the same draws
        loss = SoftmaxCrossentropy(estimator, label_smoothing=share)
        return sampled_statistics(loss, sampler, query, logits, np.array(labels, np.int32), copies=20_000)

    (plain, _), (mean, error) = smoothed(0.0), smoothed(0.5)
    positives = positives_of(labels)
    weights = np.zeros(9)
    weights[positives] = 1 / max(len(positives), 1)
    weights -= bool(positives) / 9
    want = 0.5 * np.concatenate([[weights @ logits], weights])
    assert (np.abs(mean - plain - want) <= 5 * error + 1e-6).all()


def test_the_filter_changes_no_loss_of_given_logits():
    check_over_classes(SoftmaxCrossentropy(filter_below=0.5), softmax_reference, CASES["one"])


def by_hand(estimator, hits, label_slots=None, **options):
    positives = Scored(tf.constant([[1.0, 2.0]]), tf.math.log([[0.5, 0.25]]))
    negatives = Scored(tf.constant([[0.5, 2.0, MASKED_LOGIT, 0.5]]), tf.math.log([[0.1, 0.25, 0.5, 0.1]]))
    loss = SoftmaxCrossentropy(estimator, **options)
    is_label, hits = tf.constant([[True, True]]), tf.constant([hits])
    return float(loss.sampled(positives, negatives, is_label, hits, label_slots)[0])


OWN, DRAWN = np.exp([1.0, 2.0]) / [0.5, 0.25], 2 * np.exp(0.5) / 0.1


@pytest.mark.parametrize("hits", [[-1, -1, -1, -1], [-1, 1, -1, -1]], ids=["no hit", "one hit"])
def test_estimators_by_hand(hits):
    """Ranking and nce take a draw that hits a positive for a draw like any other; partition leaves it out."""
    every = DRAWN + OWN[1]
    np.testing.assert_allclose(by_hand("ranking", hits), np.log((OWN + every) / OWN).mean(), rtol=1e-6)
    noise = 2 * np.log1p(np.exp(0.5) / 0.1) + np.log1p(OWN[1])
    np.testing.assert_allclose(by_hand("nce", hits), np.log1p(1 / OWN).mean() + noise, rtol=1e-6)
    total = np.exp(1) + np.exp(2) + (DRAWN if max(hits) >= 0 else every)
    np.testing.assert_allclose(by_hand("partition", hits), np.log(total) - 1.5, rtol=1e-6)


@pytest.mark.parametrize("slots", [[0.0, 1.0], [2.0, 1.0]], ids=str)
def test_positives_that_were_passed_over_by_hand(slots):
    """To the other positives, and to nce, they are the candidates that they would have been.

    A positive stands in one of its own slots.
    """
    none, slots = [-1, -1, -1, -1], np.array(slots)
    two_slots = tf.constant([slots], tf.float32)
    every = DRAWN + OWN[1]
    others, further = (slots * OWN)[::-1], np.maximum(slots - 1, 0) * OWN
    want = np.log((OWN + every + others + further) / OWN).mean()
    np.testing.assert_allclose(by_hand("ranking", none, two_slots), want, rtol=1e-6)
    want = np.log((OWN + DRAWN + [0, OWN[1]] + further) / OWN).mean()
    hit = by_hand("ranking", [-1, 1, -1, -1], two_slots, decoupled=True)
    np.testing.assert_allclose(hit, want, rtol=1e-6)
    noise = 2 * np.log1p(np.exp(0.5) / 0.1) + np.log1p(OWN[1]) + np.sum(slots * np.log1p(OWN))
    np.testing.assert_allclose(by_hand("nce", none, two_slots), np.log1p(1 / OWN).mean() + noise, rtol=1e-6)
    for decoupled in (False, True):
        plain, told = (by_hand("partition", none, given, decoupled=decoupled) for given in (None, two_slots))
        assert plain == told


def test_gradients_with_positives_that_were_passed_over():
    """Several labels, padding, slots of 0 and more, and infinite logits, by the definition in float64."""
    random = np.random.default_rng(0)
    logits = (5 * random.normal(size=(64, 8))).astype(np.float32)
    logits[random.random(logits.shape) < 0.1] = -np.inf
    logits[:8, 5:] = MASKED_LOGIT
    is_label = random.random((64, 5)) < 0.7
    slots = np.where(is_label, random.integers(0, 3, is_label.shape), 0).astype(np.float32)
    loss = SoftmaxCrossentropy()

    def sampled(logits):
        positives, negatives = (Scored(part, tf.zeros([1])) for part in (logits[:, :5], logits[:, 5:]))
        return loss.sampled(positives, negatives, tf.constant(is_label), no_hits(negatives), slots)

    def by_definition(logits):
        times = slots[:, np.newaxis] + np.eye(5) * np.where(slots > 0, 0, 1)[:, np.newaxis]
        weights = tf.exp(logits)
        total = tf.reduce_sum(times * weights[:, np.newaxis, :5], 2)
        total += tf.reduce_sum(weights[:, 5:], 1)[:, np.newaxis]
        terms = tf.where(is_label, tf.math.log(total) - logits[:, :5], 0.0)
        return tf.math.divide_no_nan(tf.reduce_sum(terms, 1), is_label.sum(1))

    got = value_and_gradient(sampled, logits)
    want = value_and_gradient(by_definition, logits.astype(np.float64))
    for one, two in zip(got, want, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5)


@pytest.mark.traced
@pytest.mark.parametrize("decoupled", [False, True])
def test_many_labels_take_little_memory(decoupled):
    num_examples, num_labels, num_candidates = 6, 400, 50
    loss = SoftmaxCrossentropy(decoupled=decoupled)

    def gradient(logits, negatives, which, slots):
        positives, negatives = (Scored(part, tf.zeros([1])) for part in (logits, negatives))
        losses = loss.sampled(positives, negatives, tf.ones_like(logits, tf.bool), which, slots)
        return tf.gradients(losses, logits)

    shape, wide = (num_examples, num_candidates), (num_examples, num_labels)
    given = tf.zeros(wide), tf.zeros(shape), tf.zeros(shape, tf.int32), tf.ones(wide)
    shapes = all_shapes(tf.function(gradient).get_concrete_function(*given))
    assert all(part.is_fully_defined() for part in shapes)
    assert max(part.num_elements() for part in shapes) <= num_examples * (num_labels + 1)


def test_decoupled_estimators_by_hand():
    """A positive's term has the draws of the positive itself, and no other positive."""
    hits = [-1, 1, -1, -1]
    want = np.log(([1, 2] * OWN + DRAWN) / OWN).mean()
    np.testing.assert_allclose(by_hand("ranking", hits, decoupled=True), want, rtol=1e-6)
    own = np.exp([1.0, 2.0])
    want = np.log((own + DRAWN) / own).mean()
    np.testing.assert_allclose(by_hand("partition", hits, decoupled=True), want, rtol=1e-6)


@pytest.mark.parametrize("name", ["ranking", "nce"])
def test_estimators_are_tensorflows(name):
    random = np.random.default_rng(0)
    table, query = (tf.constant(random.normal(size=(n, 4)), tf.float32) for n in (12, 5))
    labels, ids = tf.constant([[3], [0], [7], [7], [11]]), tf.constant([7, 2, 2, 5, 0])
    sampler = built(LogUniform(5, shared=True, seed=0), 12, 4)
    counted, own_count = (log_expected_count(sampler, query, labels, asked) for asked in (ids, labels))
    theirs = tf.nn.nce_loss if name == "nce" else tf.nn.sampled_softmax_loss
    options = {"sampled_values": (ids, tf.exp(own_count), tf.exp(counted)), "remove_accidental_hits": False}
    want = theirs(table, tf.zeros([12]), labels, query, 5, 12, **options)
    logits = tf.matmul(query, table, transpose_b=True)
    positives = Scored(tf.gather(logits, labels, batch_dims=1), own_count)
    negatives = Scored(tf.gather(logits, ids, axis=1), counted)
    got = SoftmaxCrossentropy(name).sampled(positives, negatives, labels >= 0, hits(ids, labels))
    np.testing.assert_allclose(got, want, rtol=1e-4)


def decoupled_reference(logits, labels):
    """As ``softmax_reference``, each term without the example's other positives."""
    losses, gradients = np.zeros(len(logits)), np.zeros(logits.shape)
    for n, row in enumerate(labels):
        positives = positives_of(row)
        for label in positives:
            rivals = [i for i in range(logits.shape[1]) if i == label or i not in positives]
            probs = softmax(logits[n][rivals])
            losses[n] -= np.log(probs[rivals.index(label)]) / len(positives)
            gradients[n, rivals] += probs / len(positives)
            gradients[n, label] -= 1 / len(positives)
    return losses, gradients


@LABELS
def test_decoupled_over_all_classes(labels):
    check_over_classes(SoftmaxCrossentropy(decoupled=True), decoupled_reference, labels, rtol=1e-4)


def decoupled_of_every_class(logits, labels):
    """The losses and gradients of "partition" where each class is drawn once."""
    loss, labels = SoftmaxCrossentropy("partition", decoupled=True), tf.constant(labels, tf.int32)
    every = tf.repeat(tf.range(logits.shape[1])[tf.newaxis], len(logits), axis=0)

    def sampled(logits):
        positives = Scored(tf.gather(logits, labels, batch_dims=1), tf.zeros([1]))
        return loss.sampled(positives, Scored(logits, tf.zeros([1])), labels >= 0, hits(every, labels))

    return value_and_gradient(sampled, logits)


@pytest.mark.parametrize("labels", [[4], [1, 4, 6], [0, 1, 2, 3, 4, 5, 6]])
def test_decoupled_over_candidates_is_that_over_all_classes(labels):
    logits, labels = logits_for(5, 7), np.array([labels] * 5)
    want = value_and_gradient(lambda x: SoftmaxCrossentropy(decoupled=True).call(labels, x), logits)
    for one, two in zip(decoupled_of_every_class(logits, labels), want, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("largest", [12.0, 30.0, 1000.0])
def test_decoupled_stays_finite_where_a_positive_dominates(largest):
    """The gradient of the positive that lags behind has its sign, whatever float32 leaves of the rest."""
    logits, labels = np.array([[0.0, largest, 0.0, -1.0]], np.float32), np.array([[0, 1]])
    for loss in (SoftmaxCrossentropy(decoupled=True), SoftmaxCrossentropy()):
        losses, gradients = value_and_gradient(lambda x, loss=loss: loss.call(labels, x), logits)
        assert np.isfinite(losses).all() and np.isfinite(gradients).all() and gradients[0, 0] < 0
        if largest < 15 and loss.decoupled:  # then the rest is not beyond the resolution of float32
            want, want_gradients = decoupled_reference(logits.astype(np.float64), labels)
            np.testing.assert_allclose(losses, want, rtol=2e-2)
            np.testing.assert_allclose(gradients, want_gradients, atol=2e-2)


@pytest.mark.parametrize("gap", [9.0, 10.0, 12.0, 15.0, 20.0, 40.0])
def test_decoupled_a_positive_that_lags_behind_pushes_no_other_down(gap):
    logits, labels = np.array([[gap, 0.0, -8.0, -8.0]], np.float32), np.array([[0, 1]])
    loss = SoftmaxCrossentropy(decoupled=True)
    _, gradients = value_and_gradient(lambda x: loss.call(labels, x), logits)
    _, want = decoupled_reference(logits.astype(np.float64), labels)
    assert abs(gradients[0, 0]) < 1e-4 and gradients[0, 1] <= 0
    if gap < 13:
        np.testing.assert_allclose(gradients, want, atol=1e-2)


def test_decoupled_candidates_stay_exact_where_a_positive_dominates():
    logits, labels = np.array([[0.0, 1000.0, 0.0, -1.0]], np.float32), [[0, 1]]
    want, want_gradients = decoupled_reference(logits.astype(np.float64), labels)
    losses, gradients = decoupled_of_every_class(logits, labels)
    np.testing.assert_allclose(losses, want, rtol=1e-5)
    np.testing.assert_allclose(gradients, want_gradients, atol=1e-5)


@pytest.mark.parametrize("estimator", ["ranking", "partition"])
def test_nothing_but_empty_slots(estimator):
    loss, is_label = SoftmaxCrossentropy(estimator), tf.constant([[True], [False]])
    negatives = Scored(tf.fill([2, 3], MASKED_LOGIT), tf.zeros([3]))

    def losses(logits):
        return loss.sampled(Scored(logits, tf.zeros([2, 1])), negatives, is_label, no_hits(negatives))

    values, gradients = value_and_gradient(losses, logits_for(2, 1))
    np.testing.assert_allclose(values, [0, 0], atol=1e-6)
    np.testing.assert_allclose(gradients, 0, atol=1e-6)


@pytest.mark.parametrize("estimator", ["ranking", "partition"])
def test_an_infinite_logit_is_an_infinite_loss_and_never_nan(estimator):
    logits = tf.constant([[float("inf"), 0.0], [1.0, 0.0]])
    negatives, positives = Scored(logits, tf.zeros([2])), Scored(tf.zeros([2, 1]), tf.zeros([2, 1]))
    is_label = tf.constant([[True], [True]])
    losses = SoftmaxCrossentropy(estimator).sampled(positives, negatives, is_label, no_hits(negatives))
    assert float(losses[0]) == float("inf") and np.isfinite(losses[1])


@pytest.mark.parametrize("estimator", ["ranking", "partition", "nce"])
def test_a_batch_without_candidates(estimator):
    sampler = built(InBatch(None, counts=np.ones(4)), 4, 2)
    loss, labels = SoftmaxCrossentropy(estimator=estimator), tf.constant([[-1], [-1]])
    losses, gradients = value_and_gradient(
        lambda logits: sampled_losses(loss, sampler, tf.zeros([2, 2]), logits, labels), logits_for(2, 4)
    )
    np.testing.assert_array_equal(losses, [0, 0])
    np.testing.assert_array_equal(gradients, np.zeros((2, 4)))


def test_a_positive_that_is_never_drawn_trains_uncorrected():
    never, certain = (Scored(tf.constant([[1.0]]), tf.constant([[count]])) for count in (float("-inf"), 0.0))
    negatives = Scored(tf.constant([[0.5]]), tf.constant([[0.0]]))
    given = negatives, tf.constant([[True]]), no_hits(negatives)
    losses = [SoftmaxCrossentropy().sampled(own, *given) for own in (never, certain)]
    np.testing.assert_allclose(losses, np.log1p(np.exp(-0.5)), rtol=1e-6)


def test_an_empty_slot_of_low_logits_has_no_part_in_the_decoupled_gradient():
    loss, labels, logits = SoftmaxCrossentropy(decoupled=True), np.array([[0, -1]]), np.float32([[0, -1, -2]])
    both = (value_and_gradient(lambda x: loss.call(labels, x), own)[1] for own in (logits - 100, logits))
    np.testing.assert_allclose(*both, atol=1e-5)


def midx_of(logits, num_negatives):
    """A MIDX over one-dimensional class vectors: its query is the number 1, its logits these, quantised."""
    return refreshed(MIDX(num_negatives, num_codewords=2, seed=1), logits[:, np.newaxis])


@pytest.mark.parametrize("proposal", long_after(1, "midx", "uniform"))
def test_partition_tends_to_the_full_softmax_as_one_over_samples(proposal):
    logits, labels = logits_for(1, 12, scale=1.5)[0], np.array([4, 7], np.int32)
    want = np.append(*softmax_reference(logits[np.newaxis], [labels]))
    biases, errors = [], []
    for num_negatives in (10, 40, 160):
        uniform = built(Uniform(num_negatives, seed=1), 12, 1)
        sampler = uniform if proposal == "uniform" else midx_of(logits, num_negatives)
        loss = SoftmaxCrossentropy(estimator="partition")
        mean, error = sampled_statistics(
            loss, sampler, np.ones(1, np.float32), logits, labels, copies=2_000_000 // num_negatives
        )
        biases.append(np.abs(mean - want).max())
        errors.append(error.max())
        # The bias is no more than c / S with one c for value and gradient, up to the noise of the mean.
        np.testing.assert_allclose(mean, want, atol=2.5 / num_negatives + 4 * error.max())
    assert biases[0] > 3 * biases[1] - 4 * errors[1]
    assert biases[1] > 3 * biases[2] - 4 * errors[2]
