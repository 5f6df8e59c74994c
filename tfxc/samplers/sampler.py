"""The contract of a sampler: which classes a training step scores, and how often each was expected."""

import random

import tensorflow as tf

from tfxc._keras import add_weight, keras, tf_variable


class Sampler(keras.layers.Layer):
    """Draws S candidate classes a query from a distribution Q over all L classes, with replacement.

    A subclass defines ``draw`` and ``log_prob``; it may define ``build_index`` (its variables) and
    ``refresh``. The log of the expected count of a class, ``log S + log Q``, is all that a loss needs to
    know of a sampler. Draws that hit a positive stay in: the loss's caller takes them out.

    Random numbers come from (seed, replica, counter); the counter is saved with the model, so the same
    seed gives the same draws, also after a restart.

    Args:
        num_negatives: S, the number of draws.
        shared: whether one set of S candidates serves the whole batch; else each query has its own.
        seed: int; by default taken from Python's ``random``, which ``keras.utils.set_random_seed`` seeds.

    Raises:
        ValueError: if num_negatives is not a positive integer.

    Example:
        >>> class FirstHalf(Sampler):
        ...     def draw(self, query, labels, seed):
        ...         half = self.num_classes // 2
        ...         ids = tf.random.stateless_uniform(self.shape_of_draws(query), seed, 0, half, tf.int32)
        ...         return ids, self.log_prob(query, ids)
        ...
        ...     def log_prob(self, query, ids):
        ...         half = self.num_classes // 2
        ...         return tf.where(ids < half, -tf.math.log(float(half)), float("-inf"))
        >>> sampler = FirstHalf(4, seed=1)
        >>> sampler.build((100, 8))
        >>> ids, log_count = sampler.sample(tf.zeros([2, 8]), tf.zeros([2, 1], tf.int32))
        >>> ids.shape, bool(tf.reduce_all(ids < 50))
        (TensorShape([2, 4]), True)
    """

    draws_labels = False  # whether candidates are taken from the labels of the batch
    # Whether sample and log_expected_count also take the examples' ids, ``example_ids=`` integers [N].
    reads_example_ids = False
    selects = False  # whether it chooses among its draws once they are scored: ``select``
    learns = False  # whether it learns from the scores of a training step: ``learn``

    def __init__(self, num_negatives, shared=False, seed=None, **kwargs):
        super().__init__(**kwargs)
        if not isinstance(num_negatives, int) or num_negatives < 1:
            raise ValueError(f"num_negatives must be a positive integer, but got {num_negatives!r}.")
        self.num_negatives = num_negatives
        self.shared = shared
        self.seed = random.randrange(2**31) if seed is None else int(seed)
        self.supports_jit = False

    def get_config(self):
        return {
            **super().get_config(),
            "num_negatives": self.num_negatives,
            "shared": self.shared,
            "seed": self.seed,
        }

    def build(self, input_shape):
        """Creates the index for ``input_shape = (L, D)``, D the width of the effective query."""
        self.num_classes, self.query_dim = (int(size) for size in input_shape)
        self.counter = add_weight(
            self, "counter", (), dtype="int64", trainable=False, aggregation="only_first_replica"
        )
        self.build_index()
        super().build(input_shape)

    def build_index(self):
        """Creates the variables of the index, valid before the first refresh."""

    def refresh(self, head):
        """Rebuilds the index from the head's class vectors; samplers that do not look at them need not."""

    def sample(self, query, labels):
        """The candidates of a step.

        Args:
            query: effective queries float32 [N, D].
            labels: positives int32 [N, P], padded with -1.

        Returns:
            ids int32 [N, S], or [S] if shared (-1 an empty slot), and the log of each one's expected
            count among them, float32 of the same shape; it carries no gradient.
        """
        ids, log_prob = self.draw(tf.stop_gradient(query), labels, self._next_seed())
        return ids, tf.stop_gradient(log_prob) + self.log_num_draws(labels)

    def select(self, ids, labels, scores):
        """The candidates among the draws: ids and log expected counts as from ``sample``, which see.

        Args:
            ids: what ``sample`` drew, int32 [N, M], or [M] if shared.
            labels: positives int32 [N, P], padded with -1.
            scores: logits [N, M] of the draws.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define select(ids, labels, scores).")

    def learn(self, query, labels, positives, ids, negatives):
        """Improves the proposal by what a training step scored; called after ``sample``, with its results.

        Args:
            query: effective queries float32 [N, D].
            labels: positives int32 [N, P], padded with -1.
            positives: their logits and log expected counts, each float32 [N, P].
            ids: candidates int32 [N, S], or [S] if shared.
            negatives: their logits [N, S], -1e30 where taken out, and log expected counts [N, S] or [S].
        """
        raise NotImplementedError(f"{type(self).__name__} does not define how it learns.")

    def log_expected_count(self, query, labels, ids):
        """Log of the expected count, among a step's candidates, of any class ids [N, P]: float32 [N, P]."""
        log_prob = self.log_prob(tf.stop_gradient(query), ids)
        return tf.stop_gradient(log_prob) + self.log_num_draws(labels)

    def log_num_draws(self, labels):
        """Log S."""
        return tf.math.log(float(self.num_negatives))

    def draw(self, query, labels, seed):
        """Candidates and log Q of each: ids int32 and float32 [N, S], or [S] if shared."""
        raise NotImplementedError(f"{type(self).__name__} does not define draw(query, labels, seed).")

    def log_prob(self, query, ids):
        """log Q(i | z) float32 [N, S] of class ids [N, S], or [S] shared by all queries."""
        raise NotImplementedError(f"{type(self).__name__} does not define log_prob(query, ids).")

    def shape_of_draws(self, query):
        """[N, S], or [S] if shared."""
        return [self.num_negatives] if self.shared else [tf.shape(query)[0], self.num_negatives]

    def _next_seed(self):
        replica = tf.distribute.get_replica_context()
        replica = 0 if replica is None else replica.replica_id_in_sync_group
        count = tf_variable(self.counter)
        count.assign_add(1)
        return tf.stack([self.seed + tf.cast(replica, tf.int64) * 2**32, count.read_value()])
