"""The contract of a head, and all that follows from scoring one block of classes at a time."""

import tensorflow as tf

from tfxc._keras import keras, tf_variable
from tfxc.ids import check_ids
from tfxc.search.exact import BlockTopK

# Blocks of logits [N, b] hold about this many numbers: 16 MB, large enough for an efficient matmul.
_BLOCK_ELEMENTS = 1 << 22
_BLOCK_MIN = 256


class Head(keras.layers.Layer):
    """How the L classes are scored. Subclasses give the vectors; the streaming over blocks is here.

    A subclass defines ``score``, ``effective_query``, ``class_vectors_of``, ``reduce_classes`` and
    ``effective_dim``, such that ``effective_query(query) · class_vectors_of([i])`` is the logit of
    class i, with bias, normalisation and temperature already in. Where that product only estimates the
    logit (enough for samplers), ``prepare`` and ``block_logits`` give the exact one. A head without class
    vectors defines these two, ``losses`` and ``losses_and_best``, and refuses samplers.

    Args:
        num_classes: L, a positive integer.

    Raises:
        ValueError: for another num_classes.

    Example:
        >>> head = tfxc.layers.DenseHead(1000)
        >>> head.build((None, 16))
        >>> head.score(tf.ones([2, 16]), tf.constant([[3, 7, 9], [0, 1, 2]])).shape
        TensorShape([2, 3])
    """

    supports_jit = False  # the compiled ops do not run under XLA
    max_block_size = 8192

    def __init__(self, num_classes, **kwargs):
        super().__init__(**kwargs)
        if not isinstance(num_classes, int) or num_classes < 1:
            raise ValueError(f"num_classes must be a positive integer, but got {num_classes!r}.")
        self.num_classes = num_classes
        self.supports_jit = False
        self.supports_masking = True  # the mask of sequences goes on to the loss

    def get_config(self):
        return {**super().get_config(), "num_classes": self.num_classes}

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.num_classes)

    def class_vectors_of(self, class_ids):
        """Class vectors [n, effective_dim] of class ids int32 [n]."""
        raise NotImplementedError(f"{type(self).__name__} does not define class_vectors_of(class_ids).")

    def class_vectors(self, start, stop):
        """Class vectors [stop - start, effective_dim] of the classes from ``start`` to before ``stop``."""
        return self.class_vectors_of(tf.range(start, stop))

    def prepare(self, query):
        """What ``block_logits`` takes for queries [N, D]: done once, whatever the number of blocks."""
        return self.effective_query(query)

    def block_logits(self, prepared, start, stop):
        """Logits [N, stop - start] of one block of classes."""
        return tf.matmul(prepared, self.class_vectors(start, stop), transpose_b=True)

    def scan(self, query, fold, carry):
        """Fold all classes, block by block, into a carry: ``carry = fold(carry, logits, start)``.

        Args:
            query: float [N, D].
            fold: function of (carry, logits [N, b], first class id) to the next carry.
            carry: the first carry, a nest of tensors whose shapes stay.

        Returns:
            The last carry. Memory: one block of logits, whatever L.
        """
        prepared = self.prepare(query)
        size = block_size(tf.shape(query)[0], self.max_block_size)

        def step(start, carry):
            stop = tf.minimum(start + size, self.num_classes)
            new = fold(carry, self.block_logits(prepared, start, stop), start)
            tf.nest.map_structure(lambda tensor, last: tensor.set_shape(last.shape), new, carry)
            return stop, new

        return tf.while_loop(
            lambda start, carry: start < self.num_classes,
            step,
            (tf.constant(0), carry),
            parallel_iterations=2,  # the next block's matmul beside this one's fold
        )[1]

    def top_k(self, query, k, exclude=None):
        """The k best classes of each query, exactly, without a [N, L] tensor.

        Args:
            query: float [N, D].
            k: how many, an int in [1, L] or an int32 scalar tensor (clamped to L).
            exclude: None or class ids [N, X], padded with -1, that are never returned.

        Returns:
            scores float32 [N, k] and ids int32 [N, k], best first, the lower id first among equals.
            Where fewer than k classes are left, id -1 and score -inf. A class whose logit is NaN is passed
            over.

        Raises:
            ValueError: if k is an int outside [1, L].
        """
        if isinstance(k, int) and not 1 <= k <= self.num_classes:
            raise ValueError(f"k must be in [1, {self.num_classes}], the number of classes, but got {k}.")
        if exclude is not None:
            exclude = check_ids(exclude, self.num_classes, "excluded class")
        return self.find_best(query, tf.minimum(k, self.num_classes), exclude)

    def find_best(self, query, k, exclude):
        """``top_k`` with its arguments checked; a head that knows better than to scan overrides it."""
        ranking = BlockTopK(k, exclude)
        return self.scan(query, ranking.fold, ranking.initial(tf.shape(query)[0]))

    def losses(self, query, labels, loss):
        """A loss over all classes of each query.

        Args:
            query: float [N, D].
            labels: int32 [N, P] in [0, L), padded with -1, each once.
            loss: a ``ClassificationLoss``.

        Returns:
            float32 [N].
        """
        reduced, positives = self.reduce_classes(query, labels, loss)
        return loss.combine(reduced, positives, labels >= 0)

    def losses_and_best(self, query, labels, loss, k, exclude=None):
        """What ``losses`` gives, exactly, and the ids [N, k] that ``top_k`` gives, from one pass."""
        num_queries, ranking = tf.shape(query)[0], BlockTopK(k, exclude)

        def fold(carry, logits, start):
            return loss.update(carry[0], logits), ranking.fold(carry[1], logits, start)

        first = loss.initial(num_queries), ranking.initial(num_queries)
        state, (_, ids) = self.scan(query, fold, first)
        return loss.combine(loss.finish(state), self.score(query, labels), labels >= 0), ids

    def check_sampler(self, sampler):
        """Raises ValueError for a sampler (None: no sampler) that makes no sense with this head."""

    def check_loss(self, loss):
        """Raises ValueError for a loss that makes no sense with this head."""

    def describe(self):
        """What the head's weights take in memory, in a sentence: the last line of a model's summary."""
        variables = [tf_variable(weight) for weight in self.weights]
        size = sum(variable.shape.num_elements() * variable.dtype.size for variable in variables)
        return f"Head: {self.num_classes:,} classes in {size / 2**20:,.1f} MB of weights"


def class_biases(bias, class_ids):
    """Biases of classes; 0 for empty slots, which touch no class that is not scored anyway.

    Args:
        bias: variable float32 [L]; its gradient is sparse.
        class_ids: int32, -1 for an empty slot.

    Returns:
        float32, of the shape of ``class_ids``.
    """
    # With momentum, even a gradient of zero moves a class: an empty slot reads one that is scored anyway, and
    # where none is, nothing is read. (To read filled slots alone would take half as long again.)
    filled, size = class_ids >= 0, tf.size(class_ids)
    some_id = tf.reduce_max(class_ids)
    num_read = tf.where(some_id >= 0, size, 0)
    ids = tf.reshape(tf.where(filled, class_ids, some_id), [-1])[:num_read]
    read = tf.pad(tf.gather(tf_variable(bias), ids), [[0, size - num_read]])
    return tf.where(filled, tf.reshape(read, tf.shape(class_ids)), 0.0)


def of_filled_slots(class_ids):
    """The ids of the slots that are not empty, [n], and where each stands, int64 [n, 1].

    What is gathered by them has a gradient for the classes that are scored only: with momentum, even a
    gradient of zero moves a class.

    Args:
        class_ids: int32 [S], -1 for an empty slot.
    """
    where = tf.where(class_ids >= 0)
    return tf.gather_nd(class_ids, where), where


def block_size(num_queries, largest):
    """How many classes, at most ``largest``, a block holds for that many queries (an int32 tensor)."""
    return tf.clip_by_value(_BLOCK_ELEMENTS // tf.maximum(num_queries, 1), _BLOCK_MIN, largest)
