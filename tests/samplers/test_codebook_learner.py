import numpy as np
import pytest
import tensorflow as tf
from sampler_checks import clustered, head_of, queries

from tfxc import class_vectors
from tfxc._keras.weights import tf_variable
from tfxc.samplers import codebook_learner
from tfxc.samplers.codebook_learner import CodebookLearner, Estimate, softmax_estimate
from tfxc.samplers.quantization import encode, fit_codebooks
from tfxc.scored import MASKED_LOGIT, Scored


def built(first, second, residual=True):
    learner = CodebookLearner(residual)
    learner.build([np.shape(first), np.shape(second)])
    return learner


def test_the_estimate_by_hand():
    labels = tf.constant([[1, 2], [3, -1], [-1, -1]])
    positives = Scored(
        tf.math.log([[1.0, 2.0], [3.0, 9.0], [1.0, 1.0]]), tf.math.log([[0.5, 0.5], [1.0, 1.0], [1.0, 1.0]])
    )
    negatives = Scored(
        tf.constant([[0.0, MASKED_LOGIT], [0.0, 0.0], [MASKED_LOGIT, MASKED_LOGIT]]),
        tf.math.log([[0.5, 0.5], [1.0, 0.25], [1.0, 1.0]]),
    )
    drawn = tf.constant([[7, 1], [8, 9], [3, 3]])
    estimate = softmax_estimate(labels, positives, drawn, negatives)
    assert estimate.ids.numpy().tolist() == [[1, 2, 7, 1], [3, -1, 8, 9], [-1, -1, 3, 3]]
    want = [[1 / 5, 2 / 5, 2 / 5, 0], [3 / 8, 0, 1 / 8, 4 / 8], [0, 0, 0, 0]]
    np.testing.assert_allclose(estimate.probs, want, rtol=1e-6)
    shares = [[1, 1, 2, 0], [1, 0, 1, 4], [0, 0, 0, 0]]  # of how many classes each tells
    np.testing.assert_allclose(np.exp(estimate.log_share), shares, rtol=1e-6)


@pytest.mark.parametrize("size", [20, 400])
def test_the_estimate_of_a_step_is_the_softmax_on_average(size):
    """Labels and candidates are drawn from it, and draws that hit the label are left out, as in a step."""
    random, logits = np.random.default_rng(0), np.log([0.5, 0.3, 0.15, 0.05]).astype(np.float32)
    labels, ids = (random.choice(4, (4000, n), p=np.exp(logits)).astype(np.int32) for n in (1, size))
    drawn = np.where(ids == labels, np.float32(MASKED_LOGIT), logits[ids])
    own, drawn = (
        Scored(tf.constant(values), tf.constant(logits[of] + np.float32(np.log(size))))
        for values, of in ((logits[labels], labels), (drawn, ids))
    )
    estimate = softmax_estimate(tf.constant(labels), own, tf.constant(ids), drawn)
    found = np.bincount(estimate.ids.numpy().ravel(), estimate.probs.numpy().ravel()) / len(labels)
    np.testing.assert_allclose(found, np.exp(logits), atol=0.02)


def test_the_estimate_of_shared_candidates():
    labels, own = tf.constant([[1], [2]]), Scored(tf.zeros([2, 1]), tf.zeros([2, 1]))
    negatives = Scored(tf.zeros([2, 2]), tf.math.log([1.0, 0.5]))
    estimate = softmax_estimate(labels, own, tf.constant([5, 6]), negatives)
    assert estimate.ids.numpy().tolist() == [[1, 5, 6], [2, 5, 6]]
    np.testing.assert_allclose(estimate.probs, [[0.25, 0.25, 0.5]] * 2, rtol=1e-6)
    np.testing.assert_allclose(np.exp(estimate.log_share), [[1, 1, 2]] * 2, rtol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("residual", [True, False])
def test_the_error_of_all_classes_from_sums(monkeypatch, residual, weighted):
    monkeypatch.setattr(class_vectors, "_BLOCK_ROWS", 7)
    vectors = clustered(40, 5)
    weights = np.random.default_rng(0).uniform(1, 9, size=40) if weighted else np.ones(40)
    codebooks = fit_codebooks(head_of(vectors), None, residual, 3, 0, np.ones(40))
    codes = encode(head_of(vectors), codebooks, residual)
    learner = built(*codebooks, residual)
    learner.summarize(head_of(vectors), codebooks, codes, weights)
    share = weights / weights.sum()
    moved = [codebook + queries(3, codebook.shape[1], seed=3) for codebook in codebooks]
    parts = [codebook[code] for codebook, code in zip(moved, codes, strict=True)]
    quantised = sum(parts) if residual else np.concatenate(parts, axis=1)
    want = (share * np.square(vectors - quantised).sum(1)).sum() - (share * np.square(vectors).sum(1)).sum()
    np.testing.assert_allclose(learner._error(*map(tf.constant, moved)), want, rtol=1e-4)


def near_codewords(vectors, codewords, errors):
    """Vectors [n, D] as means of codewords by distance, errors those of the nearest ones."""
    squares = np.square(vectors[:, np.newaxis] - codewords).sum(2)
    weights = np.exp(-16 * (squares - squares.min(1, keepdims=True)) / errors.mean())
    return weights / weights.sum(1, keepdims=True) @ codewords


@pytest.mark.parametrize("residual", [True, False])
def test_a_class_is_a_mean_of_the_codewords_near_to_it(monkeypatch, residual):
    monkeypatch.setattr(class_vectors, "_BLOCK_ROWS", 7)
    vectors = clustered(40, 6)
    codebooks = fit_codebooks(head_of(vectors), None, residual, 3, 0, np.ones(40))
    errors = np.zeros(40)
    codes = encode(head_of(vectors), codebooks, residual, errors=errors)
    learner = built(*codebooks, residual)
    learner.summarize(head_of(vectors), codebooks, codes, np.ones(len(vectors)))
    got = learner._quantised([*map(tf.constant, codebooks)], tf.constant(vectors[np.newaxis]))[0]
    left = vectors if residual else vectors[:, :3]
    left_errors = np.square(left - codebooks[0][codes[0]]).sum(1)
    first = near_codewords(left, codebooks[0], left_errors)
    right = vectors - first if residual else vectors[:, 3:]
    second = near_codewords(right, codebooks[1], errors if residual else errors - left_errors)
    want = first + second if residual else np.concatenate([first, second], axis=1)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_a_codeword_for_each_class_quantises_exactly():
    vectors = np.eye(4, dtype=np.float32)
    codebooks, codes = (vectors, np.zeros((4, 4), np.float32)), np.stack([np.arange(4), np.zeros(4, int)])
    learner = built(*codebooks)
    learner.summarize(head_of(vectors), codebooks, codes, np.ones(len(vectors)))
    got = learner._quantised([*map(tf.constant, codebooks)], tf.constant(vectors[np.newaxis]))[0]
    np.testing.assert_allclose(got, vectors, atol=1e-6)


def test_the_objective_and_two_steps_of_adam_by_hand():
    """One codebook moves: the gradient is that of the cross-entropy over the scored classes."""
    first, second = (tf.Variable(queries(2, 3, seed=seed)) for seed in (1, 2))
    learner, vectors, query = built(first, second), queries(5, 3, seed=5), queries(1, 3, seed=6)
    codes = np.zeros((2, 5), np.int32)
    learner.summarize(head_of(vectors), (first.numpy(), second.numpy()), codes, np.ones(5))
    probs, share = np.array([[0.5, 0.3, 0.2, 0, 0]]), np.array([[1, 2, 0.5, 1, 0]])
    with np.errstate(divide="ignore"):
        log_share = np.maximum(np.log(share), MASKED_LOGIT)
    parts = tf.range(5)[tf.newaxis], *(tf.constant(part, tf.float32) for part in (probs, log_share))
    estimate = Estimate(*parts)

    def objective():
        quantised = learner._quantised([first, second], tf.constant(vectors[np.newaxis]))
        logits = tf.linalg.matvec(quantised, query)[0]
        log_total = tf.math.log(tf.reduce_sum(share[0] * tf.exp(logits)))
        divergence = tf.reduce_sum(probs[0] * (log_total - logits))
        return divergence + 0.5 * np.square(query).mean() * learner._error(first, second)

    moments, want = np.zeros((2, 2, 2, 3)), [part.numpy().astype(np.float64) for part in (first, second)]
    for step in (1, 2):
        with tf.GradientTape() as tape:
            value = objective()
        for i, gradient in enumerate(tape.gradient(value, [first, second])):
            moments[0, i] = 0.9 * moments[0, i] + 0.1 * gradient.numpy()
            moments[1, i] = 0.999 * moments[1, i] + 0.001 * gradient.numpy() ** 2
            rate = codebook_learner._RELATIVE_STEP * np.sqrt(np.square(want[i]).mean())
            first_moment, second_moment = moments[0, i] / (1 - 0.9**step), moments[1, i] / (1 - 0.999**step)
            want[i] = want[i] - rate * first_moment / (np.sqrt(second_moment) + 1e-10)
        learner.learn([first, second], tf.constant(query), tf.constant(vectors[np.newaxis]), estimate, 0.0)
    np.testing.assert_allclose(first, want[0], rtol=1e-4)
    np.testing.assert_allclose(second, want[1], rtol=1e-4)


def test_codebooks_of_zeros_stay():
    first, second = tf.Variable(tf.zeros([2, 3])), tf.Variable(tf.zeros([2, 3]))
    learner = built(first, second)
    estimate = Estimate(tf.zeros([4, 2], tf.int32), tf.fill([4, 2], 0.5), tf.zeros([4, 2]))
    learner.learn([first, second], tf.ones([4, 3]), tf.ones([4, 2, 3]), estimate, 0.0)
    assert not first.numpy().any() and not second.numpy().any()
    assert int(tf_variable(learner.step)) == 1
