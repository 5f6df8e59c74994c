"""The best classes of a MACH head from the scores of its buckets."""

import functools
import numbers

import tensorflow as tf

from tfxc.ids import check_ids, int32_ids, is_among
from tfxc.infinity import infinity_is_meant
from tfxc.ops import library

DECODERS = ("mean", "min", "median")


def decode(values, decoder):
    """The score of a class from those of its R buckets, float tensors of one shape ``[...]``.

    The decoder is ``"mean"``, ``"min"`` or ``"median"`` (for even R the mean of the two in the middle). The
    score is NaN where a value is NaN.
    """
    if decoder == "median":
        stacked, num = tf.stack(values), len(values)
        ordered = tf.sort(stacked, axis=0)
        median = (ordered[(num - 1) // 2] + ordered[num // 2]) / 2
        # A sort puts NaN anywhere.
        return tf.where(tf.reduce_any(tf.math.is_nan(stacked), axis=0), float("nan"), median)
    # One by one: a stack would be R times as large as the result.
    if decoder == "min":
        return functools.reduce(tf.minimum, values)
    return functools.reduce(tf.add, values) * (1 / len(values))


def class_scores(tables, family, class_ids, decoder="mean"):
    """Scores ``[B, S]`` of class ids in ``[0, L)``, ``[B, S]`` or ``[S]`` for all queries.

    The scores of buckets are ``[B, R, M]``, for R functions of a ``tfxc.hashing.UniversalHash``.
    """
    buckets = tf.unstack(family.buckets(tf.convert_to_tensor(class_ids)))
    batch_dims = buckets[0].shape.rank - 1
    both = zip(tf.unstack(tables, axis=1), buckets, strict=True)
    return decode([tf.gather(table, own, axis=1, batch_dims=batch_dims) for table, own in both], decoder)


@infinity_is_meant()
def mach_top_k(tables, family, k, exclude=None, decoder="mean", prune=True):
    """The k best of L classes by the decoded scores of their buckets, exactly, without a ``[B, L]`` tensor.

    The op tries the best buckets of each repetition first. A class in none of them scores at most the mean
    over the repetitions of the worst bucket tried (a median: twice that). Where the k-th best found is above
    this bound, the op skips all other classes; else it scores all classes, in blocks. The TensorFlow path has
    the same results, from one ``[B, L]`` tensor.

    Args:
        tables: ``[B, R, M]`` float32, at least 0, the scores of the buckets. NaN is never among the best.
        family: a ``tfxc.hashing.UniversalHash`` of R functions on L keys.
        k: int or int32 scalar in ``[1, L]``.
        exclude: None or int32 ``[B, X]``, class ids that are never among the best, padded with -1.
        decoder: as in :func:`decode`.
        prune: False scores all classes in any case.

    Returns:
        ``scores [B, k]`` float32 and ``ids [B, k]`` int32, best first, the lower id first among equals. Where
        there are fewer, -inf and -1. No gradient.

    Reference: Medini et al., Extreme Classification in Log Memory using Count-Min Sketch, 2019; Fagin, Lotem,
    Naor, Optimal Aggregation Algorithms for Middleware, 2003 (what ends the search).
    """
    _check(tables, family, k)
    if not library.use_compiled(tables):
        exclude = None if exclude is None else check_ids(exclude, family.num_keys, "excluded class")
        scores = class_scores(tf.stop_gradient(tables), family, tf.range(family.num_keys), decoder)
        ids = tf.broadcast_to(tf.range(family.num_keys), tf.shape(scores))
        return _ranked(_without(scores, ids, exclude), ids, k)
    return _compiled(tables, family, k, exclude, decoder, prune=prune, num_probes=0)


def _check(tables, family, k, num_probes=1):
    shape = tf.TensorShape(tables.shape)
    if not shape.is_compatible_with([None, None, family.num_buckets]):
        raise ValueError(
            f"tables must be [B, R, {family.num_buckets}], a score for each bucket of the family, but their "
            f"shape is {shape}."
        )
    # The op takes int32: a larger number would lose its upper bits.
    if isinstance(k, numbers.Integral) and not 0 <= k <= family.num_keys:
        raise ValueError(f"k must be in [0, {family.num_keys}], the number of classes, but is {k}.")
    if not tf.is_tensor(num_probes) and not 1 <= num_probes <= family.num_buckets:
        raise ValueError(f"num_probes must be in [1, {family.num_buckets}] (M), but is {num_probes}.")


def _compiled(tables, family, k, exclude, decoder, **how):
    none = tf.zeros([tf.shape(tables)[0], 0], tf.int32)
    exclude = none if exclude is None else int32_ids(exclude, family.num_keys)
    given = {"tables": tf.stop_gradient(tables), "coefficients": family.coefficients, "k": k}
    options = {"num_classes": family.num_keys, "prime": family.prime, "decoder": decoder, **how}
    return tuple(library.load().tfxc_mach_top_k(**given, exclude=exclude, **options))


@infinity_is_meant()
def mach_top_k_probed(tables, family, k, num_probes, exclude=None, decoder="mean"):
    """An approximation of :func:`mach_top_k` that looks into the best buckets of each repetition only.

    It ranks the classes of the probed buckets, about ``num_probes · R · L / M``. It is exact where the k-th
    score is above the mean over the repetitions of the worst bucket probed (a median: above twice that).
    Where the probed buckets hold a quarter of all classes, ranking all takes the compiled op no longer, and
    the result is that of :func:`mach_top_k`. Among equals that do not all fit in, it returns any.

    ``num_probes`` is how many buckets of each repetition are probed, an int in ``[1, M]``; or an int32 scalar
    tensor, clamped to that range, which takes the TensorFlow path.
    """
    _check(tables, family, k, num_probes)
    if tf.is_tensor(num_probes) or not library.use_compiled(tables):
        return _probed(tables, family, k, num_probes, exclude, decoder)
    return _compiled(tables, family, k, exclude, decoder, prune=True, num_probes=num_probes)


def _probed(tables, family, k, num_probes, exclude, decoder):
    exclude = None if exclude is None else check_ids(exclude, family.num_keys, "excluded class")
    tables = tf.stop_gradient(tables)
    if tf.is_tensor(num_probes):
        num_probes = tf.clip_by_value(num_probes, 1, family.num_buckets)
    _, buckets = tf.math.top_k(_without_nan(tables), num_probes, sorted=False)
    ids = family.members(tf.transpose(buckets, [1, 0, 2]))
    ids = tf.reshape(tf.transpose(ids, [1, 0, 2, 3]), [tf.shape(tables)[0], -1])
    scores = class_scores(tables, family, tf.maximum(ids, 0), decoder)
    # A class comes at most R times: the k·R best slots hold k classes, if there are so many.
    num_kept = tf.minimum(k * tables.shape[1], tf.shape(ids)[1])
    scores = _without(tf.where(ids >= 0, _without_nan(scores), float("-inf")), ids, exclude)
    scores, slots = tf.math.top_k(scores, num_kept, sorted=False)
    ids = tf.gather(ids, slots, batch_dims=1)
    order = tf.argsort(ids, axis=1)
    ids, scores = tf.gather(ids, order, batch_dims=1), tf.gather(scores, order, batch_dims=1)
    again = tf.pad(ids[:, 1:] == ids[:, :-1], [[0, 0], [1, 0]])
    return _ranked(tf.where(again, float("-inf"), scores), ids, k)


def _ranked(scores, ids, k):
    """The k best scores [B, k] of ids that rise along a row; -inf and -1 where there are fewer."""
    missing = tf.maximum(k - tf.shape(scores)[1], 0)
    scores = tf.pad(_without_nan(scores), [[0, 0], [0, missing]], constant_values=float("-inf"))
    scores, order = tf.math.top_k(scores, k)
    ids = tf.gather(tf.pad(ids, [[0, 0], [0, missing]]), order, batch_dims=1)
    return scores, tf.where(scores > float("-inf"), ids, -1)


def _without_nan(scores):
    """Scores with -inf for NaN, which ``top_k`` would put first."""
    return tf.where(tf.math.is_nan(scores), float("-inf"), scores)


def _without(scores, ids, exclude):
    """Scores [B, S] of ids [B, S], -inf where an id is excluded [B, X]."""
    if exclude is None:
        return scores
    return tf.where(is_among(ids, exclude), float("-inf"), scores)
