"""A sampler whose classes lie on several parameter servers: each draws among its own."""

from typing import NamedTuple

import tensorflow as tf

from tfxc.ops.remote import put_together


class Asked(NamedTuple):
    """A step as shards were asked it.

    Args:
        num_queries: N.
        given: what each shard's sampler made of its step.
        log_mass: for each, the log of what its classes weigh for a query, [N] or a scalar.
    """

    num_queries: tf.Tensor
    given: list
    log_mass: list


class Share(NamedTuple):
    """A shard's share of a step's draws.

    Args:
        numbers: int32 [N], how many of a query's S draws the shard makes.
        log_mass: float32 [N], the log of the probability that a draw is one of them.
        seed: [2] integers.
    """

    numbers: tf.Tensor
    log_mass: tf.Tensor
    seed: tf.Tensor


class SamplerShards:
    """Draws with replacement from one distribution over all classes, each made where its class lies.

    A draw is of shard p with the share of Q that its classes have, and then one of the shard's own draws:
    ``Q(i) = M_p / Σ_q M_q · Q_p(i)``. So what is dealt out are numbers of draws, and the distribution is that
    of the sampler on one machine. Of a step's draws a query's first are those of the first shard.

    Args:
        sampler: the whole one.
        parts: for each shard a sampler of its classes alone, with a ``log_mass(given)``.
        starts: for each, the id of its first class.
        devices: for each, where its classes lie.

    Example:
        >>> sampler = tfxc.samplers.Uniform(4, seed=1)
        >>> sampler.build((5, 8))
        >>> shards = sampler.shards_at([0, 2], ["CPU:0", "CPU:0"])
        >>> asked = shards.prepare(tfxc.samplers.Step(tf.zeros([3, 8]), tf.zeros([3, 1], tf.int32)))
        >>> ids, log_expected_count = shards.draw(asked, [1, 2])
        >>> ids.shape, round(float(tf.exp(log_expected_count[0, 0])), 4)
        (TensorShape([3, 4]), 0.8)
    """

    ANSWERS = ("prepare", "draw", "log_expected_count")

    def __init__(self, sampler, parts, starts, devices):
        self._sampler = sampler
        self.parts = parts
        self.starts = starts
        self.devices = devices
        self._stops = [*starts[1:], sampler.num_classes]

    def prepare(self, step):
        """As ``Sampler.prepare``."""
        return self.ask([step] * len(self.parts))

    def ask(self, steps):
        """Puts a step to the shards, to each as a ``Step`` with the queries where that one lies."""
        given, log_mass = [], []
        for part, device, step in zip(self.parts, self.devices, steps, strict=True):
            with tf.device(device):
                given.append(part.prepare(step._replace(query=tf.stop_gradient(step.query))))
                log_mass.append(part.log_mass(given[-1]))
        return Asked(tf.shape(steps[0].query)[0], given, log_mass)

    def deal(self, asked, seed):
        """Each shard's ``Share`` of the draws."""
        num_queries = asked.num_queries
        log_mass = tf.stack([tf.broadcast_to(own, [num_queries]) for own in asked.log_mass], 1)
        log_share = tf.nn.log_softmax(tf.cast(log_mass, tf.float64))
        seed, *seeds = tf.unstack(tf.random.split(seed, 1 + len(self.parts)))
        uniform = tf.random.stateless_uniform(
            [num_queries, self._sampler.num_negatives], seed, dtype=tf.float64
        )
        above = tf.cumsum(tf.exp(log_share), 1)[:, tf.newaxis, :-1]
        shard = tf.reduce_sum(tf.cast(uniform[:, :, tf.newaxis] >= above, tf.int32), 2)
        numbers = tf.reduce_sum(tf.one_hot(shard, len(self.parts), dtype=tf.int32), 1)
        log_share = tf.cast(log_share, tf.float32)
        return [Share(numbers[:, i], log_share[:, i], seed) for i, seed in enumerate(seeds)]

    def draws_of(self, number, asked, share):
        """As ``Sampler.draw``, of one shard and with ids of its own; in slots of others id -1 and count 0."""
        ids, log_expected_count, *_ = self.parts[number].draw(asked.given[number], share.seed)
        most = tf.maximum(tf.reduce_max(share.numbers), 0)  # of no query, the maximum is the least integer
        is_dealt = tf.range(most) < share.numbers[:, tf.newaxis]
        log_expected_count = log_expected_count[:, :most] + share.log_mass[:, tf.newaxis]
        # Where nothing is dealt, the shard's share may be so small that a weight 1 / count is infinite.
        return tf.where(is_dealt, ids[:, :most], -1), tf.where(is_dealt, log_expected_count, 0.0)

    def log_expected_counts_of(self, number, asked, share, ids):
        """Log expected counts [N, P] of ids [N, P] of the shard's own; 0 for id -1."""
        log_expected_count = self.parts[number].log_expected_count(asked.given[number], tf.maximum(ids, 0))
        return tf.where(ids >= 0, log_expected_count + share.log_mass[:, tf.newaxis], 0.0)

    def draw(self, asked, seed):
        """As ``Sampler.draw``: ids and counts of all draws, which then travel."""
        shares = self.deal(asked, seed)
        ends = tf.cumsum(tf.stack([share.numbers for share in shares], 1), 1)
        places, ids, log_expected_counts = [], [], []
        slots = tf.range(self._sampler.num_negatives)
        for number, (share, start, device) in enumerate(zip(shares, self.starts, self.devices, strict=True)):
            end = ends[:, number, tf.newaxis]
            places.append(tf.where((slots >= end - share.numbers[:, tf.newaxis]) & (slots < end)))
            with tf.device(device):
                own, log_expected_count = self.draws_of(number, asked, share)
                dealt = tf.where(own >= 0)
                ids.append(tf.gather_nd(own, dealt) + start)
                log_expected_counts.append(tf.gather_nd(log_expected_count, dealt))
        shape = tf.stack([tf.shape(ends, tf.int64)[0], tf.size(slots, tf.int64)])
        return put_together(places, ids, shape), put_together(places, log_expected_counts, shape)

    def log_expected_count(self, asked, ids):
        """As ``Sampler.log_expected_count``."""
        log_mass = [tf.broadcast_to(own, [asked.num_queries]) for own in asked.log_mass]
        total = tf.reduce_logsumexp(tf.stack(log_mass), 0)
        counts = []
        for number, (own, device) in enumerate(zip(log_mass, self.devices, strict=True)):
            with tf.device(device):
                share = Share(None, own - total, None)
                counts.append(self.log_expected_counts_of(number, asked, share, self.own_ids(number, ids)))
        return tf.add_n(counts)

    def own_ids(self, number, ids):
        """Of class ids those of the shard of this number, with ids of its own; else -1."""
        start, stop = self.starts[number], self._stops[number]
        return tf.where((ids >= start) & (ids < stop), ids - start, -1)
