"""A head whose classes lie on several parameter servers: each answers for its own, and answers are merged."""

import tensorflow as tf

from tfxc._keras.weights import tf_variable
from tfxc.ids import check_ids, hits
from tfxc.ops.remote import put_together, run_on, shards_of
from tfxc.samplers.sampler_shards import Share
from tfxc.samplers.step import Step
from tfxc.scored import Scored


class HeadShards:
    """What a head is asked of its classes, answered by shards: heads that hold some classes each.

    A server gets the queries and the ids of its classes and gives scores; in the backward pass it gets the
    scores' gradients and gives the queries'. Rows of classes, and the gradients of rows, stay where they are.
    Over all classes each server folds its own, and what they found is merged.

    Args:
        heads: built heads, of consecutive classes, each with its weights on one server.
        starts: for each, the id of its first class.

    Example:
        >>> heads = [tfxc.layers.DenseHead(2), tfxc.layers.DenseHead(3)]
        >>> for head in heads:
        ...     head.build((None, 4))
        >>> shards = HeadShards(heads, [0, 2])
        >>> shards.score(tf.ones([1, 4]), tf.constant([[0, 4, -1]])).shape
        TensorShape([1, 3])
        >>> shards.best(tf.ones([1, 4]), 5, None)[1].shape
        TensorShape([1, 5])
    """

    ANSWERS = (
        "call",
        "score",
        "_score_both",
        "class_vectors_of",
        "reduce",
        "scan",
        "best",
        "losses_and_best",
        "check",
    )

    def __init__(self, heads, starts):
        self.heads = heads
        self.starts = starts
        self.num_classes = starts[-1] + heads[-1].num_classes

    def _ask(self, question):
        """What each shard answers: ``question(head, start)`` gives a function and its inputs."""
        return [
            run_on(
                _device(head), *question(head, start), [tf_variable(own) for own in head.trainable_variables]
            )
            for head, start in zip(self.heads, self.starts, strict=True)
        ]

    def call(self, query):
        """All logits float32 [..., L]."""
        return tf.concat([answer for (answer,) in self._ask(lambda head, _: (_call_of(head), [query]))], -1)

    def score(self, query, class_ids):
        """As ``Head.score``."""
        class_ids = tf.convert_to_tensor(class_ids)
        if class_ids.shape.rank == 1:
            nobody = tf.zeros([tf.shape(query)[0], 0], tf.int32)
            return self._scores(query, nobody, class_ids)[1]
        return self._scores(query, class_ids, None)[0]

    def _score_both(self, query, labels, class_ids):
        """As ``Head._score_both``."""
        if class_ids.shape.rank == 1:
            return self._scores(query, labels, class_ids)
        logits = self._scores(query, tf.concat([labels, class_ids], 1), None)[0]
        return logits[:, : tf.shape(labels)[1]], logits[:, tf.shape(labels)[1] :]

    def _scores(self, query, own_ids, shared_ids):
        """Logits [N, P] of each query's own classes and [N, S] of shared ones (None: there are none)."""
        own_ids = check_ids(own_ids, self.num_classes, "class")
        own_places, shared_places = [], []
        if shared_ids is not None:
            shared_ids = check_ids(shared_ids, self.num_classes, "class")

        def question(head, start):
            inside = (own_ids >= start) & (own_ids < start + head.num_classes)
            places = tf.where(inside)
            own_places.append(places)
            # Flat, with the length of each row: empty slots would double what travels.
            given = [query, tf.gather_nd(own_ids, places) - start]
            given.append(tf.reduce_sum(tf.cast(inside, tf.int32), 1))
            if shared_ids is None:
                return lambda *given: [_scores_of_own(head, *given)], given
            chosen = tf.where((shared_ids >= start) & (shared_ids < start + head.num_classes))
            shared_places.append(chosen)
            given.append(tf.gather_nd(shared_ids, chosen) - start)
            return lambda *given: [_scores_of_own(head, *given[:3]), _by_class(head, *given[::3])], given

        answers = self._ask(question)
        shape = tf.shape(own_ids, tf.int64)
        own = put_together(own_places, [answer[0] for answer in answers], shape)
        if shared_ids is None:
            return own, None
        shape = tf.stack([tf.size(shared_ids, tf.int64), shape[0]])
        return own, tf.transpose(put_together(shared_places, [answer[1] for answer in answers], shape))

    def draws_of(self, sampler, loss):
        """The ``SamplerShards`` by which each shard draws candidates of its own, for ``sampled_losses``.

        None where candidates must come together: if the sampler is not cut into the same shards, has one set
        of draws for all queries, or the loss cannot merge what the shards make of theirs.
        """
        if sampler.shared or loss.over_candidates is None or loss.over_candidates.merge is None:
            return None
        return sampler.shards_at(self.starts, [_device(head) for head in self.heads])

    def sampled_losses(self, query, labels, loss, draws, seed):
        """Losses [N] over candidates that each shard draws, scores and folds where they lie.

        Queries, numbers of draws and folds travel; ids and scores of candidates do not.

        Args:
            query: float [N, D].
            labels: int32 [N, P], padded with -1.
            loss: one for which ``draws_of`` found the draws.
            draws: these, ``SamplerShards``.
            seed: [2] integers.
        """
        steps = []
        for head in self.heads:
            with tf.device(_device(head)):
                steps.append(Step(head.effective_query(tf.stop_gradient(query)), labels))
        asked = draws.ask(steps)
        shares = draws.deal(asked, seed)

        def question(head, start):
            number = self.starts.index(start)

            def answer(query, labels, *share):
                share = Share(*share)
                ids, log_expected_count = draws.draws_of(number, asked, share)
                positives, candidates = head._score_both(query, labels, ids)
                candidates = Scored(candidates, tf.stop_gradient(log_expected_count)).without(ids < 0)
                folded = loss.over_candidates.of(candidates, hits(ids, labels))
                return [folded, positives, draws.log_expected_counts_of(number, asked, share, labels)]

            return answer, [query, draws.own_ids(number, labels), *shares[number]]

        folded, positives, log_expected_counts = zip(*self._ask(question), strict=True)
        positives = Scored(tf.add_n(positives), tf.stop_gradient(tf.add_n(log_expected_counts)))
        return loss.with_candidates(positives, loss.over_candidates.merge(folded), labels >= 0)

    def class_vectors_of(self, class_ids):
        """As ``Head.class_vectors_of``: here, and for an index only, class vectors travel. No gradient."""
        places, vectors = [], []
        for head, start in zip(self.heads, self.starts, strict=True):
            places.append(tf.where((class_ids >= start) & (class_ids < start + head.num_classes)))
            ids = tf.gather_nd(class_ids, places[-1]) - start
            with tf.device(_device(head)):
                vectors.append(tf.stop_gradient(head.class_vectors_of(ids)))
        shape = [tf.size(class_ids, tf.int64), self.heads[0].effective_dim]
        return put_together(places, vectors, tf.stack([tf.cast(size, tf.int64) for size in shape]))

    def reduce(self, query, labels, loss):
        """As ``Head.reduce``."""
        self.check(loss=loss)  # one that was compiled before there were shards

        def question(head, start):
            inside = (labels >= start) & (labels < start + head.num_classes)
            own = tf.where(inside, labels - start, -1)
            return lambda query, own: head.reduce(query, own, loss), [query, own]

        reduced, positives = zip(*self._ask(question), strict=True)
        return loss.over_classes.merge(reduced), tf.add_n(list(positives))

    def scan(self, query, fold, carry):
        """As ``Head.scan``, one shard after the other, each of which folds its blocks. No gradient."""
        for head, start in zip(self.heads, self.starts, strict=True):

            def fold_own(carry, logits, first, start=start):
                return fold(carry, logits, start + first)

            with tf.device(_device(head)):
                carry = head.scan(query, fold_own, carry)
        return carry

    def best(self, query, k, exclude):
        """As ``Head.best``."""
        found = []
        for head, start in zip(self.heads, self.starts, strict=True):
            with tf.device(_device(head)):
                out = None if exclude is None else exclude - start
                scores, ids = head.best(query, tf.minimum(k, head.num_classes), out)
                found.append((scores, tf.where(ids >= 0, ids + start, -1)))
        return _best_of(found, k)

    def losses_and_best(self, query, labels, loss, k, exclude=None):
        """As ``Head.losses_and_best``."""
        reduced, found, nobody = [], [], tf.zeros([tf.shape(query)[0], 0], tf.int32)
        for head, start in zip(self.heads, self.starts, strict=True):
            with tf.device(_device(head)):
                out = None if exclude is None else exclude - start
                most = tf.minimum(k, head.num_classes)
                part, ids = head.losses_and_best(query, nobody, _ReductionAlone(loss), most, out)
                scores = tf.where(ids >= 0, head.score(query, ids), float("-inf"))
                found.append((scores, tf.where(ids >= 0, ids + start, -1)))
                reduced.append(part)
        whole = loss.over_classes.merge(reduced)
        return loss.combine(whole, self.score(query, labels), labels >= 0), _best_of(found, k)[1]

    def check(self, sampler=None, loss=None, optimizer=None):
        """Raises ValueError for a loss that shards cannot compute together."""
        if loss is None:
            return
        if loss.over_classes.merge is None:
            raise ValueError(
                f"What {type(loss).__name__} sums over the classes cannot be merged over parameter servers. "
                "Give its Reduction a merge, or use SoftmaxCrossentropy, BinaryCrossentropy or SquaredHinge."
            )
        if loss.filter_below is not None:
            raise ValueError(
                "filter_below compares with a probability among all classes, which no parameter server "
                "knows: leave it out, or train on one machine."
            )


def divided(head, weights, others):
    """The ``HeadShards`` of a head whose weights lie on parameter servers; None on this machine.

    Args: as of ``Head.divide``, which see.
    """
    tables = [shards_of(tf_variable(getattr(head, name))) for name in weights]
    if not tables[0]:
        return None
    places = [[(shard.start, shard.device) for shard in table] for table in tables]
    if any(other != places[0] for other in places):
        raise ValueError(
            f"The weights {weights} of {head.name} lie in different shards: {places}. Make the strategy by "
            "tfxc.cluster.strategy, whose shards of tables of one height lie together."
        )
    heads = []
    for shards in zip(*tables, strict=True):
        # A head that is frozen may thaw: what trains is for the whole one to say.
        config = {**head.get_config(), "num_classes": shards[0].variable.shape[0], "trainable": True}
        part = type(head).from_config(config)
        own = {name: shard.variable for name, shard in zip(weights, shards, strict=True)}
        for name, value in {**own, **others}.items():
            setattr(part, name, value)
        part.built = True
        heads.append(part)
    return HeadShards(heads, [shard.start for shard in tables[0]])


class _ReductionAlone:
    """A loss that ends with its reduction over classes."""

    def __init__(self, loss):
        self.over_classes = loss.over_classes

    def combine(self, reduced, positive_logits, is_label):
        return reduced


def _device(head):
    return tf_variable(head.trainable_variables[0]).device


def _call_of(head):
    return lambda query: [head.call(query)]


def _scores_of_own(head, query, ids, lengths):
    """Scores [M] of ids [M], the first ``lengths[0]`` being those of the first query, and so on."""
    each = tf.RaggedTensor.from_row_lengths(ids, lengths, validate=False).to_tensor(-1)
    return tf.gather_nd(head.score(query, each), tf.where(each >= 0))


def _by_class(head, query, ids):
    """Scores [S, N] of ids [S] for all queries."""
    return tf.transpose(head.score(query, ids))


def _best_of(found, k):
    """The k best of scores and ids, each best first, of lower ids and higher ones."""
    scores, ids = (tf.concat(parts, 1) for parts in zip(*found, strict=True))
    scores, order = tf.math.top_k(scores, k)
    return scores, tf.gather(ids, order, batch_dims=1)
