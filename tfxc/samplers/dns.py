"""Dynamic negative sampling: the best-scored of many uniform draws."""

import tensorflow as tf

from tfxc._keras import register
from tfxc.ids import PADDING, is_positive
from tfxc.samplers.uniform import Uniform


@register
class DNS(Uniform):
    """Of M uniform draws, the S that the model scores highest now, as they are: no correction.

    A baseline. It finds hard negatives without an index, at the price of scoring M classes a query; but which
    distribution they follow nobody knows, so expected counts are all taken as 1 and the loss does not
    estimate that over all classes: the larger M/S, the further from it. Positives among the draws are passed
    over; where fewer than S other classes were drawn, slots stay empty (id -1).

    ``sample`` gives the M draws, ``select`` chooses among them once they are scored, which
    ``ExtremeClassifier`` does. There is no ``log_prob``, so no place in a ``Mixture``.

    Args:
        num_negatives: S, candidates a query that the loss sees.
        num_candidates: M, at least S: uniform draws to choose from.
        shared: one set of M draws for the whole batch, from which each query chooses its own S.
        seed: int, see ``Sampler``.

    Raises:
        ValueError: for a num_candidates that is not an integer of at least S.

    Example:
        >>> sampler = DNS(2, num_candidates=4, seed=1)
        >>> sampler.build((1000, 8))
        >>> labels = tf.constant([[7]])
        >>> pool, _ = sampler.sample(tf.zeros([1, 8]), labels)
        >>> ids, log_count = sampler.select(pool, labels, scores=tf.constant([[0.1, 0.9, 0.3, 0.2]]))
        >>> ids.numpy().tolist() == [[pool[0, 1], pool[0, 2]]], log_count.numpy().tolist()
        (True, [[0.0, 0.0]])

    Reference:
        Zhang, Chen, Wang, Yu, "Optimizing Top-N Collaborative Filtering via Dynamic Negative Item Sampling",
        2013.
    """

    selects = True

    def __init__(self, num_negatives, num_candidates, shared=False, seed=None, **kwargs):
        super().__init__(num_negatives, shared=shared, seed=seed, **kwargs)
        if not isinstance(num_candidates, int) or num_candidates < num_negatives:
            raise ValueError(
                f"num_candidates must be an integer of at least num_negatives = {num_negatives}, "
                f"but got {num_candidates!r}."
            )
        self.num_candidates = num_candidates

    def get_config(self):
        return {**super().get_config(), "num_candidates": self.num_candidates}

    def shape_of_draws(self, query):
        return [self.num_candidates] if self.shared else [tf.shape(query)[0], self.num_candidates]

    def log_num_draws(self, labels):
        return tf.math.log(float(self.num_candidates))

    def log_expected_count(self, query, labels, ids):
        return tf.zeros(tf.shape(ids))

    def log_prob(self, query, ids):
        raise NotImplementedError("DNS has no log_prob: the best of M draws follow no distribution known.")

    def select(self, ids, labels, scores):
        nothing = -float("inf")
        scores = tf.where(is_positive(ids, labels), nothing, scores)
        best, slots = tf.math.top_k(scores, self.num_negatives)
        chosen = tf.gather(ids, slots, batch_dims=ids.shape.rank - 1)
        return tf.where(best != nothing, chosen, PADDING), tf.zeros(tf.shape(chosen))
