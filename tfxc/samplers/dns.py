"""Dynamic negative sampling: the best-scored of many uniform draws."""

import tensorflow as tf

from tfxc._keras import register
from tfxc.arguments import positive_int
from tfxc.ids import PADDING, hits
from tfxc.samplers.sampler import Sampler, no_log_prob
from tfxc.samplers.step import Draw, require_built


@register
class DNS(Sampler):
    """Takes M uniform draws and keeps the S that the model scores highest, without a correction.

    A baseline. It finds hard negatives without an index, at the price of scoring M classes a query. The
    distribution of these negatives is unknown, so all expected counts are taken as 1, and the loss does not
    estimate the one over all classes: the larger M/S, the further it is from it. The sampler passes over
    positives among the draws; where fewer than S other classes were drawn, slots stay empty (id -1).

    It needs the scores of its draws, which ``ExtremeClassifier`` and ``head_loss`` give. Expected counts are
    unknown, so there is no ``log_prob``, no place in a ``Mixture`` and no diagnostics.

    Args:
        num_negatives: S, candidates a query that the loss sees.
        num_candidates: M, at least S: uniform draws to choose from.
        shared: one set of M draws for the whole batch, from which each query chooses its own S.
        seed: see ``Sampler``.

    Raises:
        ValueError: for a num_candidates that is not an integer of at least S.

    Example:
        >>> sampler = DNS(2, num_candidates=4, seed=1)
        >>> sampler.build((1000, 8))
        >>> score = lambda ids: -tf.cast(ids, tf.float32)
        >>> draw = sampler.sample(tfxc.samplers.Step(tf.zeros([1, 8]), tf.constant([[7]]), score=score))
        >>> draw.ids.shape, draw.log_expected_count.numpy().tolist()  # the lowest two of four ids
        (TensorShape([1, 2]), [[0.0, 0.0]])

    Reference:
        Zhang, Chen, Wang, Yu, "Optimizing Top-N Collaborative Filtering via Dynamic Negative Item Sampling",
        2013.
    """

    def __init__(
        self,
        num_negatives: int,
        *,
        num_candidates: int,
        shared: bool = False,
        seed: int | None = None,
        **kwargs,
    ) -> None:
        super().__init__(num_negatives, shared=shared, seed=seed, **kwargs)
        self.num_candidates = positive_int(num_candidates, "num_candidates", least=self.num_negatives)

    def get_config(self):
        return {**super().get_config(), "num_candidates": self.num_candidates}

    def sample(self, step):
        require_built(self)
        if step.score is None:
            raise ValueError(
                "DNS chooses by score, but the step has none: give Step(..., score=), a function of class "
                "ids to logits."
            )
        num_queries = tf.shape(step.query)[0]
        shape = [self.num_candidates] if self.shared else [num_queries, self.num_candidates]
        pool = tf.random.stateless_uniform(shape, self.next_seed(), 0, self.num_classes, tf.int64)
        pool = tf.cast(pool, tf.int32)
        ids = self.choose(pool, step.labels, step.score(pool))
        return Draw(ids, tf.zeros(tf.shape(ids)), tf.zeros(tf.shape(step.labels)))

    def choose(self, pool: tf.Tensor, labels: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
        """The S best-scored ids int32 [N, S] of the draws [N, M], or [M] if shared, without the labels."""
        nothing = -float("inf")
        scores = tf.where(hits(pool, labels) >= 0, nothing, scores)
        best, slots = tf.math.top_k(scores, self.num_negatives)
        chosen = tf.gather(pool, slots, batch_dims=pool.shape.rank - 1)
        return tf.where(best != nothing, chosen, PADDING)

    log_prob = no_log_prob("the best of M draws follow an unknown distribution")
