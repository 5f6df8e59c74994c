"""The best of a few candidates of each query, with the conventions of ``Head.top_k``."""

import tensorflow as tf

from tfxc.ids import check_ids, is_among, refuse_mask, require_rows
from tfxc.infinity import infinity_is_meant
from tfxc.scored import BestClasses
from tfxc.search.exact import not_inlined

_CANDIDATES = 4  # times k, of an index whose scores only come near to those of the head


@infinity_is_meant()
def best_candidates(scores, ids, k, exclude):
    """The k best of candidates int32 [N, S], each once in a row, -1 for none, by scores float32 [N, S].

    NaN and the class ids ``exclude`` int32 [N, X], padded with -1, never rank. Returns ``BestClasses``
    [N, k], the lower id first among equals; -inf and -1 where there are fewer.
    """
    out = (ids < 0) | tf.math.is_nan(scores) | is_among(ids, exclude)
    scores = tf.where(out, float("-inf"), scores)
    order = tf.argsort(ids, axis=1)
    missing = [[0, 0], [0, tf.maximum(k - tf.shape(ids)[1], 0)]]
    scores = tf.pad(tf.gather(scores, order, batch_dims=1), missing, constant_values=float("-inf"))
    scores, place = tf.math.top_k(scores, k)
    ids = tf.gather(tf.pad(tf.gather(ids, order, batch_dims=1), missing), place, batch_dims=1)
    return BestClasses(scores, tf.where(scores > float("-inf"), ids, -1))


def best_allowed(score, allow, num_classes, num_queries, k, exclude, passes=None):
    """``best_candidates`` among class ids ``allow`` [N, A], or [1, A] for all queries, padded with -1.

    ``score`` maps ids [N, A], or [A] shared by all queries, to scores [N, A]; ``passes``, if not None, ids
    [N, A] or [1, A] to which may be ranked. Raises an InvalidArgumentError for an id outside [-1, L), or
    another number of rows.
    """
    with tf.control_dependencies(require_rows(allow, num_queries, "allow")):
        allow = refuse_mask(check_ids(allow, num_classes, "allowed class"), num_classes, "allow")
        ids = tf.sort(allow, axis=1)
    ids = tf.where(tf.pad(ids[:, 1:] == ids[:, :-1], [[0, 0], [1, 0]]), -1, ids)
    shared, own = lambda: score(ids[0]), lambda: score(ids)
    if ids.shape[0] is None:
        scores = tf.cond(tf.shape(ids)[0] == 1, shared, own)
    else:
        scores = shared() if ids.shape[0] == 1 else own()
    if passes is not None:
        ids = tf.where(passes(tf.maximum(ids, 0)), ids, -1)
    shape = [num_queries, tf.shape(ids)[1]]
    return best_candidates(tf.broadcast_to(scores, shape), tf.broadcast_to(ids, shape), k, exclude)


def search_or_allowed(search, ranked, allow):
    """``BestClasses``: ``ranked()`` where ``allow`` [N or 1, A] restricts the classes, else ``search()``.

    None and width 0 restrict nothing.
    """
    width = 0 if allow is None else allow.shape[1]
    if width is None:
        return tf.cond(tf.shape(allow)[1] > 0, not_inlined(ranked), search)
    return ranked() if width else search()


def search_or_filtered(search, filtered, restricts):
    """``BestClasses``: ``filtered()`` where a bool scalar says that classes are out, else ``search()``."""
    return tf.cond(restricts, not_inlined(filtered), search)


def ranked_best(head, index, query, k, exclude=None, allow=None, num_probes=None, **where):
    """The k best classes that an index of a head, or a ``CellSearch``, finds, by the scores of the head.

    The query float [N, D] is as the head takes it; the rest as of ``top_k`` of the index.
    """
    effective = tf.cast(head.effective_query(query), tf.float32)  # an update's head has no class vectors
    if not head.approximate:
        return index.top_k(effective, k, exclude, allow, num_probes, **where)
    k = tf.minimum(k, head.num_classes)
    num_candidates = tf.minimum(_CANDIDATES * k, head.num_classes)
    ids = index.top_k(effective, num_candidates, exclude, allow, num_probes, **where).ids
    return best_candidates(head.score(query, ids), ids, k, tf.zeros([tf.shape(ids)[0], 0], tf.int32))
