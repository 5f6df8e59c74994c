"""Scores of labels and the log-sum-exp of candidates' scores, with a row-sparse gradient for the table."""

import tensorflow as tf

from tfxc.infinity import infinity_is_meant
from tfxc.ops import library
from tfxc.ops.candidate_scores import checked_inputs, scores_in_tensorflow
from tfxc.ops.table_rows import mark_read_only
from tfxc.scored import MASKED_LOGIT

library.reads_tables("CandidateLogSumExp", "CandidateLogSumExpGrad")


def candidate_log_sum_exp(table, query, label_ids, class_ids, offsets, normalize=False, row_offset=0):
    """Scores each query's labels, and sums the exponentials of its candidates' scores.

    ``log_sum[n] = log sum over s of exp(query[n] · w_s + offsets[n, s])``, where ``w_s`` is the class vector
    of candidate s, as in :func:`~tfxc.ops.candidate_scores.candidate_scores`. The compiled op reads a
    candidate's row once: while it is in the cache, the op adds it to the mean of all rows by their shares of
    the sum, which is the query's gradient. The backward pass of normalised scores reads the rows of the
    touched classes once more: take all gradients, then change the table. Without the compiled library, in XLA
    and for other tables TensorFlow's ops do the same.

    Args:
        table: and ``query``, ``normalize``, ``row_offset``: as in ``candidate_scores``.
        label_ids: ``[N, P]`` int32 in ``[0, L)``; -1 has score 0 and no gradient.
        class_ids: ``[N, S]`` int32 in ``[0, L)``, the candidates; -1 is an empty slot, which adds nothing.
        offsets: ``[N, S]``, or what broadcasts to it, added to the candidates' scores. A slot with -infinity
            is empty, too. Offsets for all queries must have the static shape ``[1, S]``: where a graph does
            not know the number of rows, it takes them as a row for each query.

    Returns:
        The labels' scores ``[N, P]``, and ``log_sum`` ``[N, 1]``, -1e30 without a candidate; in the table's
        dtype, for bfloat16 in float32.
    """
    inputs = _check(table, query, label_ids, class_ids, offsets, row_offset)
    if not library.takes_table(table):
        return _in_tensorflow(table, *inputs, normalize, row_offset)
    mark_read_only(table)
    options = {"normalize": normalize, "row_offset": row_offset}
    made = library.load().tfxc_candidate_log_sum_exp(table.handle, *inputs, **options)
    return made.label_scores, made.log_sum


def _check(table, query, label_ids, class_ids, offsets, row_offset):
    query, label_ids = checked_inputs(table, query, label_ids, row_offset, "label_ids")
    query, class_ids = checked_inputs(table, query, class_ids, row_offset)
    offsets = tf.cast(offsets, query.dtype)
    try:
        fits = tf.broadcast_static_shape(offsets.shape, class_ids.shape).is_compatible_with(class_ids.shape)
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            "offsets must have the shape of class_ids, or broadcast to it, but their shapes are "
            f"{offsets.shape} and {class_ids.shape}. Give one offset for each candidate."
        )
    width = class_ids.shape[1] if class_ids.shape.rank == 2 else None
    if width is None or offsets.shape.rank != 2 or offsets.shape[1] != width or offsets.shape[0] == 1:
        offsets = tf.broadcast_to(offsets, tf.shape(class_ids))
    return query, label_ids, class_ids, offsets


def _in_tensorflow(table, query, label_ids, class_ids, offsets, normalize, row_offset):
    num_labels, num_candidates = tf.shape(label_ids)[1], tf.shape(class_ids)[1]
    with infinity_is_meant():
        out = offsets == float("-inf")
    class_ids = tf.where(out, -1, class_ids)
    ids = tf.concat([label_ids, class_ids], 1)
    scores = scores_in_tensorflow(table, query, ids, normalize, row_offset)
    label_scores, scores = tf.split(scores, [num_labels, num_candidates], axis=1)
    offsets = tf.where(out, 0.0, offsets)  # infinity times 0 would make a gradient of NaN
    scores = tf.where(class_ids >= 0, scores + offsets, MASKED_LOGIT)
    # A slot that is summed where there is no candidate.
    scores = tf.pad(scores, [[0, 0], [0, 1]], constant_values=MASKED_LOGIT)
    return label_scores, tf.reduce_logsumexp(scores, axis=1, keepdims=True)


@tf.RegisterGradient("Tfxc>CandidateLogSumExp")
def _gradient(op, label_gradient, sum_gradient, *unused):
    table, query, *_ = op.inputs
    *saved, ids = op.outputs[2:]  # label vectors, shares, mean, slots; and the ids
    given = table, query, ids, *saved, label_gradient, sum_gradient
    made = library.gradient_of(op, given, "normalize", "row_offset")
    table_gradient = tf.IndexedSlices(made.row_gradients, made.rows, tf.raw_ops.VariableShape(input=table))
    return table_gradient, made.query_gradient, None, None, made.offset_gradient
