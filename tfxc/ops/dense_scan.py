"""All classes of a dense head in one pass: a reduction over their logits, and the k best, without ``[N, L]``.

``logit[n, l] = query[n] · w_l + bias[l]``, ``w_l`` a row of the table, divided by its norm if ``normalize``.
The compiled ops read the table where it lies, a few dozen classes at a time: their logits are folded while
they are in the cache, and computed again for the gradient. The number of threads changes no bit.

The gradient of the log-sum-exp can be filtered. Classes come in tiles, the first ``TILE_CLASSES``, the next
and so on; what a query gives to a tile and gets from it is left out where every class of the tile has, for
this query, a probability below a threshold. An example's gradient does not depend on what else is in the
batch, and the rows of tiles that are left for no query have none at all.
"""

import math

import tensorflow as tf

from tfxc.ops import library

library.reads_tables("DenseScan", "DenseScanGrad", "DenseScanFilteredGrad")

TILE_CLASSES = 96  # as kTileClasses of the compiled op


def dense_scan(
    query, table, bias, *, num_classes, row_offset=0, normalize=False, reduction=None, k=0, exclude=None
):
    """The reduction over all classes of each query, and its k best, by the compiled op.

    Args:
        query: float32 [N, D].
        table: handle of a float32 or bfloat16 variable [rows, D].
        bias: float32 [L], or [0] for none.
        num_classes: L, an int.
        row_offset: an int: the classes are the rows from there on.
        normalize: whether rows are divided by their norms.
        reduction: "squared_hinge" ``Σ max(0, 1 + o)²``, "softplus" ``Σ log(1 + exp o)``, "logsumexp" or None.
        k: int or int32 scalar in [0, L].
        exclude: None, or int32 [N, X]: classes that never come among the best; other numbers mean none.

    Returns:
        The reduction [N] (0 for None), and of the best scores float32 [N, k] and ids int32 [N, k], the lower
        id first among equals, -inf and -1 where there is no class. NaN never ranks. No gradient.

    Raises:
        tf.errors.InvalidArgumentError: for shapes that do not fit, k outside [0, L], or too few rows.

    Reference:
        Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models", 2024 (logits never written).
    """
    exclude = _no_classes(query) if exclude is None else exclude
    return library.load().tfxc_dense_scan(
        query=query,
        table=table,
        bias=bias,
        k=k,
        exclude=exclude,
        reduction=reduction or "none",
        num_classes=num_classes,
        row_offset=row_offset,
        normalize=normalize,
    )[:3]


def dense_scan_with_maxima(query, table, bias, *, num_classes, row_offset=0, normalize=False):
    """The log-sum-exp over all classes [N], and the largest logit of each tile of classes [tiles, N].

    Args: as of ``dense_scan``.
    """
    found = library.load().tfxc_dense_scan(
        query=query,
        table=table,
        bias=bias,
        k=0,
        exclude=_no_classes(query),
        reduction="logsumexp",
        num_classes=num_classes,
        row_offset=row_offset,
        normalize=normalize,
        with_tile_maxima=True,
    )
    return found.reduced, found.tile_maxima


def _no_classes(query):
    return tf.zeros([tf.shape(query)[0], 0], tf.int32)


def dense_scan_gradient(
    query, table, bias, reduced, reduced_gradient, *, num_classes, row_offset=0, normalize=False, reduction
):
    """Gradients of the reduction by query [N, D], table [rows, D] and bias [L] or [0], all dense.

    With "logsumexp", a probability ``exp(logit - reduced)`` has the rounding of ``reduced`` in float32: its
    relative error is up to 6e-8 times the log-sum-exp.

    Args: as of ``dense_scan``; ``reduced`` [N] is what it gave, ``reduced_gradient`` [N] what reaches that.
    """
    return library.load().tfxc_dense_scan_grad(
        query=query,
        table=table,
        bias=bias,
        reduced=reduced,
        reduced_gradient=reduced_gradient,
        reduction=reduction,
        num_classes=num_classes,
        row_offset=row_offset,
        normalize=normalize,
    )


def dense_scan_filtered_gradient(
    query,
    table,
    bias,
    reduced,
    reduced_gradient,
    tile_maxima,
    more,
    *,
    threshold,
    num_classes,
    row_offset=0,
    normalize=False,
):
    """The filtered gradients of the log-sum-exp, in the time of the tiles that are left.

    Gradients of further classes come behind them: a concatenation would copy them all.

    Args:
        query: and ``table``, ``bias``, ``num_classes``, ``row_offset``, ``normalize``: as of ``dense_scan``.
        reduced: float32 [N], and ``tile_maxima`` [tiles, N]: what ``dense_scan_with_maxima`` gave.
        reduced_gradient: float32 [N], what reaches ``reduced``.
        more: class ids int32 [M], and the gradients of their rows [M, D] and biases [M], or [0] for none.
        threshold: a float in (0, 1).

    Returns:
        The gradient of the queries [N, D], the class ids int32 [R + M], of the tiles that are left for any
        query, ascending, and then of ``more``, and the gradients of their rows [R + M, D] and biases [R + M],
        or [0] without biases.

    Raises:
        tf.errors.InvalidArgumentError: for shapes that do not fit.
    """
    return library.load().tfxc_dense_scan_filtered_grad(
        query=query,
        table=table,
        bias=bias,
        reduced=reduced,
        reduced_gradient=reduced_gradient,
        tile_maxima=tile_maxima,
        more_ids=more[0],
        more_row_gradients=more[1],
        more_bias_gradients=more[2],
        log_threshold=math.log(threshold),
        reduction="logsumexp",
        num_classes=num_classes,
        row_offset=row_offset,
        normalize=normalize,
    )


def left_by_filter(logits, reduced, threshold):
    """Which logits [N, b], of whole tiles but for the last, a filtered gradient goes through: bool [N, b].

    Args:
        logits: float [N, b].
        reduced: their log-sum-exp over all classes [N]; where it is NaN, everything is left.
        threshold: a float in (0, 1).

    >>> logits = tf.math.log([[0.1] + 95 * [0.0] + [0.8, 0.1]])
    >>> left = left_by_filter(logits, tf.zeros([1]), 0.5)
    >>> bool(left[0, 0]), bool(left[0, 96]), bool(left[0, 97])
    (False, True, True)
    """
    num_classes = tf.shape(logits)[1]
    last = tf.fill(
        [tf.shape(logits)[0], -num_classes % TILE_CLASSES], tf.constant(float("-inf"), logits.dtype)
    )
    tiles = tf.reshape(tf.concat([logits, last], 1), [tf.shape(logits)[0], -1, TILE_CLASSES])
    least = reduced + math.log(threshold)
    is_left = ~(tf.reduce_max(tiles, 2) < least[:, tf.newaxis])
    return tf.repeat(is_left, TILE_CLASSES, axis=1)[:, :num_classes]
