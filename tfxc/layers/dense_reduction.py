"""A loss over all classes of a dense head, streamed in both directions: by a compiled op, or in blocks."""

import tensorflow as tf

from tfxc.layers.table_blocks import TableBlocks
from tfxc.ops import library
from tfxc.ops.custom_gradient import custom_gradient
from tfxc.ops.dense_scan import (
    TILE_CLASSES,
    dense_scan,
    dense_scan_filtered_gradient,
    dense_scan_gradient,
    dense_scan_with_maxima,
    left_by_filter,
)
from tfxc.ops.reductions import REDUCTIONS
from tfxc.ops.table_rows import mark_read_only


def dense_reduction(head, loss, query, labels, variables):
    """The loss's reduction over all classes [N] and the positives' logits [N, P], without [N, L] tensors.

    The gradient of the table is written block by block into one dense tensor, to which the positives'
    share is added: as a separate sparse gradient it would cost a second dense one when the two are summed.
    With the loss's ``filter_below`` it has only the rows of tiles that are left, and the positives'.

    Args:
        head: a ``DenseHead``.
        loss: a ``ClassificationLoss``.
        query: scaled queries float32 [N, D].
        labels: int32 [N, P], padded with -1.
        variables: the table, and the biases if the head has them.
    """
    mark_read_only(*variables)
    fused = library.takes_table(variables[0]) and loss.reduction_over_classes in REDUCTIONS
    if loss.filter_below is None:
        way = _Fused if fused else _Blocks
    else:
        way = _FilteredFused if fused else _FilteredBlocks

    @custom_gradient
    def stream(query, *handles):
        classes = way(head, loss, query, labels, variables)
        reduced = classes.reduced()

        def gradient(d_reduced, d_positives):
            return classes.gradient(reduced, d_reduced, d_positives)

        return (reduced, classes.positives()), gradient

    return stream(query, *[variable.handle for variable in variables])


class _Blocks(TableBlocks):
    """One pass of blocks forward and one backward."""

    def __init__(self, head, loss, query, labels, variables):
        super().__init__(head, query, variables)
        self.loss = loss
        self.is_label = labels >= 0
        self.label_slots = tf.where(tf.reshape(labels, [-1]) >= 0)[:, 0]
        self.label_ids = tf.reshape(tf.maximum(labels, 0), [-1])
        # Read once, for both directions: what the backward pass reads beside the table's gradient may come
        # after its update, since TensorFlow drops that control dependency of a gather.
        self.label_rows = self.raw(self.label_ids)
        vectors = head.vectors(*self.label_rows)
        vectors = tf.reshape(vectors, [*tf.unstack(tf.shape(labels)), self.query.shape[1]])
        # Padding reads class 0, and a bias of -inf, times 0, is no number.
        self.label_vectors = tf.where(self.is_label[..., tf.newaxis], vectors, 0.0)

    def reduced(self):
        def update(ids, state):
            vectors = self.head.vectors(*self.raw(ids))
            return self.loss.update(state, tf.matmul(self.query, vectors, transpose_b=True))

        return self.loss.finish(self.over(update, self.loss.initial(tf.shape(self.query)[0])))

    def positives(self):
        return tf.einsum("npd,nd->np", self.label_vectors, self.query)

    def gradient(self, reduced, d_reduced, d_positives):
        d_positives = tf.where(self.is_label, d_positives, 0.0)
        d_query, grads = self.of_everything(reduced, d_reduced, *self.of_labels(d_positives))
        d_query += tf.einsum("np,npd->nd", d_positives, self.label_vectors)
        return [d_query[:, : self.dim], *grads]

    def of_all_classes(self, reduced, d_reduced):
        """What the reduction gives to the queries, and the dense gradients of table and biases."""

        def logit_gradient(ids, vectors):
            logits = tf.matmul(self.query, vectors, transpose_b=True)
            return self.logit_gradient(reduced, logits) * d_reduced[:, tf.newaxis]

        return self.gradients(logit_gradient)

    def logit_gradient(self, reduced, logits):
        return self.loss.logit_gradient(reduced, logits)

    def of_labels(self, d_positives):
        """The ids of the labels, and the gradients of their rows and biases."""
        d_vectors = d_positives[:, :, tf.newaxis] * self.query[:, tf.newaxis]
        d_vectors = tf.reshape(d_vectors, [-1, self.query.shape[1]])
        parts = [self.label_ids, *self.through(self.label_rows, d_vectors)]
        # Not of padding: even a gradient of zero moves a class under momentum.
        ids, *parts = (tf.gather(part, self.label_slots) for part in parts)
        return ids, parts

    def of_everything(self, reduced, d_reduced, ids, parts):
        """``of_all_classes`` and, added to them, the gradients of some rows and biases."""
        d_query, grads = self.of_all_classes(reduced, d_reduced)
        # In place: tensor_scatter_nd_add may copy the whole gradient first.
        return d_query, [
            tf.raw_ops.InplaceAdd(x=grad, i=ids + shift, v=part)
            for grad, part, shift in zip(grads, parts, self.row_shifts, strict=False)
        ]

    def sparse(self, ids, parts):
        """Gradients of table and biases from those of the rows and biases of some classes."""
        return [
            tf.IndexedSlices(part, ids + shift, tf.constant(variable.shape.as_list()))
            for part, shift, variable in zip(parts, self.row_shifts, self.variables, strict=False)
        ]


class _FilteredBlocks(_Blocks):
    """Without what the loss's filter leaves out, in blocks of whole tiles."""

    def __init__(self, *given):
        super().__init__(*given)
        self.size = tf.maximum(self.size // TILE_CLASSES, 1) * TILE_CLASSES

    def left(self, reduced, logits):
        return left_by_filter(logits, reduced, self.loss.filter_below)

    def logit_gradient(self, reduced, logits):
        return tf.where(self.left(reduced, logits), super().logit_gradient(reduced, logits), 0.0)

    def of_everything(self, reduced, d_reduced, ids, parts):
        def mark(ids, is_left):
            logits = tf.matmul(self.query, self.head.vectors(*self.raw(ids)), transpose_b=True)
            left = tf.reduce_any(self.left(reduced, logits), 0)
            return tf.tensor_scatter_nd_update(is_left, ids[:, tf.newaxis], left)

        is_left = self.over(mark, tf.zeros([self.head.num_classes], tf.bool))
        is_left = tf.tensor_scatter_nd_update(is_left, ids[:, tf.newaxis], tf.fill(tf.shape(ids), True))
        d_query, grads = super().of_everything(reduced, d_reduced, ids, parts)
        left = tf.cast(tf.where(is_left)[:, 0], tf.int32)
        shifted = zip(grads, self.row_shifts, strict=False)
        return d_query, self.sparse(left, [tf.gather(grad, left + shift) for grad, shift in shifted])


class _Fused(_Blocks):
    """The same by the compiled op: logits never leave the cache."""

    def __init__(self, head, loss, query, labels, variables):
        super().__init__(head, loss, query, labels, variables)
        table, *bias = [variable.handle for variable in variables]
        bias = [tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32) for handle in bias]
        self.given = query, table, bias[0] if bias else tf.zeros([0])
        self.options = {"reduction": loss.reduction_over_classes, **head.scan_options}

    def reduced(self):
        return dense_scan(*self.given, **self.options)[0]

    def of_all_classes(self, reduced, d_reduced):
        d_query, d_table, d_bias = dense_scan_gradient(*self.given, reduced, d_reduced, **self.options)
        return self.padded(d_query), [d_table, d_bias][: len(self.variables)]

    def padded(self, d_query):
        """With a column for the bias, as the other way has it."""
        return tf.pad(d_query, [[0, 0], [0, self.query.shape[1] - self.dim]])


class _FilteredFused(_Fused):
    """By the compiled op that passes over tiles of which nothing is left."""

    def reduced(self):
        reduced, self.tile_maxima = dense_scan_with_maxima(*self.given, **self.head.scan_options)
        return reduced

    def of_everything(self, reduced, d_reduced, ids, parts):
        d_query, ids, *parts = dense_scan_filtered_gradient(
            *self.given,
            reduced,
            d_reduced,
            self.tile_maxima,
            (ids, parts[0], parts[1] if self.head.use_bias else tf.zeros([0])),
            threshold=self.loss.filter_below,
            **self.head.scan_options,
        )
        return self.padded(d_query), self.sparse(ids, parts)
