"""The classes of a dense head in blocks, forward and backward."""

import tensorflow as tf
from tensorflow.python.eager import record

from tfxc.layers.head import block_size
from tfxc.ops.custom_gradient import custom_gradient
from tfxc.ops.table_rows import mark_read_only, read_rows


class TableBlocks:
    """Reads the rows and biases of a ``DenseHead`` block by block, and makes their gradients so.

    Args:
        head: a ``DenseHead``.
        query: scaled queries float32 [N, D].
        variables: its table and, if it has them, its biases. Read by their handles, as it is for custom
            gradients.
    """

    def __init__(self, head, query, variables):
        self.head, self.variables = head, variables
        self.dim = query.shape[1]
        self.query = head.with_bias_column(query)
        self.size = block_size(tf.shape(query)[0], head.max_block_size)
        self.row_shifts = (head.row_offset, 0)

    def raw(self, ids):
        """Table rows and, if the head has them, biases; gathered, since a whole read may copy the table."""
        return [
            read_rows(variable, ids + shift)
            for variable, shift in zip(self.variables, self.row_shifts, strict=False)
        ]

    def over(self, body, state):
        """Folds the blocks of class ids: state = body(ids, state)."""
        total = self.head.num_classes

        def step(start, state):
            return start + self.size, body(tf.range(start, tf.minimum(start + self.size, total)), state)

        return tf.while_loop(
            lambda start, state: start < total, step, (tf.constant(0), state), parallel_iterations=1
        )[1]

    def gradients(self, logit_gradient):
        """What all logits give to the queries [N, E], and the dense gradients of table and biases.

        Args:
            logit_gradient: function of the ids [b] and class vectors [b, E] of a block to what reaches its
                logits [N, b].
        """

        def backward(ids, state):
            d_query, grads = state
            raw = self.raw(ids)
            vectors = self.head.vectors(*raw)
            d_logits = logit_gradient(ids, vectors)
            d_query += tf.matmul(d_logits, vectors)
            parts = self.through(raw, tf.matmul(d_logits, self.query, transpose_a=True))
            # In place: blocks in a TensorArray would hold the whole gradient a second time when stacked.
            grads = [
                tf.raw_ops.InplaceUpdate(x=grad, i=ids + shift, v=part)
                for grad, part, shift in zip(grads, parts, self.row_shifts, strict=False)
            ]
            return d_query, grads

        zeros = [
            tf.raw_ops.Empty(shape=variable.shape, dtype=tf.float32, init=True) for variable in self.variables
        ]
        return self.over(backward, (tf.zeros_like(self.query), zeros))

    def through(self, raw, d_vectors):
        """Gradients of the raw rows and biases from that of the class vectors made of them."""
        if not (self.head.normalize or self.head.use_bias):
            return [d_vectors]
        with tf.GradientTape() as tape:
            tape.watch(raw)
            vectors = self.head.vectors(*raw)
        return tape.gradient(vectors, raw, output_gradients=d_vectors)


def block_by_block(head, query, variables):
    """All logits [N, L] of a head whose class vectors must not be in memory all at once.

    Args: as of ``TableBlocks``.
    """
    mark_read_only(*variables)

    @custom_gradient
    def stream(query, *handles):
        blocks = TableBlocks(head, query, variables)

        def forward(ids, logits):
            block = tf.matmul(head.vectors(*blocks.raw(ids)), blocks.query, transpose_b=True)
            return tf.raw_ops.InplaceUpdate(x=logits, i=ids, v=block)

        shape = tf.stack([head.num_classes, tf.shape(query)[0]])
        # A tape around would have the loop make a way back of its own, and its ops have none.
        with record.stop_recording():
            logits = blocks.over(forward, tf.raw_ops.Empty(shape=shape, dtype=tf.float32))

        def gradient(d_logits):
            d_query, grads = blocks.gradients(lambda ids, _: d_logits[:, ids[0] : ids[-1] + 1])
            return [d_query[:, : blocks.dim], *grads]

        return tf.transpose(logits), gradient

    return stream(query, *[variable.handle for variable in variables])
