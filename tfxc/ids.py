"""Sets of class ids ``[N, P]``, a row for each example, padded with -1: checks, duplicates, membership.

Ids are compared by ``tf.equal``: in a graph that does not know the sizes, ``==`` loses the rank.
"""

import tensorflow as tf

from tfxc.require import require

PADDING = -1
_ROWS = "{} must have a row for each query, or one for all of them, but the rows are"


def check_ids(ids, num_classes, what="label"):
    """Ids as int32, behind a check that names one outside [-1, num_classes); ValueError for no integers."""
    ids = tf.convert_to_tensor(ids)
    article = "An" if what[0] in "aeiou" else "A"
    is_empty = ids.shape.rank is not None and 0 in ids.shape.as_list()  # a graph may know one size only
    if not ids.dtype.is_integer and not is_empty:
        hint = ": turn names into ids by vocabulary.encode(names)" if ids.dtype == tf.string else ""
        raise ValueError(f"{article} {what} id must be an integer, but the ids are {ids.dtype.name}{hint}.")
    # An unsigned type has no -1 to compare with, and argmax needs a number.
    flat = tf.pad(tf.cast(tf.reshape(ids, [-1]), tf.int64), [[0, 1]], constant_values=PADDING)
    outside = (flat < PADDING) | (flat >= num_classes)
    end = "L" if tf.is_tensor(num_classes) else num_classes  # a graph may not know it
    position = tf.argmax(tf.cast(outside, tf.int8))
    torch = "; for the -100 of PyTorch pass np.where(y == -100, -1, y)" if what == "label" else ""
    told = (
        f"{article} {what} id is outside [0, {end}) (-1 is padding{torch}): check the id mapping and "
        "num_classes. The id is"
    )
    told = told, flat[position], "at flat position", position, "of shape", tf.shape(ids)
    with tf.control_dependencies(require(tf.logical_not(tf.reduce_any(outside)), *told)):
        return tf.cast(tf.identity(ids), tf.int32)


def int32_ids(ids, num_classes):
    """Ids of any kind as an int32 tensor, for an op that checks their range; the others are checked here."""
    ids = tf.convert_to_tensor(ids)
    return ids if ids.dtype == tf.int32 else check_ids(ids, num_classes, "class")


def fitting_int32(ids, name):
    """Ids of a list or array as an int32 tensor; ValueError for one that TensorFlow would wrap round."""
    if tf.is_tensor(ids):
        return ids
    given = tf.get_static_value(tf.convert_to_tensor(ids))
    if given is not None and given.dtype.kind in "iu":
        outside = given[(given < tf.int32.min) | (given > tf.int32.max)]
        if outside.size:
            raise ValueError(f"{name} must fit into int32, but hold {outside[0]}.")
    return tf.convert_to_tensor(ids, dtype_hint=tf.int32)


def padded_ids(ids, name):
    """Class ids as a tensor [N, X], ragged ones padded with -1; or None. ValueError for others."""
    if ids is None:
        return None
    if isinstance(ids, tf.RaggedTensor):
        # An unsigned type has no -1.
        ids = (tf.cast(ids, tf.int64) if ids.dtype.is_unsigned else ids).to_tensor(PADDING)
    try:
        ids = tf.convert_to_tensor(ids)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must be class ids [N, X], padded with -1 or tf.ragged.constant(lists), but: {error}"
        ) from error
    if ids.shape.rank not in (2, None):
        raise ValueError(
            f"{name} must be class ids [N, X], one row for each query, or [1, X] for all queries, but got "
            f"shape {ids.shape}: write a single row as [[4, 7]]."
        )
    return ids


def excluded_ids(exclude, num_classes, query):
    """Class ids to exclude, given as [N, X] or [1, X], as int32 [N, X], a row for each of the queries [N, D].

    The graph checks that they are in [-1, L), no rows of a mask [N, L], and a row for each query, or one.
    """
    exclude = check_ids(padded_ids(exclude, "exclude"), num_classes, "excluded class")
    exclude = refuse_mask(exclude, num_classes, "exclude")
    if exclude.shape[0] is not None and exclude.shape[0] == query.shape[0]:
        return exclude
    refuse_other_rows(exclude, query, "exclude")
    num_queries = tf.shape(query)[0]
    with tf.control_dependencies(require_rows(exclude, num_queries, "exclude")):
        return tf.broadcast_to(exclude, [num_queries, tf.shape(exclude)[1]])


def refuse_mask(ids, num_classes, name):
    """Returns class ids [N, X], behind a check that they are not the rows of a mask [N, L]."""
    return refuse_zeros_and_ones(
        ids,
        num_classes,
        f"{name} must hold class ids padded with -1, but each row has as many entries as there are classes, "
        "all 0 or 1, like a mask. Pass ids: for a mask m np.where(m, np.arange(m.shape[1]), -1).",
    )


def refuse_zeros_and_ones(ids, num_classes, message):
    """Class ids [..., P], behind a check that they are no matrix of zeros and ones of at least 3 classes."""
    # A graph may not know how many ids there are (Keras may retrace a step), or how many classes.
    is_known = not tf.is_tensor(num_classes)
    if is_known and (ids.shape[-1] not in (num_classes, None) or num_classes < 3):
        return ids
    width = tf.shape(ids, tf.int64)[-1]
    is_as_wide = tf.equal(width, num_classes) & (width >= 3) & (tf.size(ids) > 0)
    checked = require(~(is_as_wide & tf.reduce_all((ids == 0) | (ids == 1))), message)
    with tf.control_dependencies(checked):
        return tf.identity(ids)


def require_queries(query):
    """Raises ValueError for queries that are known not to be of shape [N, D]."""
    if query.shape.rank not in (2, None):
        of_sequences = "model.queries(x) returns the queries at the end of sequences"
        remedy = of_sequences if query.shape.rank == 3 else "pass one row for each query"
        raise ValueError(f"query must be [N, D], but has shape {tuple(query.shape)}: {remedy}.")


def refuse_other_rows(ids, query, name):
    """As ``require_rows``, which runs too late where a graph knows both numbers: a ValueError."""
    rows, num_queries = ids.shape[0], query.shape[0]
    if not tf.executing_eagerly() and None not in (rows, num_queries) and rows not in (1, num_queries):
        raise ValueError(f"{_ROWS.format(name)} {rows} and the queries {num_queries}.")


def require_rows(ids, num_queries, name):
    """``require``: class ids have a row for each query, or one for all of them."""
    rows = tf.shape(ids)[0]
    told = _ROWS.format(name), rows, "and the queries", num_queries
    return require(tf.equal(rows, 1) | tf.equal(rows, num_queries), *told)


def drop_duplicates(ids):
    """Returns class ids [N, P] with every repeat of an id within its row replaced by -1."""
    if ids.shape[1] == 1:
        return ids
    order = tf.argsort(ids, axis=1, stable=True)
    ordered = tf.gather(ids, order, batch_dims=1)
    repeat = tf.concat([tf.zeros_like(ordered[:, :1], tf.bool), tf.equal(ordered[:, 1:], ordered[:, :-1])], 1)
    repeat = tf.gather(repeat, tf.argsort(order, axis=1), batch_dims=1)
    return tf.where(repeat, tf.constant(PADDING, ids.dtype), ids)


def hits(ids, labels):
    """For each candidate the column of the positive [N, P] that it equals, int32 [N, S]; -1 if none.

    Candidates are [N, S], or [S] shared by all rows. If several positives are equal, the last one counts.
    """
    if labels.shape[1] == 1:
        return tf.where(tf.equal(ids, labels) & (labels >= 0), 0, -1)
    if ids.shape.rank == 1:
        ids = tf.tile(ids[tf.newaxis], [tf.shape(labels)[0], 1])
    labels = tf.pad(labels, [[0, 0], [1, 0]], constant_values=PADDING)  # a neighbour for every id
    order = tf.argsort(labels, axis=1, stable=True)
    ordered = tf.gather(labels, order, batch_dims=1)
    last_not_above = _last_not_above(ordered, ids)
    same = tf.equal(tf.gather(ordered, last_not_above, batch_dims=1), ids) & (ids >= 0)
    return tf.where(same, tf.gather(order, last_not_above, batch_dims=1) - 1, -1)


def is_among(ids, sets):
    """Returns bool [N, S]: which ids [N, S] are in the set [N, X] of their row. Takes ``S log X`` steps."""
    ordered = tf.sort(tf.pad(sets, [[0, 0], [1, 0]], constant_values=PADDING), axis=1)
    return tf.equal(tf.gather(ordered, _last_not_above(ordered, ids), batch_dims=1), ids)


def _last_not_above(ordered, ids):
    """Returns the columns [N, S] in rows of ordered numbers [N, X]; 0 where all numbers are above."""
    # tf.searchsorted reshapes both with -1, which it cannot infer when there are no ids.
    return tf.maximum(tf.raw_ops.UpperBound(sorted_inputs=ordered, values=ids) - 1, 0)
