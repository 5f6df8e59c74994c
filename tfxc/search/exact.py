"""Exact top-k over a stream of blocks of logits, in stock TensorFlow ops."""

import tensorflow as tf

from tfxc.infinity import infinity_is_meant

# The size of a group. tf.math.top_k over a whole block costs several times its matmul; over maxima of groups,
# less.
GROUP = 32
# The score of no class, until the end: -inf would be an error to tf.debugging.enable_check_numerics.
LOWEST = tf.float32.min
# From so many best ones on, a block's are collected without order: to sort them takes longer than the matmul.
_MANY = 64


class BlockTopK:
    """Folds blocks of logits into the k best (scores, ids); see ``Head.scan``. ``finish`` ends it.

    The k largest numbers of a row lie in the k groups with the largest maxima, so it is enough to rank
    the groups' maxima and then the members of the k best groups. Groups stay in class order, so that the
    lower id wins among equal scores. A logit that is NaN never ranks; the others rank as without it.

    If k is large, a carry holds the k best as of a while ago, and whatever was above the last of these since
    then; they are ranked when they have become three times as many.

    Classes that never rank are ``exclude``, None or int32 [N, X] padded with -1, and those for which
    ``passes``, None or a function from class ids [1, b] to bool [N or 1, b], is false.
    """

    def __init__(self, k, exclude=None, passes=None):
        self.k = tf.convert_to_tensor(k)
        self.exclude = exclude
        self.passes = passes

    def initial(self, num_queries):
        """The lowest scores and ids -1 [N, k]."""
        shape = [num_queries, self.k]
        carry = tf.fill(shape, LOWEST), tf.fill(shape, -1)
        if tf.executing_eagerly() or (tf.get_static_value(self.k) or _MANY) < _MANY:
            return carry
        return tuple(tf.compat.v1.placeholder_with_default(part, [None, None]) for part in carry)  # they grow

    def fold(self, carry, logits, start):
        """The k best of the carry and one block of logits [N, b] of classes start, start + 1, ..."""
        if self.exclude is not None:
            logits = _mask(logits, self.exclude - start)
        if self.passes is not None:
            class_ids = tf.range(start, start + tf.shape(logits)[1])[tf.newaxis]
            logits = tf.where(self.passes(class_ids), logits, LOWEST)
        given = carry, logits, start
        return tf.cond(self.k >= _MANY, lambda: self._collected(*given), lambda: self._ranked(*given))

    def finish(self, carry):
        """The k best, scores and ids [N, k], best first, of the last carry; -inf and -1 for no class."""
        scores, ids = self._best(carry)
        with infinity_is_meant():
            return tf.where(ids >= 0, scores, float("-inf")), ids

    def _best(self, carry):
        scores, order = tf.math.top_k(carry[0], self.k)
        return scores, tf.gather(carry[1], order, batch_dims=1)

    def _collected(self, carry, logits, start):
        is_above = logits > carry[0][:, self.k - 1, tf.newaxis]
        above = tf.where(tf.reshape(is_above, [-1]))[:, 0]  # takes half as long as in two dimensions
        num_rows, width = tf.unstack(tf.shape(logits, tf.int64))
        rows, columns = above // width, tf.cast(above % width, tf.int32) + start
        scores, ids = (
            tf.RaggedTensor.from_value_rowids(part, rows, num_rows, validate=False).to_tensor(empty)
            for part, empty in ((tf.gather(tf.reshape(logits, [-1]), above), LOWEST), (columns, -1))
        )
        carry = tf.concat([carry[0], scores], 1), tf.concat([carry[1], ids], 1)
        return tf.cond(tf.shape(carry[0])[1] > 3 * self.k, lambda: self._best(carry), lambda: carry)

    def _ranked(self, carry, logits, start):
        # The more blocks have passed, the fewer rows find something better in this one. The maximum of a row
        # with NaN is NaN: such rows are ranked, too. (Grappler would turn "not at most" into "above".)
        largest = tf.reduce_max(logits, 1)
        diverged = tf.math.is_nan(largest)
        rows = tf.where((largest > carry[0][:, -1]) | diverged)
        best = [tf.gather_nd(part, rows) for part in carry]
        logits = tf.gather_nd(logits, rows)
        scores, columns = grouped_top_k(logits, tf.minimum(self.k, tf.shape(logits)[1]))
        ids = tf.where(scores > LOWEST, columns + start, -1)
        scores, order = tf.math.top_k(tf.concat([best[0], scores], 1), self.k)
        ids = tf.gather(tf.concat([best[1], ids], 1), order, batch_dims=1)
        best_scores, best_ids = carry
        return (
            tf.tensor_scatter_nd_update(best_scores, rows, scores),
            tf.tensor_scatter_nd_update(best_ids, rows, ids),
        )


def grouped_top_k(logits, k):
    """``tf.math.top_k(logits, k)``, three times faster for wide rows and small k; NaN is ``LOWEST``."""
    num_queries, width = tf.shape(logits)[0], tf.shape(logits)[1]
    num_groups = width // GROUP
    whole = num_groups * GROUP
    k_groups = tf.minimum(k, num_groups)

    def cut(logits):
        groups = tf.reshape(logits[:, :whole], [num_queries, num_groups, GROUP])
        return logits, groups, tf.reduce_max(groups, 2)

    given = cut(logits)
    # The maximum of numbers with NaN is NaN, and that of no number -inf.
    with infinity_is_meant():
        largest = tf.reduce_max(given[2]) + tf.reduce_max(logits[:, whole:])
    logits, groups, maxima = tf.cond(
        tf.math.is_nan(largest), not_inlined(lambda: cut(_without_nan(logits))), lambda: given
    )

    def grouped():
        _, best = tf.math.top_k(maxima, k_groups, sorted=False)
        best = tf.sort(best, axis=1)
        members = tf.reshape(tf.gather(groups, best, batch_dims=1), [num_queries, k_groups * GROUP])
        scores, order = tf.math.top_k(tf.concat([members, logits[:, whole:]], 1), k)
        rest = whole + order - k_groups * GROUP
        inside = tf.minimum(order // GROUP, k_groups - 1)
        member = tf.gather(best, inside, batch_dims=1) * GROUP + order % GROUP
        return scores, tf.where(order < k_groups * GROUP, member, rest)

    def plain():
        scores, order = tf.math.top_k(logits, k)
        return scores, order

    # With few groups for each k there is nothing to skip.
    return tf.cond(num_groups >= 2 * k, grouped, plain)


def not_inlined(branch):
    """A branch of ``tf.cond`` as a function that TensorFlow does not inline into the graph that calls it.

    An executor visits the ops of both branches, also of the one that is not taken. Where that branch is most
    of the graph, a query of a millisecond takes a fifth longer.
    """
    return tf.function(branch, autograph=False, experimental_attributes={"_noinline": True})


def _without_nan(logits):
    """Logits with the lowest number in place of NaN."""
    return tf.where(tf.math.is_nan(logits), LOWEST, logits)


def _mask(logits, columns):
    """Logits with columns [N, X] of each row set to the lowest number; other columns are ignored."""
    here = tf.where((columns >= 0) & (columns < tf.shape(logits)[1]))
    where = tf.stack([here[:, 0], tf.cast(tf.gather_nd(columns, here), tf.int64)], 1)
    return tf.tensor_scatter_nd_update(logits, where, tf.fill([tf.shape(where)[0]], LOWEST))
