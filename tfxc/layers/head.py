"""The contract of a head, and what follows from scoring one block of classes at a time."""

import numbers
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfxc._keras import keras
from tfxc._keras.weights import tf_variable
from tfxc.arguments import count_tensor, positive_int, require_count
from tfxc.class_rows import BY_MEAN, BY_RULE, ClassRows
from tfxc.class_vectors import effective_query_of, vector_of_each
from tfxc.ids import check_ids, excluded_ids, hits, padded_ids, refuse_other_rows, require_queries
from tfxc.infinity import infinity_is_meant
from tfxc.losses.classification_loss import ClassificationLoss
from tfxc.losses.reductions import CandidateReduction
from tfxc.ops.custom_gradient import kept_by_graph
from tfxc.require import at_least_one
from tfxc.samplers.sampler import Sampler
from tfxc.scored import BestClasses, Scored
from tfxc.search.attributes import Attributes, passing
from tfxc.search.candidates import best_allowed, search_or_allowed, search_or_filtered
from tfxc.search.exact import BlockTopK
from tfxc.spare_classes import without_spare

# Blocks of logits [N, b] hold about this many numbers: 16 MB, large enough for an efficient matmul.
_BLOCK_ELEMENTS = 1 << 22
_BLOCK_MIN = 256


class Head(keras.layers.Layer):
    """How the L classes are scored. A subclass gives the class vectors; ``Head`` derives the rest from them.

    The contract is two functions and a number: ``effective_query(query)`` [N, E], ``class_vectors_of(ids)``
    [n, E] and ``effective_dim`` = E, set in ``build``, such that their inner product is the logit of a class,
    with bias, normalisation and temperature already in. Samplers and indices read these as well.

    Everything else has a default, which a head overrides for one of four reasons:

    * It knows a faster way: ``score`` (chosen classes), ``blocks`` (a block of classes), ``reduce`` (a loss
      over all classes), ``candidates`` (a loss over sampled classes), ``best`` (the best k classes).
    * Its scores are no inner products. It sets ``indexable = False`` and defines ``blocks`` and ``score``;
      if other numbers than these scores train it, also ``losses`` and ``losses_and_best``. Or they come near
      to inner products (``approximate``) for queries such as those that ``observe`` has shown it.
    * It refuses a sampler, a loss or an optimizer (``check``), shares layers with the encoder
      (``shared_layers``, ``share``) or caches class vectors (``freshen``).
    * Other classes change more of it than rows of weights: ``class_rows``, ``config_for``,
      ``classes_changed``. ``describe`` says what it takes in memory.

    Args:
        num_classes: L, an integer in [1, 2^31), since ids are int32.

    Raises:
        ValueError: for another num_classes.

    Example:
        >>> class Cosine(Head):
        ...     def build(self, input_shape):
        ...         self.effective_dim = input_shape[-1]
        ...         self.table = self.add_weight(shape=(self.num_classes, self.effective_dim), name="table")
        ...         self.built = True
        ...
        ...     def effective_query(self, query):
        ...         return 10.0 * tf.math.l2_normalize(query, axis=-1)
        ...
        ...     def class_vectors_of(self, class_ids):
        ...         return tf.math.l2_normalize(tf.gather(self.table, class_ids), axis=-1)
        >>> head = Cosine(1000)
        >>> head.build((None, 16))
        >>> head.score(tf.ones([2, 16]), tf.constant([[3, 7, 9], [0, 1, 2]])).shape
        TensorShape([2, 3])
    """

    max_block_size = 8192
    indexable: bool | property = True  # class vectors rank the classes
    approximate: bool | property = False  # inner products with them only come near to the logits

    def __init__(self, num_classes: int, **kwargs) -> None:
        super().__init__(**kwargs)
        self.num_classes = positive_int(num_classes, "num_classes", most=tf.int32.max)
        self.query_dim: int | Any = None  # D, once built
        self.supports_jit = False  # the compiled ops do not run under XLA
        self.supports_masking = True  # the mask of sequences goes on to the loss

    def get_config(self):
        return {**super().get_config(), "num_classes": self.num_classes}

    def build(self, input_shape):
        self.query_dim = input_shape[-1]
        super().build(input_shape)

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.num_classes)

    def require_width(self, query) -> None:
        """Raises ValueError for queries that are known to be of another width than the head was built for."""
        if self.query_dim is not None and query.shape[-1] not in (self.query_dim, None):
            raise ValueError(
                f"This {type(self).__name__} was built for queries [N, {self.query_dim}], but query has "
                f"shape {tuple(query.shape)}."
            )

    def call(self, query):
        """All logits float32 [..., L] of queries [..., D]."""
        self.require_width(query)
        shape = tf.shape(query)
        logits = self._all_logits(tf.reshape(query, [-1, query.shape[-1] or self.query_dim]))
        return tf.reshape(logits, tf.concat([shape[:-1], [self.num_classes]], 0))

    def _all_logits(self, query):
        """All logits [N, L] of queries [N, D]."""
        return self.blocks(query)(0, self.num_classes)

    def effective_query(self, query) -> tf.Tensor:
        """What class vectors are multiplied with: float32 [N, effective_dim], made of queries [N, D]."""
        raise NotImplementedError(f"{type(self).__name__} does not define effective_query(query).")

    def class_vectors_of(self, class_ids) -> tf.Tensor:
        """Class vectors [n, effective_dim] of class ids int32 [n]."""
        raise NotImplementedError(f"{type(self).__name__} does not define class_vectors_of(class_ids).")

    def class_vectors(self, start: int, stop: int) -> tf.Tensor:
        """Class vectors [stop - start, effective_dim] of the classes from ``start`` to before ``stop``."""
        return vector_of_each(self, tf.range(start, stop))

    def blocks(self, query) -> Callable[..., tf.Tensor]:
        """Prepares queries [N, D] once, for any number of blocks of classes.

        Returns:
            A function of ``start`` and ``stop`` to the logits [N, stop - start] of these classes.
        """
        query = effective_query_of(self, query)
        return lambda start, stop: tf.matmul(query, self.class_vectors(start, stop), transpose_b=True)

    def score(self, query, class_ids) -> tf.Tensor:
        """Logits [N, S] of chosen classes for queries [N, D]; the gradient is sparse in the class rows.

        Class ids are integers [N, S], or [S] shared by all queries; -1 is an empty slot with logit 0. An id
        outside [-1, L) raises an InvalidArgumentError.
        """
        class_ids = check_ids(class_ids, self.num_classes, "class")
        filled, where = of_filled_slots(tf.reshape(class_ids, [-1]))
        shape = [tf.size(class_ids), self.effective_dim]
        vectors = tf.scatter_nd(where, vector_of_each(self, filled), tf.cast(shape, tf.int64))
        vectors = tf.reshape(vectors, tf.concat([tf.shape(class_ids), [self.effective_dim]], 0))
        products = "nd,sd->ns" if class_ids.shape.rank == 1 else "nd,nsd->ns"
        return tf.einsum(products, effective_query_of(self, query), vectors)

    def _score_both(self, query, labels, class_ids) -> tuple[tf.Tensor, tf.Tensor]:
        """Logits [N, P] of labels [N, P] and [N, S] of class ids [N, S] or [S], as ``score`` gives them."""
        if class_ids.shape.rank == 1:
            return self.score(query, labels), self.score(query, class_ids)
        # One call gives the table one gradient, and one split puts the gradient of the logits together once.
        logits = self.score(query, tf.concat([labels, class_ids], 1))
        return tf.split(logits, [tf.shape(labels)[1], tf.shape(class_ids)[1]], axis=1)

    def candidates(
        self, query, labels, class_ids, log_expected_count, reduction: CandidateReduction
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The logits [N, P] of labels, and the fold [N, 1] of all candidates.

        Labels are int32 [N, P], padded with -1; class ids, and counts that broadcast to [N, S], as of a
        ``Draw``. The reduction is how a loss sums scored candidates, its ``over_candidates``.
        """
        positives, negatives, which = score_candidates(self, query, labels, class_ids, log_expected_count)
        return positives, reduction.of(negatives, which)

    def freshen(self, force: bool = False) -> list:
        """Computes the class vectors that a head caches, if they are out of date, or by ``force``.

        It returns ops to wait for by ``tf.control_dependencies``: a graph cannot compute the vectors, but
        fails where they are out of date. Most heads cache none.
        """
        return []

    def prepare_index(self) -> None:
        """Called before an index is built: what class vectors are made of may change here alone."""
        self.freshen()

    def observe(self, query) -> None:
        """Called once a training step: what follows the queries [N, D] moves here alone."""

    def reduce(self, query, labels, loss: ClassificationLoss) -> tuple[tf.Tensor, tf.Tensor]:
        """A loss's reduction over all classes [N] and the logits [N, P] of its positives.

        Labels are int32 [N, P] in [0, L), padded with -1. The backward pass computes each block of classes
        again: neither direction holds a [N, L] tensor.
        """
        reduction = loss.over_classes
        state = reduction.init(tf.shape(query)[0])
        for start in range(0, self.num_classes, self.max_block_size):
            stop = min(start + self.max_block_size, self.num_classes)

            @tf.recompute_grad
            def update(query, *parts, start=start, stop=stop):
                before = tf.nest.pack_sequence_as(state, parts)  # noqa: B023
                return tuple(tf.nest.flatten(reduction.update(before, self.blocks(query)(start, stop))))

            with kept_by_graph():
                state = tf.nest.pack_sequence_as(state, update(query, *tf.nest.flatten(state)))
        return reduction.finish(state), self.score(query, labels)

    def scan(self, query, fold: Callable, carry):
        """Folds all classes, block by block, into a carry: ``carry = fold(carry, logits, start)``.

        ``fold`` gets the logits [N, b] of the classes from id ``start`` on. The carry is a nest of tensors
        whose shapes stay. The scan returns the last, and holds one block of logits, whatever L.
        """
        logits_of = self.blocks(query)
        size = block_size(tf.shape(query)[0], self.max_block_size)

        def step(start, carry):
            stop = tf.minimum(start + size, self.num_classes)
            new = fold(carry, logits_of(start, stop), start)
            if not tf.executing_eagerly():
                tf.nest.map_structure(lambda tensor, last: tensor.set_shape(last.shape), new, carry)
            return stop, new

        is_left = lambda start, carry: start < self.num_classes  # noqa: E731
        # Two iterations: the next block's matmul beside this one's fold.
        return tf.while_loop(is_left, step, (tf.constant(0), carry), parallel_iterations=2)[1]

    def top_k(
        self,
        query,
        k: int | tf.Tensor,
        exclude=None,
        allow=None,
        num_probes: int | tf.Tensor | None = None,
        attributes: Attributes | None = None,
        **where,
    ) -> BestClasses:
        """The k best classes of each query, exactly, without a [N, L] tensor.

        Args:
            query: float [N, D].
            k: how many, an int in [1, L] or an int32 scalar tensor (clamped to L).
            exclude: None, or class ids that are never returned: [N, X], or [1, X] for all queries, ragged or
                padded with -1.
            allow: None, or the only class ids that are ranked, as ``exclude``. A width of 0 allows all.
            num_probes: None for the head's own. A head that is made with ``num_probes`` takes another, at
                most its number of buckets (a tensor is clamped to that).
            attributes: None, or the classes' ``Attributes``.
            **where: what a class must have, such as ``where_country=[["DE", "FR"]]``; see ``Attributes``. All
                classes are then scored, whatever ``num_probes``.

        Returns:
            ``BestClasses``, best first, the lower id first among equals; id -1 and score -inf where fewer
            than k classes are left. A class whose logit is NaN never ranks.

        Raises:
            ValueError: if the head is not built; for a query, k, num_probes or ids of another rank, width or
                range, and for attributes or ``where_...`` that do not fit.
            tf.errors.InvalidArgumentError: for a tensor k below 1, a class id outside [-1, L), or exclude,
                allow or ``where_...`` that have another number of rows, or a mask [N, L].
        """
        if not self.built:
            raise ValueError(
                f"This {type(self).__name__} has no class vectors yet: call a model with it on a batch, or "
                "build((None, D)) with D the width of the queries."
            )
        query = tf.convert_to_tensor(query)
        require_queries(query)
        self.require_width(query)
        require_count(k, "k", self.num_classes)
        if num_probes is not None:
            if getattr(self, "num_probes", None) is None:
                raise ValueError(
                    f"This {type(self).__name__} ranks all classes and has no num_probes: leave it out, make "
                    "a MACHHead(..., num_probes=...), or ask a tfxc.search.InvertedIndex."
                )
            require_count(num_probes, "num_probes")
        if exclude is not None:
            exclude = excluded_ids(exclude, self.num_classes, query)
        if (allow := padded_ids(allow, "allow")) is not None:
            refuse_other_rows(allow, query, "allow")
        probes: dict[str, Any] = {} if num_probes is None else {"num_probes": num_probes}
        counts = [("k", k), *probes.items()]
        counts = [(name, own) for name, own in counts if not isinstance(own, numbers.Integral)]
        with tf.control_dependencies([check for name, own in counts for check in at_least_one(own, name)]):
            k = count_tensor(k, self.num_classes)
        passes, restricts = without_spare(self, *passing(attributes, where, query, self.num_classes))

        def allowed():
            size = tf.shape(query)[0]
            out = tf.zeros([size, 0], tf.int32) if exclude is None else exclude
            score = lambda ids: self.score(query, ids)  # noqa: E731
            return best_allowed(score, allow, self.num_classes, size, k, out, passes)

        def search():
            every = lambda: BestClasses(*self.best(query, k, exclude, **probes))  # noqa: E731
            filtered = lambda: BestClasses(*self._best_passing(query, k, exclude, passes))  # noqa: E731
            return every() if passes is None else search_or_filtered(every, filtered, restricts)

        return search_or_allowed(search, allowed, allow)

    def best(self, query, k, exclude) -> tuple[tf.Tensor, tf.Tensor]:
        """``top_k`` of checked arguments: scores and ids; by default from a scan of all classes."""
        return self._best_passing(query, k, exclude, None)

    def _best_passing(self, query, k, exclude, passes):
        ranking = BlockTopK(k, exclude, passes)
        return ranking.finish(self.scan(query, ranking.fold, ranking.initial(tf.shape(query)[0])))

    def losses(self, query, labels, loss: ClassificationLoss, training: bool = False) -> tf.Tensor:
        """A loss over all classes of each query, float32 [N].

        Labels are int32 [N, P] in [0, L), padded with -1, each once. With ``training`` layers of the head run
        as in training.
        """
        return loss.combine(*self.reduce(query, labels, loss), labels >= 0)

    def losses_and_best(
        self, query, labels, loss: ClassificationLoss, k: int, exclude=None
    ) -> tuple[tf.Tensor, BestClasses]:
        """What ``losses`` gives, exactly, and what ``top_k`` gives, from one pass."""
        reduction, ranking = loss.over_classes, BlockTopK(k, exclude, without_spare(self)[0])

        def fold(carry, logits, start):
            return reduction.update(carry[0], logits), ranking.fold(carry[1], logits, start)

        num_queries = tf.shape(query)[0]
        first = reduction.init(num_queries), ranking.initial(num_queries)
        state, ranked = self.scan(query, fold, first)
        losses = loss.combine(reduction.finish(state), self.score(query, labels), labels >= 0)
        return losses, BestClasses(*ranking.finish(ranked))

    def shared_layers(self, encoder: keras.Model) -> dict[str, Any]:
        """The layers with weights that are the encoder's too, for a file: by name, the place in the encoder.

        Raises ValueError for a layer that could not be found again.
        """
        return {}

    def share(self, encoder: keras.Model, places: dict[str, Any] | None = None) -> "Head":
        """Finds the layers of the encoder that the head shares; ``ExtremeClassifier`` calls it before build.

        ``places``, of a model that is loaded, is what ``shared_layers`` said when it was saved. It returns
        the head itself, or one in its place that is not built. ValueError for an encoder without the layers.
        """
        return self

    def check(
        self,
        sampler: Sampler | None = None,
        loss: ClassificationLoss | None = None,
        optimizer: keras.optimizers.Optimizer | None = None,
    ) -> None:
        """Raises ValueError for a sampler, a loss or an optimizer (built) that the head cannot work with."""
        if loss is not None and loss.filter_below is not None:
            raise ValueError(
                f"{type(self).__name__} computes the whole gradient over all classes: leave out "
                f"filter_below={loss.filter_below}, or take DenseHead."
            )

    def class_rows(self) -> list[ClassRows]:
        """The weights with a row for each class, ``ClassRows``: what ``change_classes`` moves by name.

        By default all whose first dimension is L.
        """
        own = [weight for weight in self.weights if weight.shape[:1] == (self.num_classes,)]
        return [ClassRows(weight, filled=BY_RULE if len(weight.shape) == 2 else BY_MEAN) for weight in own]

    def config_for(self, old_ids: np.ndarray) -> dict[str, Any]:
        """The head's config for other classes: ``old_ids`` int64 [L'] are their present ids, -1 if new."""
        return {**self.get_config(), "num_classes": len(old_ids)}

    def classes_changed(self, before: "Head", old_ids: np.ndarray, given: Callable | None) -> None:
        """Takes over what is no weight from the head ``before`` the classes changed; the weights are there.

        That head's weights hold nothing any more. ``old_ids`` are as of ``config_for``; ``given`` is None, or
        a function of the ids of new classes to what the user gives for them.
        """

    def describe(self) -> str:
        """What the head's weights take in memory, in a sentence: the last line of a model's summary."""
        variables = [tf_variable(weight) for weight in self.weights]
        size = sum(variable.shape.num_elements() * variable.dtype.size for variable in variables)
        return f"Head: {self.num_classes:,} classes in {size / 2**20:,.1f} MB of weights"


def score_candidates(head, query, labels, class_ids, log_expected_count):
    """Scores labels and candidates, one by one. The way from a ``Draw`` to what a loss sees of it.

    The arguments are those of ``Head.candidates``. Returns the logits [N, P] of labels, the candidates as
    ``Scored`` [N, S], and int32 [N, S], the column of the label that a candidate equals, -1 for none.
    """
    log_expected_count = tf.convert_to_tensor(log_expected_count)
    class_ids, empty = without_empty(class_ids, log_expected_count)
    positives, logits = head._score_both(query, labels, class_ids)
    return positives, *seen_by_loss(head, logits, labels, class_ids, log_expected_count, empty)


def seen_by_loss(head, logits, labels, class_ids, log_expected_count, empty):
    """The candidates as ``Scored`` [N, S], and their hits, of logits [N, S] and what ``without_empty`` gives.

    Here alone one code of an empty slot becomes the other. In a ``Draw`` the slot has id -1 or, where queries
    share the ids and it is empty for some of them, a log expected count of +inf. For a loss it has the logit
    ``MASKED_LOGIT``, a log expected count of 0, and no hit.
    """
    counted = tf.where(empty, 0.0, log_expected_count)
    negatives = Scored(logits, counted, head.num_classes).without(empty)
    return negatives, tf.where(empty, -1, hits(class_ids, labels))


@infinity_is_meant()
def without_empty(class_ids, log_expected_count):
    """Class ids, -1 in each empty slot that is not shared: it touches no class; and which slots are empty."""
    empty = tf.equal(class_ids, -1) | (log_expected_count == float("inf"))
    return class_ids if class_ids.shape.rank == 1 else tf.where(empty, -1, class_ids), empty


def initializer_of_bias(given, use_bias):
    """The initializer of biases; ValueError for one that starts none, since ``use_bias`` is False."""
    initializer = keras.initializers.get(given)
    if not use_bias and not isinstance(initializer, keras.initializers.Zeros):
        raise ValueError(f"bias_initializer={given!r} starts no bias: pass use_bias=True, or leave it out.")
    return initializer


def class_biases(bias, class_ids):
    """Biases float32 of class ids of any shape, 0 for -1, from a variable [L] with a sparse gradient."""
    # With momentum, even a gradient of zero moves a class: an empty slot reads a class that is scored anyway;
    # where there is none, nothing is read. (Reading filled slots alone would take half as long again.)
    filled, size = class_ids >= 0, tf.size(class_ids)
    some_id = tf.reduce_max(class_ids)
    num_read = tf.where(some_id >= 0, size, 0)
    ids = tf.reshape(tf.where(filled, class_ids, some_id), [-1])[:num_read]
    read = tf.pad(tf.gather(tf_variable(bias), ids), [[0, size - num_read]])
    return tf.where(filled, tf.reshape(read, tf.shape(class_ids)), 0.0)


def of_filled_slots(class_ids):
    """The ids [n] in the slots int32 [S] that are not empty, -1, and the place of each, int64 [n, 1].

    A gather by these ids has a gradient for the classes that are scored only: with momentum, even a gradient
    of zero moves a class.
    """
    where = tf.where(class_ids >= 0)
    return tf.gather_nd(class_ids, where), where


def block_size(num_queries, largest):
    """How many classes, at most ``largest``, a block has for a number of queries (an int32 tensor)."""
    return tf.clip_by_value(_BLOCK_ELEMENTS // tf.maximum(num_queries, 1), _BLOCK_MIN, largest)
