"""Scores of a few chosen classes a query, with a row-sparse gradient for the class table."""

import tensorflow as tf

from tfxc.arguments import positive_int
from tfxc.ids import fitting_int32
from tfxc.ops import library
from tfxc.ops.table_rows import gather_rows, mark_read_only, rows_dtype
from tfxc.require import in_range

_MIN_SQUARED_NORM = 1e-24  # (1e-12)²: a shorter row is not scaled up to length one

library.reads_tables("CandidateScores", "CandidateScoresGrad")


def candidate_scores(table, query, class_ids, normalize=False, row_offset=0):
    """Scores each query against its own candidate classes.

    ``scores[n, s] = query[n] · w``, where ``w = table[class_ids[n, s] + row_offset]``, or
    ``w / max(|w|, 1e-12)`` with ``normalize``. The compiled op reads the rows where they lie, without a
    ``[N, S, D]`` tensor. The gradient reaches ``table`` as ``tf.IndexedSlices``, one row for each class among
    the ids. The backward pass reads the rows again: take all gradients of a step, then change the table. With
    a table of bfloat16, too, everything is computed in float32, as is the gradient. Without the compiled
    library, in XLA and for other tables TensorFlow's ops do the same.

    Args:
        table: ``tf.Variable`` ``[row_offset + L, D]``, the class vectors. A row no longer than 1e-12 gets no
            gradient under ``normalize`` (its direction is undefined).
        query: ``[N, D]``, cast to the scores' dtype.
        class_ids: ``[N, S]`` int32 in ``[0, L)``; -1 is an empty slot: score 0, no gradient.
        normalize: Whether class vectors are scaled to length one. The query is not scaled.
        row_offset: Number of table rows before the row of class 0.

    Returns:
        ``[N, S]`` scores in the table's dtype, for bfloat16 in float32.

    Raises ValueError for what does not fit, and an InvalidArgumentError for a class id outside ``[-1, L)``.
    """
    query, class_ids = checked_inputs(table, query, class_ids, row_offset)
    if not library.takes_table(table):
        return scores_in_tensorflow(table, query, class_ids, normalize, row_offset)
    mark_read_only(table)
    return library.load().tfxc_candidate_scores(
        table=table.handle, query=query, class_ids=class_ids, normalize=normalize, row_offset=row_offset
    )


def checked_inputs(table, query, class_ids, row_offset, name="class_ids"):
    """Query and class ids as tensors of the dtypes that ops take; raises ValueError if they do not fit."""
    if not isinstance(table, tf.Variable):
        raise ValueError(
            f"table must be a tf.Variable, which the op reads in place, but it is a {type(table).__name__}. "
            "Pass the variable itself (for a Keras 3 weight: weight.value)."
        )
    if table.shape.rank != 2:
        raise ValueError(f"table must have shape [L, D], but has shape {table.shape}.")
    positive_int(row_offset, "row_offset", least=0)
    query = tf.cast(query, rows_dtype(table))
    class_ids = fitting_int32(class_ids, name)
    if class_ids.dtype != tf.int32:
        raise ValueError(f"{name} must be int32, not {class_ids.dtype.name}: take tf.cast(ids, tf.int32).")
    fits = (
        query.shape.rank in (2, None)
        and class_ids.shape.rank in (2, None)
        and query.shape[:1].is_compatible_with(class_ids.shape[:1])
        and query.shape[1:].is_compatible_with(table.shape[1:])
    )
    if not fits:
        raise ValueError(
            f"query must be [N, D] and {name} [N, S] for a table [L, D], but their shapes are "
            f"{query.shape}, {class_ids.shape} and {table.shape}."
        )
    return query, class_ids


def normalized(rows):
    """Float32 rows [..., D] divided by their length; a row no longer than 1e-12 gets no gradient."""
    squared_norm = tf.reduce_sum(tf.square(rows), axis=-1, keepdims=True)
    is_short = squared_norm <= _MIN_SQUARED_NORM
    # The inner tf.where keeps 0 · inf = NaN out of the gradient of the branch that is not taken.
    unit = rows * tf.math.rsqrt(tf.where(is_short, 1.0, squared_norm))
    return tf.where(is_short, tf.stop_gradient(rows * 1e12), unit)


def scores_in_tensorflow(table, query, class_ids, normalize, row_offset):
    """``candidate_scores`` of checked inputs, in TensorFlow's ops."""
    occupied, num_classes = class_ids >= 0, tf.shape(table)[0] - row_offset
    with tf.control_dependencies(in_range(class_ids, -1, num_classes, "class_ids: the id")):
        filled = tf.where(occupied)
    # Empty slots gather no row: with momentum, even a gradient of zero moves a class.
    rows = gather_rows(table, tf.gather_nd(class_ids, filled) + row_offset)
    rows = tf.scatter_nd(filled, rows, tf.concat([tf.shape(class_ids, tf.int64), [table.shape[1]]], 0))
    if normalize:
        rows = normalized(rows)
    return tf.where(occupied, tf.einsum("nd,nsd->ns", query, rows), 0.0)


@tf.RegisterGradient("Tfxc>CandidateScores")
def _candidate_scores_gradient(op, gradient):
    made = library.gradient_of(op, (*op.inputs, gradient), "normalize", "row_offset")
    table_shape = tf.raw_ops.VariableShape(input=op.inputs[0])
    return tf.IndexedSlices(made.row_gradients, made.rows, table_shape), made.query_gradient, None
