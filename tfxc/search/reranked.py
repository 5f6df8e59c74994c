"""Ranking by an index, and then by the head where class vectors only come near to its scores."""

import tensorflow as tf

from tfxc.search.candidates import best_candidates

_CANDIDATES = 4  # times k


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
