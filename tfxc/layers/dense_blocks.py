"""The classes of a dense head, streamed in both directions: a loss over all of them, or all logits."""

import tensorflow as tf
from tensorflow.python.eager import record

from tfxc.layers.head import block_size
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
from tfxc.ops.table_rows import mark_read_only, read_rows


def dense_reduction(head, loss, query, labels, variables):
    """The loss's reduction over all classes and the positives' logits [N, P], without [N, L] tensors.

    The gradient of the table is written block by block into one dense tensor, to which that of the positives
    is added: as a separate sparse gradient it would cost a second dense one when the two are summed. With the
    loss's ``filter_below`` the gradient has only the rows of the tiles that are left, and of the positives.
    The queries float32 [N, D] are scaled; ``variables`` are the table, and the biases if the head has them.
    """
    mark_read_only(*variables)
    fused = library.takes_table(variables[0]) and loss.over_classes.kernel is not None
    if loss.filter_below is None:
        way = _Fused if fused else _Reduction
    else:
        way = _FilteredFused if fused else _Filtered

    @custom_gradient
    def stream(query, *handles):
        classes = way(head, query, variables, loss, labels)
        reduced = classes.reduced()

        def gradient(d_reduced, d_positives):
            return classes.gradient(reduced, d_reduced, d_positives)

        return (reduced, classes.positives()), gradient

    return stream(query, *[variable.handle for variable in variables])


def all_logits(head, query, variables):
    """All logits [N, L] of a head whose class vectors must not be in memory all at once."""
    mark_read_only(*variables)

    @custom_gradient
    def stream(query, *handles):
        classes = _Blocks(head, query, variables)

        def forward(ids, logits):
            block = tf.matmul(head.vectors(*classes.raw(ids)), classes.query, transpose_b=True)
            return tf.raw_ops.InplaceUpdate(x=logits, i=ids, v=block)

        shape = tf.stack([head.num_classes, tf.shape(query)[0]])
        # A tape around this would record the loop to differentiate it, but its ops have no gradient.
        with record.stop_recording():
            logits = classes.over(forward, tf.raw_ops.Empty(shape=shape, dtype=tf.float32))

        def gradient(d_logits):
            d_query, grads = classes.gradients(lambda ids, _: d_logits[:, ids[0] : ids[-1] + 1])
            return [d_query, *grads]

        return tf.transpose(logits), gradient

    return stream(query, *[variable.handle for variable in variables])


class _Blocks:
    """Reads the rows and biases of a head block by block, by their handles, and makes their gradients so."""

    def __init__(self, head, query, variables):
        self.head, self.variables = head, variables
        self.dim = query.shape[1]
        self.query = head.with_bias_column(query)
        self.size = block_size(tf.shape(query)[0], head.max_block_size)
        self.row_shifts = (head.row_offset, 0)

    def raw(self, ids):
        """Table rows and, if the head has them, biases; gathered, since a whole read may copy the table."""
        shifted = zip(self.variables, self.row_shifts, strict=False)
        return [read_rows(variable, ids + shift) for variable, shift in shifted]

    def over(self, body, state):
        """Folds the blocks of class ids: state = body(ids, state)."""
        total = self.head.num_classes

        def step(start, state):
            return start + self.size, body(tf.range(start, tf.minimum(start + self.size, total)), state)

        is_left = lambda start, state: start < total  # noqa: E731
        return tf.while_loop(is_left, step, (tf.constant(0), state), parallel_iterations=1)[1]

    def gradients(self, logit_gradient):
        """What all logits give to the queries [N, D], and the dense gradients of table and biases.

        The function maps the ids [b] and class vectors [b, E] of a block to what reaches its logits [N, b].
        """

        def backward(ids, state):
            d_query, grads = state
            raw = self.raw(ids)
            vectors = self.head.vectors(*raw)
            d_logits = logit_gradient(ids, vectors)
            d_query += tf.matmul(d_logits, vectors)
            parts = self.through(raw, tf.matmul(d_logits, self.query, transpose_a=True))
            # Blocks in a TensorArray would hold the whole gradient a second time when stacked.
            return d_query, self.in_place(tf.raw_ops.InplaceUpdate, grads, ids, parts)

        zeros = [tf.raw_ops.Empty(shape=own.shape, dtype=tf.float32, init=True) for own in self.variables]
        d_query, grads = self.over(backward, (tf.zeros_like(self.query), zeros))
        return d_query[:, : self.dim], grads

    def in_place(self, op, grads, ids, parts):
        """The gradients of table and biases, those of some rows and biases written or added by an op."""
        written = zip(grads, parts, self.row_shifts, strict=False)
        return [op(x=grad, i=ids + shift, v=part) for grad, part, shift in written]

    def through(self, raw, d_vectors):
        """Gradients of the raw rows and biases from that of the class vectors made of them."""
        if not (self.head.normalize or self.head.use_bias):
            return [d_vectors]
        with tf.GradientTape() as tape:
            tape.watch(raw)
            vectors = self.head.vectors(*raw)
        return tape.gradient(vectors, raw, output_gradients=d_vectors)


class _Reduction(_Blocks):
    """A reduction over all classes and the logits of labels: one pass of blocks forward, one backward."""

    def __init__(self, head, query, variables, loss, labels):
        super().__init__(head, query, variables)
        self.loss = loss
        self.is_label = labels >= 0
        self.label_slots = tf.where(tf.reshape(labels, [-1]) >= 0)[:, 0]
        self.label_ids = tf.reshape(tf.maximum(labels, 0), [-1])
        # Both directions use one read: TensorFlow may run a gather of the backward pass after the table's
        # update, since it drops the control dependency.
        self.label_rows = self.raw(self.label_ids)
        vectors = head.vectors(*self.label_rows)
        vectors = tf.reshape(vectors, [*tf.unstack(tf.shape(labels)), self.query.shape[1]])
        # Padding reads class 0, and 0 times a bias of -inf is NaN.
        self.label_vectors = tf.where(self.is_label[..., tf.newaxis], vectors, 0.0)

    def reduced(self):
        reduction = self.loss.over_classes

        def update(ids, state):
            vectors = self.head.vectors(*self.raw(ids))
            return reduction.update(state, tf.matmul(self.query, vectors, transpose_b=True))

        return reduction.finish(self.over(update, reduction.init(tf.shape(self.query)[0])))

    def positives(self):
        return tf.einsum("npd,nd->np", self.label_vectors, self.query)

    def gradient(self, reduced, d_reduced, d_positives):
        d_positives = tf.where(self.is_label, d_positives, 0.0)
        d_query, grads = self.of_everything(reduced, d_reduced, *self.of_labels(d_positives))
        d_query += tf.einsum("np,npd->nd", d_positives, self.label_vectors)[:, : self.dim]
        return [d_query, *grads]

    def of_all_classes(self, reduced, d_reduced):
        """What the reduction gives to the queries, and the dense gradients of table and biases."""

        def logit_gradient(ids, vectors):
            logits = tf.matmul(self.query, vectors, transpose_b=True)
            by_logits = self.logit_gradient(reduced, logits)
            if reduced.shape.rank == 2:  # of several numbers
                return tf.einsum("nbc,nc->nb", by_logits, d_reduced)
            return by_logits * d_reduced[:, tf.newaxis]

        return self.gradients(logit_gradient)

    def logit_gradient(self, reduced, logits):
        return self.loss.over_classes.gradient(reduced, logits)

    def of_labels(self, d_positives):
        """The ids of the labels, and the gradients of their rows and biases."""
        d_vectors = d_positives[:, :, tf.newaxis] * self.query[:, tf.newaxis]
        d_vectors = tf.reshape(d_vectors, [-1, self.query.shape[1]])
        parts = [self.label_ids, *self.through(self.label_rows, d_vectors)]
        # Padding is left out: even a gradient of zero moves a class under momentum.
        ids, *parts = (tf.gather(part, self.label_slots) for part in parts)
        return ids, parts

    def of_everything(self, reduced, d_reduced, ids, parts):
        """``of_all_classes`` and, added to them, the gradients of some rows and biases."""
        d_query, grads = self.of_all_classes(reduced, d_reduced)
        # tensor_scatter_nd_add may copy the whole gradient first.
        return d_query, self.in_place(tf.raw_ops.InplaceAdd, grads, ids, parts)

    def sparse(self, ids, parts):
        """Gradients of table and biases from those of the rows and biases of some classes."""
        return [
            tf.IndexedSlices(part, ids + shift, tf.constant(variable.shape.as_list()))
            for part, shift, variable in zip(parts, self.row_shifts, self.variables, strict=False)
        ]


class _Filtered(_Reduction):
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


class _Fused(_Reduction):
    """By the compiled op, whose logits never leave the cache."""

    def __init__(self, head, query, variables, loss, labels):
        super().__init__(head, query, variables, loss, labels)
        table, *biases = [variable.handle for variable in variables]
        read = [tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32) for handle in biases]
        self.given = query, table, *(read or [tf.zeros([0])])
        self.options = {"reduction": loss.over_classes.kernel, **head.scan_options}

    def reduced(self):
        return dense_scan(*self.given, **self.options)[0]

    def of_all_classes(self, reduced, d_reduced):
        d_query, *grads = dense_scan_gradient(*self.given, reduced, d_reduced, **self.options)
        return d_query, grads[: len(self.variables)]


class _FilteredFused(_Fused):
    """By the compiled op that passes over tiles of which nothing is left."""

    def reduced(self):
        reduced, self.tile_maxima = dense_scan_with_maxima(*self.given, **self.head.scan_options)
        return reduced

    def of_everything(self, reduced, d_reduced, ids, parts):
        labels = (ids, parts[0], parts[1] if self.head.use_bias else tf.zeros([0]))
        given = *self.given, reduced, d_reduced, self.tile_maxima, labels
        options = {"threshold": self.loss.filter_below, **self.head.scan_options}
        d_query, ids, *parts = dense_scan_filtered_gradient(*given, **options)
        return d_query, self.sparse(ids, parts)
