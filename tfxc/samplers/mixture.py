"""Several samplers at once."""

import functools
from collections import Counter
from collections.abc import Sequence

import tensorflow as tf

from tfxc._keras import keras, register
from tfxc.samplers.sampler import Sampler, knows_counts, no_log_prob, refuse_options
from tfxc.samplers.step import Question, Step
from tfxc.samplers.unigram import Unigram


@register
class Mixture(Sampler):
    """The candidates of several samplers together; a class's expected count is the sum of the parts'.

    An example is adaptive draws beside a few uniform ones, so that no class is ever out of reach.

    Args:
        samplers: list of two or more samplers, each with its own number of draws and seed. Parts of the same
            seed draw different classes.

    Raises:
        ValueError: for anything but a list, fewer than two samplers, one that knows no expected counts
            (``DNS``), or an option that each part has for itself; when it is built, for a part that is built
            for another number of classes.

    Example:
        >>> from tfxc.samplers import LogUniform, Step, Uniform
        >>> sampler = Mixture([Uniform(4, seed=1), LogUniform(4, seed=2)])
        >>> sampler.build((100, 8))
        >>> draw = sampler.sample(Step(tf.zeros([2, 8]), tf.zeros([2, 1], tf.int32)))
        >>> draw.ids.shape, sampler.num_negatives
        (TensorShape([2, 8]), 8)

    Reference:
        Veach, Guibas, "Optimally Combining Sampling Techniques for Monte Carlo Rendering", 1995 (the
        balance heuristic).
    """

    def __init__(self, samplers: Sequence[Sampler], *more, **kwargs) -> None:
        is_list = isinstance(samplers, list | tuple) and len(samplers) > 1
        if more or not is_list or not all(isinstance(sampler, Sampler) for sampler in samplers):
            raise ValueError(f"Mixture takes a list of two or more samplers, [a, b], but got {samplers!r}.")
        unfit = [type(sampler).__name__ for sampler in samplers if not knows_counts(sampler)]
        if unfit:
            raise ValueError(f"{unfit[0]} knows no expected counts of its candidates, so it cannot be mixed.")
        refuse_options(kwargs, ["shared", "seed", "num_negatives"], "Mixture", "each part has its own")
        super().__init__(1, seed=0, **kwargs)
        sizes = [sampler.num_negatives for sampler in samplers]
        self.num_negatives = None if None in sizes else sum(sizes)
        self._num_samplers = len(samplers)
        for i, sampler in enumerate(samplers):
            setattr(self, f"sampler_{i}", sampler)
        num_alike: Counter = Counter()
        for part in self._parts_that_draw():
            part.stream = num_alike[part.seed]
            num_alike[part.seed] += 1

    @property
    def samplers(self) -> list[Sampler]:
        """The parts. A ``tf.train.Checkpoint`` would miss layers in a list attribute."""
        return [getattr(self, f"sampler_{i}") for i in range(self._num_samplers)]

    def _parts_that_draw(self):
        """The parts; of a mixture among them, its own parts."""
        for sampler in self.samplers:
            yield from sampler._parts_that_draw() if isinstance(sampler, Mixture) else [sampler]

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
            elif sampler.num_classes != self.num_classes:
                raise ValueError(
                    f"{type(sampler).__name__} in a Mixture is built for {sampler.num_classes} classes, but "
                    f"the Mixture for {self.num_classes}: give each model samplers of its own."
                )

    def refresh(self, head):
        for sampler in self.samplers:
            sampler.refresh(head)

    def classes_changed(self, head, added):
        for sampler in self.samplers:
            sampler.classes_changed(head, added)

    def observe(self, step):
        for sampler in self.samplers:
            sampler.observe(step.seen_by(sampler))

    def learn(self, step, draw, scored):
        for sampler in self.samplers:
            sampler.learn(step, draw, scored)

    def prepare(self, step: Step):
        """The number of queries, and the step as a ``Question`` to each part."""
        return tf.shape(step.query)[0], [Question(sampler, step) for sampler in self.samplers]

    def draw(self, given, seed):
        num_queries, questions = given
        drawn, own_counts = zip(*[question.draw() for question in questions], strict=True)
        shared = all(ids.shape.rank == 1 for ids in drawn)
        if not shared:
            tiled = lambda ids: ids if ids.shape.rank == 2 else tf.tile(ids[tf.newaxis], [num_queries, 1])  # noqa: E731
            drawn = list(map(tiled, drawn))
        ids = tf.concat(drawn, axis=-1)
        log_expected_count = self.log_expected_count(given, ids)
        if shared and all(count.shape.rank == 1 for count in own_counts):
            return ids, log_expected_count
        # A slot that a part left empty for a query stays empty.
        empty = [
            tf.broadcast_to(tf.equal(count, float("inf")), [num_queries, tf.shape(own)[-1]])
            for own, count in zip(drawn, own_counts, strict=True)
        ]
        return ids, tf.where(tf.concat(empty, 1), float("inf"), log_expected_count)

    def log_expected_count(self, given, ids):
        parts = [question.log_expected_count(ids) for question in given[1]]
        shape = functools.reduce(tf.broadcast_dynamic_shape, [tf.shape(part) for part in parts])
        # For ids that all queries share, one part may answer once for all, another for each query.
        return tf.reduce_logsumexp(tf.stack([tf.broadcast_to(part, shape) for part in parts]), axis=0)

    def label_slots(self, given, labels):
        parts = [question.label_slots(labels) for question in given[1]]
        known = [part for part in parts if part is not None]
        return tf.add_n(known) if known else None

    log_prob = no_log_prob("its candidates are draws of several distributions")


def has_index(sampler: Sampler) -> bool:
    """Whether ``refresh`` changes what a sampler draws by, or a part of a ``Mixture``."""
    if isinstance(sampler, Mixture):
        return any(has_index(part) for part in sampler.samplers)
    if isinstance(sampler, Unigram) and sampler.counts is not None:
        return False  # given counts stay as they are
    return type(sampler).refresh is not Sampler.refresh
