"""Samplers whose classes lie on several parameter servers: each server draws among its own."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable

from tfxc._keras import keras, register
from tfxc._keras.layers import Untracked
from tfxc._keras.weights import add_weight, is_cut, tf_variable
from tfxc.cluster.placement import Shard, assign, lying_with, put_together
from tfxc.samplers import MIDX, Sampler, Unigram
from tfxc.samplers.midx import INDEX, ROWS, STATE, sorted_by_cell
from tfxc.samplers.unigram import TABLE, alias_table_of, normalised


class Asked(NamedTuple):
    """A step as a ``ShardedSampler`` has prepared for it.

    ``given``: for each part what its ``prepare`` gave. ``log_shares``: for each part float32 [N], the log of
    the probability that a draw is one of its own. ``ends``: float64 [N, P - 1]: a uniform number below the
    p-th end is a draw of one of the first p parts.
    """

    given: list
    log_shares: list
    ends: tf.Tensor


@register
class ShardedSampler(Sampler):
    """A sampler as parts answer for it: samplers of the same kind, each of the classes of one shard.

    It draws with replacement from one distribution over all classes. A draw is of part p with the share of Q
    that its classes have, and then one of the part's own: ``Q(i) = M_p / Σ_q M_q · Q_p(i)``. So numbers of
    draws are dealt out, and the distribution is that of the sampler on one machine. The first draws of a
    query are those of the first part, which also keeps what a sampler has only once, such as the counter.
    Subclasses know what the classes of a part weigh together, and how a part begins and is refreshed.
    """

    def __init__(self, sampler: Sampler, head) -> None:
        super().__init__(sampler.num_negatives, shared=sampler.shared, seed=sampler.seed, name=sampler.name)
        if sampler.built:
            raise ValueError(
                f"This {type(sampler).__name__} is built, but its classes are to lie with the rows of the "
                "head. Give it to the model as it was made: the model builds it."
            )
        self._whole, self._head = Untracked(sampler), Untracked(head)

    def get_config(self):
        return {"sampler": keras.saving.serialize_keras_object(self._whole.value)}

    @classmethod
    def from_config(cls, config):
        return keras.saving.deserialize_keras_object(config["sampler"])

    def build(self, input_shape):
        self.num_classes, self.query_dim = (int(size) for size in input_shape)
        whole, self.parts = self._whole.value, []
        for shard in self.shards:
            part = type(whole).from_config({**whole.get_config(), "name": None})
            with lying_with(shard.variable):
                part.build((min(shard.stop, self.num_classes) - shard.start, self.query_dim))
            self.parts.append(part)
        # For TensorFlow, too, what has a row for each class is one table.
        rows = zip(*[map(tf_variable, self.rows_of(part)) for part in self.parts], strict=True)
        self._tables = Untracked([ShardedVariable(list(parts)) for parts in rows])
        self.built = True

    def rows_of(self, part: Sampler) -> list:
        """The weights of a part with a row for each of its classes, without those that follow from others."""
        return []

    def log_mass(self, number: int, given) -> tf.Tensor:
        """The log [N] or [] of what the classes of a part weigh together, of any scale that parts share."""
        return tf.math.log(float(self.parts[number].num_classes))

    def of_all(self, log_expected_count, log_share) -> tf.Tensor:
        """What a part counts [N, P] among its own draws, counted among the draws of all parts."""
        return log_expected_count + log_share[:, tf.newaxis]

    @property
    def counter(self):
        return self.parts[0].counter

    @property
    def shards(self) -> list[Shard]:
        """Where the classes of each part lie."""
        return self._head.value.shards

    def copies(self) -> list[tf.Variable]:
        """The variables of the other parts that are as those of the first."""
        return [own for part in self.parts[1:] for own in _saved(part) if not is_cut(own)]

    def follow_saved(self) -> None:
        """Makes ``copies`` anew of what a checkpoint has brought back."""
        for first, *others in zip(*map(_saved, self.parts), strict=True):
            for own in [] if is_cut(first) else others:
                own.assign(first)

    def prepare(self, step):
        # A part does not know how much the classes of all parts weigh for each query.
        return self.ask_parts([step._replace(all_queries=None)] * len(self.parts))

    def ask_parts(self, steps) -> Asked:
        """As ``prepare``, of a ``Step`` for each part with the queries where that one lies."""
        given, log_mass = [], []
        for number, (part, shard, step) in enumerate(zip(self.parts, self.shards, steps, strict=True)):
            with tf.device(shard.device):
                given.append(part.prepare(step))
                log_mass.append(self.log_mass(number, given[-1]))
        num_queries = tf.shape(steps[0].query)[0]
        log_mass = tf.stack([tf.broadcast_to(own, [num_queries]) for own in log_mass], 1)
        log_shares = tf.nn.log_softmax(tf.cast(log_mass, tf.float64))
        ends = tf.cumsum(tf.exp(log_shares), 1)[:, :-1]
        return Asked(given, tf.unstack(tf.cast(log_shares, tf.float32), len(self.parts), 1), ends)

    def observe(self, step):
        for part, shard in zip(self.parts, self.shards, strict=True):
            with tf.device(shard.device):
                part.observe(step._replace(labels=shard.own(step.labels)))

    def deal(self, asked, seed) -> list:
        """For each part how many of each query's draws it makes, int32 [N], and a seed for them, [2]."""
        seed, *seeds = tf.unstack(tf.random.split(seed, 1 + len(self.parts)))
        shape = tf.stack([tf.shape(asked.ends)[0], self.num_negatives])
        uniform = tf.random.stateless_uniform(shape, seed, dtype=tf.float64)
        drawn_by = tf.cast(uniform[:, :, tf.newaxis] >= asked.ends[:, tf.newaxis], tf.int32)
        numbers = tf.reduce_sum(tf.one_hot(tf.reduce_sum(drawn_by, 2), len(self.parts), dtype=tf.int32), 1)
        return [(numbers[:, i], seed) for i, seed in enumerate(seeds)]

    def draw_of(self, number, asked, num_drawn, seed):
        """The ids of a part's draws, -1 in others' slots, log expected counts, and what counts need."""
        ids, log_expected_count, *given = self.parts[number].draw(asked.given[number], seed)
        most = tf.maximum(tf.reduce_max(num_drawn), 0)  # the maximum of no numbers is the least integer
        is_dealt = tf.range(most) < num_drawn[:, tf.newaxis]
        log_expected_count = self.of_all(log_expected_count[:, :most], asked.log_shares[number])
        # The share of a part that draws nothing may be so small that a weight 1 / count is infinite.
        log_expected_count = tf.where(is_dealt, log_expected_count, 0.0)
        return tf.where(is_dealt, ids[:, :most], -1), log_expected_count, *(given or [asked.given[number]])

    def count_of(self, number, asked, given, ids):
        """Log expected counts [N, P] of ids [N, P] of a part's own; 0 for id -1."""
        log_expected_count = self.parts[number].log_expected_count(given, tf.maximum(ids, 0))
        return tf.where(ids >= 0, self.of_all(log_expected_count, asked.log_shares[number]), 0.0)

    def draw(self, given, seed):
        shares = self.deal(given, seed)
        ends = tf.cumsum(tf.stack([num_drawn for num_drawn, _ in shares], 1), 1)
        places, ids, log_expected_counts, slots = [], [], [], tf.range(self.num_negatives)
        for number, (share, shard) in enumerate(zip(shares, self.shards, strict=True)):
            end = ends[:, number, tf.newaxis]
            places.append(tf.where((slots >= end - share[0][:, tf.newaxis]) & (slots < end)))
            with tf.device(shard.device):
                own, log_expected_count, _ = self.draw_of(number, given, *share)
                dealt = tf.where(own >= 0)
                ids.append(tf.gather_nd(own, dealt) + shard.start)
                log_expected_counts.append(tf.gather_nd(log_expected_count, dealt))
        shape = tf.stack([tf.shape(ends, tf.int64)[0], tf.size(slots, tf.int64)])
        return put_together(places, ids, shape), put_together(places, log_expected_counts, shape)

    def log_expected_count(self, given, ids):
        counts = []
        for number, shard in enumerate(self.shards):
            with tf.device(shard.device):
                counts.append(self.count_of(number, given, given.given[number], shard.own(ids)))
        return tf.add_n(counts)


@register
class ShardedUnigram(ShardedSampler):
    """``Unigram`` over parts, each of which counts the labels among its own classes.

    The ``log_probs`` of a part are those among all classes, and its alias table is made of them.
    """

    def build(self, input_shape):
        super().build(input_shape)
        self.log_masses = []
        for number, shard in enumerate(self.shards):
            with lying_with(shard.variable):
                self.log_masses.append(add_weight(self, f"log_mass_{number}", (), trainable=False))
        self._follow(self._whole.value.first_log_probs(self.num_classes))

    def rows_of(self, part):
        return [part.log_probs] + ([part.running_counts.occurrences] if part.counts is None else [])

    def log_mass(self, number, given):
        return tf.convert_to_tensor(tf_variable(self.log_masses[number]))

    def of_all(self, log_expected_count, log_share):
        return log_expected_count

    def refresh(self, head):
        whole = self._whole.value
        if whole.counts is None:
            counts = np.concatenate([part.running_counts.numpy() for part in self.parts])
            self._follow(normalised(whole.log_weights(counts)))

    def _follow(self, log_probs):
        for part, shard in zip(self.parts, self.shards, strict=True):
            own = log_probs[shard.start : shard.start + part.num_classes]
            assign(tf_variable(part.log_probs), own.astype(np.float32))
            follow_saved(part)
        self._weigh()

    def copies(self):
        return super().copies() + [tf_variable(own) for own in self.log_masses]

    def follow_saved(self):
        super().follow_saved()
        self._weigh()

    def _weigh(self):
        for part, log_mass in zip(self.parts, self.log_masses, strict=True):
            log_probs = tf_variable(part.log_probs).numpy().astype(np.float64)
            largest = log_probs.max()
            tf_variable(log_mass).assign(largest + np.log(np.exp(log_probs - largest).sum()))


@register
class ShardedMIDX(ShardedSampler):
    """``MIDX`` over parts that share the codebooks."""

    def build(self, input_shape):
        super().build(input_shape)
        whole, first = self._whole.value, self.parts[0]
        whole.queries, whole.query_sample = first.queries, first.query_sample

    def observe(self, step):
        # A refresh reads what the first part knows of queries: they need not travel to the others.
        with tf.device(self.shards[0].device):
            self.parts[0].observe(step)

    def rows_of(self, part):
        return [getattr(part, name) for name in ROWS]

    def log_mass(self, number, given):
        return self.parts[number].log_mass(given)

    def refresh(self, head):
        self.check_head(head)
        known = [{name: tf_variable(getattr(part, name)).numpy() for name in STATE} for part in self.parts]
        rows = {name: np.concatenate([own[name] for own in known]) for name in ROWS}
        state = self._whole.value.renewed(head, {**known[0], **rows}, int(tf_variable(self.counter).numpy()))
        for part, shard in zip(self.parts, self.shards, strict=True):
            own = {name: state[name][shard.start : shard.start + part.num_classes] for name in ROWS}
            index = sorted_by_cell(own["cell"], own["class_weight"], part.num_codewords)
            _assign(part, {**state, **own, **index})


def derived_weights(sampler: Sampler) -> list[tf.Variable]:
    """The variables of a built sampler that follow from others: a checkpoint has none of them."""
    if isinstance(sampler, ShardedSampler):
        return sampler.copies()
    names = INDEX if isinstance(sampler, MIDX) else TABLE if isinstance(sampler, Unigram) else ()
    return [tf_variable(getattr(sampler, name)) for name in names]


def follow_saved(sampler: Sampler) -> None:
    """Makes the ``derived_weights`` of a sampler anew from its others."""
    if isinstance(sampler, ShardedSampler):
        sampler.follow_saved()
    elif isinstance(sampler, MIDX):
        cell, weight = (tf_variable(own).numpy() for own in (sampler.cell, sampler.class_weight))
        _assign(sampler, sorted_by_cell(cell, weight, sampler.num_codewords))
    elif isinstance(sampler, Unigram):
        _assign(sampler, alias_table_of(tf_variable(sampler.log_probs).numpy().astype(np.float64)))
        if sampler.counts is None:
            sampler.running_counts.classes_changed()  # sums the labels


def _saved(sampler):
    derived = set(map(id, derived_weights(sampler)))
    return [own for own in map(tf_variable, sampler.weights) if id(own) not in derived]


def _assign(sampler, values):
    for name, value in values.items():
        assign(tf_variable(getattr(sampler, name)), value)
