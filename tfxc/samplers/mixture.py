"""Several samplers at once."""

import functools

import tensorflow as tf

from tfxc._keras import keras, register
from tfxc.samplers.sampler import Sampler


@register
class Mixture(Sampler):
    """The candidates of several samplers together; a class's expected count is the sum of the parts'.

    For example adaptive draws beside a few uniform ones, so that no class is ever out of reach.

    Args:
        samplers: list of two or more samplers.

    Raises:
        ValueError: for fewer than two samplers, or one without expected counts (``DNS``).

    Example:
        >>> from tfxc.samplers import Uniform, LogUniform
        >>> sampler = Mixture([Uniform(4, seed=1), LogUniform(4, seed=2)])
        >>> sampler.build((100, 8))
        >>> ids, log_count = sampler.sample(tf.zeros([2, 8]), tf.zeros([2, 1], tf.int32))
        >>> ids.shape
        TensorShape([2, 8])

    Reference:
        Veach, Guibas, "Optimally Combining Sampling Techniques for Monte Carlo Rendering", 1995 (the
        balance heuristic).
    """

    def __init__(self, samplers, **kwargs):
        if len(samplers) < 2:
            raise ValueError(f"Mixture needs two or more samplers, but got {len(samplers)}.")
        unfit = [type(sampler).__name__ for sampler in samplers if sampler.selects]
        if unfit:
            raise ValueError(f"{unfit[0]} knows no expected counts of its candidates, so it cannot be mixed.")
        shared = all(sampler.shared for sampler in samplers)
        super().__init__(1, shared=shared, seed=0, **kwargs)
        self.draws_labels = any(sampler.draws_labels for sampler in samplers)
        self.reads_example_ids = any(sampler.reads_example_ids for sampler in samplers)
        self.learns = any(sampler.learns for sampler in samplers)
        self._num_samplers = len(samplers)
        for i, sampler in enumerate(samplers):
            setattr(self, f"sampler_{i}", sampler)

    @property
    def samplers(self):
        """The parts; layers in a list attribute would be missing from a ``tf.train.Checkpoint``."""
        return [getattr(self, f"sampler_{i}") for i in range(self._num_samplers)]

    def get_config(self):
        config = super().get_config()
        for name in ("num_negatives", "shared", "seed"):
            del config[name]
        samplers = [keras.saving.serialize_keras_object(sampler) for sampler in self.samplers]
        return {**config, "samplers": samplers}

    @classmethod
    def from_config(cls, config):
        samplers = [keras.saving.deserialize_keras_object(sampler) for sampler in config["samplers"]]
        return cls(**{**config, "samplers": samplers})

    def build_index(self):
        for sampler in self.samplers:
            if not sampler.built:
                sampler.build((self.num_classes, self.query_dim))

    def refresh(self, head):
        for sampler in self.samplers:
            sampler.refresh(head)

    def learn(self, query, labels, positives, ids, negatives):
        for sampler in self.samplers:
            if sampler.learns:
                sampler.learn(query, labels, positives, ids, negatives)

    def sample(self, query, labels, example_ids=None):
        drawn = [sampler.sample(query, labels, **_own(sampler, example_ids))[0] for sampler in self.samplers]
        if not self.shared:
            num_queries = tf.shape(query)[0]
            drawn = [ids if ids.shape.rank == 2 else _repeat(ids, num_queries) for ids in drawn]
        ids = tf.concat(drawn, axis=-1)
        return ids, self.log_expected_count(query, labels, ids, example_ids)

    def log_expected_count(self, query, labels, ids, example_ids=None):
        parts = [
            sampler.log_expected_count(query, labels, ids, **_own(sampler, example_ids))
            for sampler in self.samplers
        ]
        shape = functools.reduce(tf.broadcast_dynamic_shape, [tf.shape(part) for part in parts])
        # For ids that all queries share, a part may answer once for all, another for each query.
        return tf.reduce_logsumexp(tf.stack([tf.broadcast_to(part, shape) for part in parts]), axis=0)


def _own(sampler, example_ids):
    return {"example_ids": example_ids} if sampler.reads_example_ids else {}


def _repeat(ids, num_queries):
    return tf.tile(ids[tf.newaxis], [num_queries, 1])
