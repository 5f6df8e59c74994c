"""All classes of a dense head in one pass: a reduction over their logits, and the k best, without ``[N, L]``.

``logit[n, l] = query[n] · w_l + bias[l]``, where ``w_l`` is a row of the table, divided by its norm if
``normalize``. The compiled ops fold the logits of a few dozen classes while these are in the cache, and
compute them again for the gradient. The number of threads changes no bit.

All functions but ``left_by_filter`` take

* ``query``: float32 [N, D];
* ``table``: handle of a float32 or bfloat16 variable [rows, D];
* ``bias``: float32 [L], or [0] for none;
* ``**classes``: ``num_classes``, L; ``row_offset``, by default 0, the row of class 0; ``normalize``, by
  default False, whether rows are divided by their norms.

They raise ``tf.errors.InvalidArgumentError`` for shapes that do not fit, or too few rows.

The gradient of the log-sum-exp can be filtered. Classes come in tiles of ``TILE_CLASSES``. The filter leaves
a tile out for a query for which every class of the tile has a probability below a threshold: the query then
gives the tile no gradient and gets none from it.
"""

import math

import tensorflow as tf

from tfxc.infinity import infinity_is_meant
from tfxc.ops import library

library.reads_tables("DenseScan", "DenseScanGrad", "DenseScanFilteredGrad")

TILE_CLASSES = 96  # kTileClasses of the compiled op


@infinity_is_meant()
def dense_scan(query, table, bias, *, reduction=None, k=0, exclude=None, **classes):
    """The reduction over all classes of each query, and its k best, by the compiled op.

    Args:
        reduction: "squared_hinge" ``Σ max(0, 1 + o)²``, "softplus" ``Σ log(1 + exp o)``, "logsumexp" or None.
        k: int or int32 scalar in [0, L].
        exclude: None, or int32 [N, X]: class ids that are never among the best; other numbers mean none.

    Returns:
        The reduction [N] (0 for None), and the best scores float32 [N, k] and ids int32 [N, k], the lower id
        first among equals, -inf and -1 where there is no class. NaN never ranks. No gradient.

    Reference:
        Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models", 2024 (logits never written).
    """
    exclude = _no_classes(query) if exclude is None else exclude
    options = {"reduction": reduction or "none", **classes}
    return library.load().tfxc_dense_scan(query, table, bias, k, exclude, **options)[:3]


def dense_scan_with_maxima(query, table, bias, **classes):
    """The log-sum-exp over all classes [N], and the largest logit of each tile of classes [tiles, N]."""
    options = {"reduction": "logsumexp", "with_tile_maxima": True, **classes}
    found = library.load().tfxc_dense_scan(query, table, bias, 0, _no_classes(query), **options)
    return found.reduced, found.tile_maxima


def _no_classes(query):
    return tf.zeros([tf.shape(query)[0], 0], tf.int32)


def dense_scan_gradient(query, table, bias, reduced, reduced_gradient, *, reduction, **classes):
    """Gradients of the reduction by query [N, D], table [rows, D] and bias [L] or [0], all dense.

    ``reduced`` float32 [N] is what ``dense_scan`` returned. With "logsumexp", a probability
    ``exp(logit - reduced)`` has the rounding of ``reduced`` in float32: its relative error is up to 6e-8
    times the log-sum-exp.
    """
    given = query, table, bias, reduced, reduced_gradient
    return library.load().tfxc_dense_scan_grad(*given, reduction=reduction, **classes)


def dense_scan_filtered_gradient(
    query, table, bias, reduced, reduced_gradient, tile_maxima, more, *, threshold, **classes
):
    """The filtered gradients of the log-sum-exp, in the time of the tiles that are left.

    The op appends given gradients of further classes itself: a concatenation would copy all rows.

    Args:
        reduced: float32 [N], and ``tile_maxima`` [tiles, N]: the results of ``dense_scan_with_maxima``.
        more: class ids int32 [M], and the gradients of their rows [M, D] and biases [M], or [0] for none.
        threshold: a float in (0, 1).

    Returns:
        The gradient of the queries [N, D], the class ids int32 [R + M] and the gradients of their rows
        [R + M, D] and biases [R + M], or [0] without biases. First come the classes of tiles that are left
        for any query, ascending, then ``more``.
    """
    given = query, table, bias, reduced, reduced_gradient, tile_maxima, *more
    options = {"log_threshold": math.log(threshold), "reduction": "logsumexp", **classes}
    return library.load().tfxc_dense_scan_filtered_grad(*given, **options)


def left_by_filter(logits, reduced, threshold):
    """Which logits the filtered gradient keeps: bool [N, b] for float [N, b] of whole tiles.

    Only the last tile may be shorter. A query whose log-sum-exp over all classes, ``reduced`` [N], is NaN
    keeps all logits. The threshold is in (0, 1).
    """
    num_queries, num_classes = tf.unstack(tf.shape(logits))
    missing = [[0, 0], [0, -num_classes % TILE_CLASSES]]
    tiles = tf.pad(logits, missing, constant_values=tf.constant(float("-inf"), logits.dtype))
    tiles = tf.reshape(tiles, [num_queries, -1, TILE_CLASSES])
    least = reduced + math.log(threshold)
    is_left = ~(tf.reduce_max(tiles, 2) < least[:, tf.newaxis])
    return tf.repeat(is_left, TILE_CLASSES, axis=1)[:, :num_classes]
