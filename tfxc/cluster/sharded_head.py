"""A head whose classes lie on several parameter servers: each answers for its own, and answers are merged."""

import tensorflow as tf

from tfxc._keras import keras, register
from tfxc._keras.layers import Untracked
from tfxc._keras.weights import tf_variable
from tfxc.cluster.placement import Shard, lying_with, put_together, shards_of
from tfxc.ids import check_ids
from tfxc.layers import DenseHead, UniformSparseHead
from tfxc.layers.dense_head import tied_row_offset
from tfxc.layers.head import Head
from tfxc.ops.run_on import run_on
from tfxc.scored import BestClasses

# By kind of head: its weights with a row for each class. And what else a head of some of the classes needs.
_ROWS = {DenseHead: ["table", "bias"], UniformSparseHead: ["kernel", "indices", "bias"]}
_SHARED = "query_dim", "effective_dim", "num_inputs", "directions"


@register
class ShardedHead(Head):
    """A head as parts answer for it: heads of the same kind, each of which holds the classes of one shard.

    A server gets the queries and the ids of its classes and gives scores; in the backward pass it gets the
    scores' gradients and gives the queries'. Rows of classes, and the gradients of rows, stay where they are.
    Over all classes each server folds its own, and what they found is merged.

    The head itself holds all weights and answers whatever is not asked of single classes. A config tells of
    no shards: the head is made of it.
    """

    def __init__(self, head: Head) -> None:
        super().__init__(head.num_classes, name=head.name)
        self.head = head
        self._parts, self._shards = Untracked([]), Untracked([])  # Keras would count their variables twice

    def get_config(self):
        return {"head": keras.saving.serialize_keras_object(self.head)}

    @classmethod
    def from_config(cls, config):
        return keras.saving.deserialize_keras_object(config["head"])

    def build(self, input_shape):
        names = next(names for kind, names in _ROWS.items() if isinstance(self.head, kind))
        if not self.head.built:
            with lying_with(None, names):
                self.head.build(input_shape)
        self.effective_dim = self.head.effective_dim
        if tied_row_offset(self.head) is None:
            self._cut([name for name in names if hasattr(self.head, name)])
        else:
            self._keep_whole()
        super().build(input_shape)

    def _cut(self, names):
        """Makes a head of the rows of each shard of the weights of these names."""
        rows = [shards_of(getattr(self.head, name)) for name in names]
        places = [[(shard.start, shard.device) for shard in shards] for shards in rows]
        if any(place != places[0] for place in places):
            raise ValueError(
                f"The weights {names} of {self.head.name} lie in different shards: {places}. Make the "
                "strategy by tfxc.cluster.strategy, whose shards of tables of one height lie together."
            )
        self._shards = Untracked(rows[0])
        shared = {name: getattr(self.head, name) for name in _SHARED if hasattr(self.head, name)}
        self._parts = Untracked([])
        for shards in zip(*rows, strict=True):
            # A head that is frozen may thaw: the whole head says what trains.
            config = {**self.head.get_config(), "num_classes": shards[0].variable.shape[0], "trainable": True}
            part = type(self.head).from_config(config)
            own = {name: shard.variable for name, shard in zip(names, shards, strict=True)}
            for name, value in {**own, **shared}.items():
                setattr(part, name, value)
            part.built = True
            self._parts.value.append(part)

    def _keep_whole(self):
        """Has the head itself answer on the server that holds the table it shares with the encoder."""
        self._shards = Untracked(shards_of(self.head.table_variable))
        if len(self.shards) > 1:
            raise ValueError(
                f"The table of {self.head.tied_to!r} is cut into shards on parameter servers, and its rows "
                "would travel between them and the workers. Leave tied_to out: the head gets a table of its "
                "own. Or keep the table whole: tfxc.cluster.strategy(..., num_shards=1)."
            )
        self._parts = Untracked([self.head])

    @property
    def parts(self) -> list[Head]:
        return self._parts.value

    @property
    def shards(self) -> list[Shard]:
        """Where the rows of each part lie."""
        return self._shards.value

    @property
    def indexable(self):
        return self.head.indexable

    @property
    def approximate(self):
        return self.head.approximate

    def observe(self, query):
        with tf.device(self.shards[0].device):  # where the rest of the head lies
            self.head.observe(query)

    def prepare_index(self):
        self.head.prepare_index()

    def effective_query(self, query):
        return self.head.effective_query(query)

    def class_rows(self):
        return self.head.class_rows()

    def describe(self):
        return self.head.describe()

    def shared_layers(self, encoder):
        return self.head.shared_layers(encoder)

    def share(self, encoder, places=None):
        self.head = self.head.share(encoder, places)
        return self

    def check(self, sampler=None, loss=None, optimizer=None):
        self.head.check(sampler=sampler, optimizer=optimizer)
        if loss is not None and loss.over_classes.merge is None:
            raise ValueError(
                f"What {type(loss).__name__} sums over the classes cannot be merged over parameter servers. "
                "Give its Reduction a merge, or use SoftmaxCrossentropy, BinaryCrossentropy or SquaredHinge."
            )
        if loss is not None and loss.filter_below is not None and len(self.parts) != 1:
            raise ValueError(
                "filter_below compares with a probability among all classes, which no parameter server "
                "knows: leave it out, or train on one machine."
            )

    def ask(self, question) -> list:
        """What each part answers: ``question(number, part)`` gives a function and its inputs."""
        answers = []
        for number, (part, shard) in enumerate(zip(self.parts, self.shards, strict=True)):
            rows = [tf_variable(rows.weight) for rows in part.class_rows()]
            trained = [variable for variable in rows if variable.trainable]
            function, inputs = question(number, part)
            answers.append(run_on(shard.device, function, inputs, trained))
        return answers

    def call(self, query):
        """All logits float32 [..., L]."""

        def question(number, part):
            return lambda query: [part.call(query)], [query]

        return tf.concat([logits for (logits,) in self.ask(question)], -1)

    def score(self, query, class_ids):
        class_ids = tf.convert_to_tensor(class_ids)
        if class_ids.shape.rank == 1:
            nobody = tf.zeros([tf.shape(query)[0], 0], tf.int32)
            return self._scores(query, nobody, class_ids)[1]
        return self._scores(query, class_ids, None)[0]

    def _score_both(self, query, labels, class_ids):
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

        def question(number, part):
            inside = self.shards[number].own(own_ids)
            own_places.append(tf.where(inside >= 0))
            # Flat, with the length of each row: empty slots would double what travels.
            given = [query, tf.gather_nd(inside, own_places[-1])]
            given.append(tf.reduce_sum(tf.cast(inside >= 0, tf.int32), 1))
            if shared_ids is None:
                return lambda *given: [_scores_of_own(part, *given)], given
            inside = self.shards[number].own(shared_ids)
            shared_places.append(tf.where(inside >= 0))
            given.append(tf.gather_nd(inside, shared_places[-1]))

            def answer(query, own_ids, lengths, shared_ids):
                scores = tf.transpose(part.score(query, shared_ids))  # [S, N]
                return [_scores_of_own(part, query, own_ids, lengths), scores]

            return answer, given

        answers = self.ask(question)
        shape = tf.shape(own_ids, tf.int64)
        own = put_together(own_places, [answer[0] for answer in answers], shape)
        if shared_ids is None:
            return own, None
        shape = tf.stack([tf.size(shared_ids, tf.int64), shape[0]])
        return own, tf.transpose(put_together(shared_places, [answer[1] for answer in answers], shape))

    def class_vectors_of(self, class_ids):
        """As ``Head.class_vectors_of``: here, and for an index only, class vectors travel. No gradient."""
        places, vectors = [], []
        for part, shard in zip(self.parts, self.shards, strict=True):
            inside = shard.own(class_ids)
            places.append(tf.where(inside >= 0))
            ids = tf.gather_nd(inside, places[-1])
            with tf.device(shard.device):
                vectors.append(tf.stop_gradient(part.class_vectors_of(ids)))
        shape = [tf.size(class_ids, tf.int64), self.effective_dim]
        return put_together(places, vectors, tf.stack([tf.cast(size, tf.int64) for size in shape]))

    def reduce(self, query, labels, loss):
        self.check(loss=loss)  # one that was compiled before there were shards

        def question(number, part):
            return lambda query, own: part.reduce(query, own, loss), [query, self.shards[number].own(labels)]

        reduced, positives = zip(*self.ask(question), strict=True)
        return loss.over_classes.merge(list(reduced)), tf.add_n(list(positives))

    def scan(self, query, fold, carry):
        """As ``Head.scan``, one shard after the other, each of which folds its blocks. No gradient."""
        for part, shard in zip(self.parts, self.shards, strict=True):

            def fold_own(carry, logits, first, start=shard.start):
                return fold(carry, logits, start + first)

            with tf.device(shard.device):
                carry = part.scan(query, fold_own, carry)
        return carry

    def best(self, query, k, exclude):
        found = []
        for part, shard in zip(self.parts, self.shards, strict=True):
            with tf.device(shard.device):
                out = None if exclude is None else exclude - shard.start
                scores, ids = part.best(query, tf.minimum(k, part.num_classes), out)
                found.append((scores, tf.where(ids >= 0, ids + shard.start, -1)))
        scores, ids = (tf.concat(parts, 1) for parts in zip(*found, strict=True))
        scores, order = tf.math.top_k(scores, k)
        return scores, tf.gather(ids, order, batch_dims=1)

    def losses_and_best(self, query, labels, loss, k, exclude=None):
        return self.losses(query, labels, loss), BestClasses(*self.best(query, k, exclude))


def _scores_of_own(head, query, ids, lengths):
    """Scores [M] of ids [M], the first ``lengths[0]`` being those of the first query, and so on."""
    each = tf.RaggedTensor.from_row_lengths(ids, lengths, validate=False).to_tensor(-1)
    return tf.gather_nd(head.score(query, each), tf.where(each >= 0))
