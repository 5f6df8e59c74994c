import numpy as np
import pytest
import tensorflow as tf
from loss_checks import logits_for, softplus, value_and_gradient

from tfxc import losses
from tfxc.losses.reductions import log_sum_exp
from tfxc.scored import MASKED_LOGIT, Scored

REFERENCES = {
    "logsumexp": lambda logits: np.logaddexp.reduce(logits.astype(np.float64), 1),
    "softplus": lambda logits: softplus(logits).sum(1),
    "squared_hinge": lambda logits: (np.maximum(0, 1 + logits.astype(np.float64)) ** 2).sum(1),
}
EACH = pytest.mark.parametrize(
    "reduction",
    [losses.LOGSUMEXP, losses.SOFTPLUS, losses.SQUARED_HINGE],
    ids=lambda reduction: reduction.kernel,
)


@EACH
@pytest.mark.parametrize("scale", [1.0, 60.0])
@pytest.mark.parametrize("sizes", [[1], [7], [3, 1, 5]], ids=str)
def test_in_blocks_in_parts_and_at_once(reduction, scale, sizes):
    logits = logits_for(4, sum(sizes), scale)
    want = REFERENCES[reduction.kernel](logits)
    blocks = tf.split(logits, sizes, axis=1)
    state = reduction.init(4)
    for block in blocks:
        state = reduction.update(state, block)
    merged = reduction.merge([reduction.of(block) for block in blocks])
    for found in reduction.of(logits), reduction.finish(state), merged:
        np.testing.assert_allclose(found, want, rtol=1e-5)


@EACH
def test_the_gradient_is_that_of_autodiff(reduction):
    logits = logits_for(3, 6)
    reduced, want = value_and_gradient(reduction.of, logits)
    np.testing.assert_allclose(reduction.gradient(tf.constant(reduced), tf.constant(logits)), want, rtol=1e-5)


@EACH
def test_a_masked_class_counts_for_nothing_and_gets_nothing(reduction):
    logits = logits_for(2, 3)
    with_masked = np.concatenate([logits, np.full([2, 2], MASKED_LOGIT, np.float32)], 1)
    found, gradient = value_and_gradient(reduction.of, with_masked)
    np.testing.assert_allclose(found, reduction.of(logits), rtol=1e-6)
    assert not gradient[:, 3:].any() and gradient[:, :3].any()


@pytest.mark.parametrize("logits", [np.zeros([2, 0], np.float32), np.full([2, 3], MASKED_LOGIT, np.float32)])
def test_the_log_of_no_class_is_finite(logits):
    found, gradient = value_and_gradient(log_sum_exp, logits)
    assert (found <= 0.9 * MASKED_LOGIT).all() and np.isfinite(found).all() and np.isfinite(gradient).all()


def test_infinite_logits_are_not_lost():
    assert losses.LOGSUMEXP.of(tf.constant([[0.0, np.inf]])).numpy() == [np.inf]
    assert np.isnan(losses.LOGSUMEXP.of(tf.constant([[0.0, np.nan]])).numpy()).all()
    assert losses.LOGSUMEXP.of(tf.constant([[0.0, -np.inf]])).numpy() == [0.0]
    assert losses.LOGSUMEXP.of(tf.constant([[-np.inf, -np.inf]])).numpy() == [-np.inf]


CANDIDATES = Scored(tf.constant([[0.5, 2.0, MASKED_LOGIT]]), tf.math.log([[0.1, 0.5, 1.0]]))
HITS = tf.constant([[-1, 0, -1]])


@pytest.mark.parametrize(
    ("folding", "want"),
    [
        (losses.LOGSUMEXP_OF_CANDIDATES, np.log(np.exp(0.5) / 0.1 + np.exp(2.0) / 0.5)),
        (losses.SoftmaxCrossentropy("partition").over_candidates, 0.5 - np.log(0.1)),
        (losses.SoftmaxCrossentropy("nce").over_candidates, softplus([0.5, 2.0] - np.log([0.1, 0.5])).sum()),
        (losses.weighted_sum_of(tf.nn.relu), 0.5 / 0.1),
    ],
)
def test_candidates_by_hand(folding, want):
    logits, counts, _ = CANDIDATES
    every, *parts = (
        folding.of(Scored(logits[:, own], counts[:, own]), HITS[:, own])
        for own in (slice(0, 3), slice(0, 1), slice(1, 3))
    )
    for folded in (every, folding.merge(parts)):
        np.testing.assert_allclose(folded, [[want]], rtol=1e-6)


def test_a_fold_that_is_no_column_is_told():
    for fold in (lambda scored: tf.reduce_sum(scored.logits, 1), lambda scored: scored.logits):
        with pytest.raises(ValueError, match=r"give \[N, 1\], as by keepdims=True, but gave \(1, ?3?\)"):
            losses.CandidateReduction(fold).of(CANDIDATES, HITS)
