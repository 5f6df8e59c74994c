"""Sets of class ids ``[N, P]``, a row an example, padded with -1: checked, without duplicates, compared.

They are compared by ``tf.equal``: where a graph does not know the sizes, ``==`` forgets how many there are.
"""

import tensorflow as tf

from tfxc.require import require

PADDING = -1


def check_ids(ids, num_classes, what="label"):
    """The ids, as int32, behind a check that each lies in [-1, num_classes).

    Raises:
        ValueError: for ids that are no integers, unless there are none.
        tf.errors.InvalidArgumentError: naming the first bad id, its position and the range.
    """
    ids = tf.convert_to_tensor(ids)
    article = "An" if what[0] in "aeiou" else "A"
    is_empty = ids.shape.rank is not None and 0 in ids.shape.as_list()  # a graph may know one size only
    if not ids.dtype.is_integer and not is_empty:
        raise ValueError(f"{article} {what} id must be an integer, but they came as {ids.dtype.name}.")
    flat = tf.cast(tf.reshape(ids, [-1]), tf.int64)  # before comparing: there is no unsigned -1
    outside = (flat < PADDING) | (flat >= num_classes)
    end = "L" if tf.is_tensor(num_classes) else num_classes  # a graph may not know it
    position = tf.argmax(tf.concat([tf.cast(outside, tf.int8), tf.constant([1], tf.int8)], 0))
    padded = tf.concat([flat, tf.zeros([1], flat.dtype)], 0)
    checked = require(
        tf.logical_not(tf.reduce_any(outside)),
        f"{article} {what} id is outside [0, {end}) (-1 is padding): check the id mapping and "
        "num_classes. The id is",
        padded[position],
        "at flat position",
        position,
        "of shape",
        tf.shape(ids),
    )
    with tf.control_dependencies(checked):
        return tf.cast(tf.identity(ids), tf.int32)


def int32_ids(ids, num_classes):
    """Class ids as int32, of an array or a list, too: int32 ones as they are, others as of ``check_ids``.

    For ops that check the range themselves, but take no other type.

    Example:
        >>> int32_ids(np.array([[4, -1]]), 5).dtype.name
        'int32'
    """
    ids = tf.convert_to_tensor(ids)
    return ids if ids.dtype == tf.int32 else check_ids(ids, num_classes, "class")


def fitting_int32(ids, name):
    """Ids of a list or an array as an int32 tensor, for ops that take no other; a tensor as it is.

    Where TensorFlow is told the type, it cuts 2^32 + 1 to 1.

    Raises:
        ValueError: for one that does not fit.

    Example:
        >>> fitting_int32([[4, 2**32 + 1]], "class_ids")
        Traceback (most recent call last):
        ...
        ValueError: class_ids must fit into int32, but hold 4294967297.
    """
    if tf.is_tensor(ids):
        return ids
    given = tf.get_static_value(tf.convert_to_tensor(ids))
    if given is not None and given.dtype.kind in "iu":
        outside = given[(given < tf.int32.min) | (given > tf.int32.max)]
        if outside.size:
            raise ValueError(f"{name} must fit into int32, but hold {outside[0]}.")
    return tf.convert_to_tensor(ids, dtype_hint=tf.int32)


def padded_ids(ids, name):
    """Class ids as a tensor [N, X], ragged ones padded with -1; None stays None.

    Raises:
        ValueError: for ids that are known not to be of shape [N, X].

    Example:
        >>> padded_ids(tf.ragged.constant([[4, 7], [2]]), "exclude").numpy().tolist()
        [[4, 7], [2, -1]]
    """
    if ids is None:
        return None
    if isinstance(ids, tf.RaggedTensor):
        ids = ids.to_tensor(PADDING)
    ids = tf.convert_to_tensor(ids)
    if ids.shape.rank not in (2, None):
        raise ValueError(
            f"{name} must be class ids [N, X], a row a query, or [1, X] for all of them, but got shape "
            f"{ids.shape}: for one row write [[4, 7]]."
        )
    return ids


def refuse_mask(ids, num_classes, name):
    """Class ids [N, X], behind a check that they are no rows of a mask [N, L].

    Raises:
        tf.errors.InvalidArgumentError: for those, which would be read as the ids 0 and 1.

    Example:
        >>> refuse_mask(tf.constant([[1, 0]]), 5, "exclude").numpy().tolist()
        [[1, 0]]
    """
    return refuse_zeros_and_ones(
        ids,
        num_classes,
        f"{name} holds class ids padded with -1, but these rows are as long as there are classes, and all 0 "
        "or 1, as those of a mask. Pass ids: of a mask m np.where(m, np.arange(m.shape[1]), -1).",
    )


def refuse_zeros_and_ones(ids, num_classes, message):
    """Class ids [..., P], behind a check that they are no rows of a matrix of zeros and ones.

    Example:
        >>> refuse_zeros_and_ones(tf.constant([[1, 0]]), 5, "A matrix.").numpy().tolist()
        [[1, 0]]
    """
    # A graph may not know how many ids there are (Keras traced a step anew), or how many classes.
    is_known = not tf.is_tensor(num_classes)
    if is_known and (ids.shape[-1] not in (num_classes, None) or num_classes < 3):
        return ids
    width = tf.shape(ids, tf.int64)[-1]
    is_as_wide = tf.equal(width, num_classes) & (width >= 3) & (tf.size(ids) > 0)
    checked = require(~(is_as_wide & tf.reduce_all((ids == 0) | (ids == 1))), message)
    with tf.control_dependencies(checked):
        return tf.identity(ids)


def require_queries(query):
    """Raises ValueError for queries that are known not to be of shape [N, D].

    Example:
        >>> require_queries(tf.zeros([4, 8]))
    """
    if query.shape.rank not in (2, None):
        of_sequences = "model.queries(x) gives those at the end of sequences"
        remedy = of_sequences if query.shape.rank == 3 else "a row a query"
        raise ValueError(f"query must be [N, D], but has shape {tuple(query.shape)}: {remedy}.")


def for_each_row(ids, query, name="exclude"):
    """Class ids [N, X] of queries [N, D]: of those of each row, or of [1, X] for all of them.

    Raises:
        tf.errors.InvalidArgumentError: for another number of rows; ValueError where a graph knows both.

    Example:
        >>> for_each_row(tf.constant([[4, 7]]), tf.zeros([2, 8])).numpy().tolist()
        [[4, 7], [4, 7]]
    """
    if ids.shape[0] is not None and ids.shape[0] == query.shape[0]:
        return ids
    refuse_other_rows(ids, query, name)
    with tf.control_dependencies(require_rows(ids, tf.shape(query)[0], name)):
        return tf.broadcast_to(ids, [tf.shape(query)[0], tf.shape(ids)[1]])


def refuse_other_rows(ids, query, name):
    """Raises ValueError in a graph that knows that class ids have other rows than queries [N, D].

    There TensorFlow would compare the shapes before ``require_rows`` is asked.

    Example:
        >>> refuse_other_rows(tf.constant([[4, 7]]), tf.zeros([2, 8]), "allow")
    """
    rows, num_queries = ids.shape[0], query.shape[0]
    if tf.executing_eagerly() or None in (rows, num_queries):
        return
    if rows not in (1, num_queries):
        raise ValueError(
            f"{name} must have a row for each query, or one for all of them, but the rows are {rows} and the "
            f"queries {num_queries}."
        )


def require_rows(ids, num_queries, name):
    """``require``: class ids have a row for each query, or one for all of them.

    Example:
        >>> require_rows(tf.constant([[4, 7]]), 3, "allow")
        []
    """
    rows = tf.shape(ids)[0]
    return require(
        tf.equal(rows, 1) | tf.equal(rows, num_queries),
        f"{name} must have a row for each query, or one for all of them, but the rows are",
        rows,
        "and the queries",
        num_queries,
    )


def drop_duplicates(ids):
    """Class ids [N, P] with every repeat of an id within its row replaced by -1.

    Example:
        >>> drop_duplicates(tf.constant([[4, 7, 4], [-1, 2, 2]])).numpy().tolist()
        [[4, 7, -1], [-1, 2, -1]]
    """
    if ids.shape[1] == 1:
        return ids
    order = tf.argsort(ids, axis=1, stable=True)
    ordered = tf.gather(ids, order, batch_dims=1)
    repeat = tf.concat([tf.zeros_like(ordered[:, :1], tf.bool), tf.equal(ordered[:, 1:], ordered[:, :-1])], 1)
    repeat = tf.gather(repeat, tf.argsort(order, axis=1), batch_dims=1)
    return tf.where(repeat, tf.constant(PADDING, ids.dtype), ids)


def hits(ids, labels):
    """Int32 [N, S]: the column of the positive that a candidate id ([N, S] or shared [S]) equals; -1: none.

    Of several that are equal the last, in ``S log P`` steps a row.

    Example:
        >>> hits(tf.constant([2, 5, 7]), tf.constant([[7, 2], [5, -1]])).numpy().tolist()
        [[1, -1, 0], [-1, 0, -1]]
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
    """Bool [N, S]: which ids [N, S] stand in their row's set of ids [N, X], in ``S log X`` steps a row.

    Example:
        >>> is_among(tf.constant([[3, 5], [3, 5]]), tf.constant([[5, -1], [9, 3]])).numpy().tolist()
        [[False, True], [True, False]]
    """
    ordered = tf.sort(tf.pad(sets, [[0, 0], [1, 0]], constant_values=PADDING), axis=1)
    return tf.equal(tf.gather(ordered, _last_not_above(ordered, ids), batch_dims=1), ids)


def _last_not_above(ordered, ids):
    """The columns [N, S] in rows of ordered numbers [N, X]; 0 where all are above."""
    # tf.searchsorted would reshape both, and of no ids at all cannot tell how many rows they have.
    return tf.maximum(tf.raw_ops.UpperBound(sorted_inputs=ordered, values=ids) - 1, 0)
