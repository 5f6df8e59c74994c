"""Logits of uniformly sparse classes: of a block, of chosen classes, and a reduction over all classes.

Every class reads K of E inputs: ``logit[n, l] = Σ_k weights[l, k] · query[n, indices[l // G, k]] + bias[l]``.
G classes in a row read the same inputs. The compiled ops read the variables in place and never hold
``[N, L]``. The TensorFlow path adds one input of each class at a time, in blocks of classes: it holds at most
``[N, b]``.

All functions take

* ``query``: ``[N, E]``, cast to float32;
* ``weights``: ``tf.Variable`` float32 ``[L, K]``;
* ``indices``: ``tf.Variable`` int32 ``[ceil(L / G), K]``, inputs in ``[0, E)``;
* ``bias``, except for candidates: ``[L]`` float32, or ``[0]`` for none;
* ``group_size``: G, at least 1.

They raise ``ValueError`` for a shape or dtype that does not fit, and ``tf.errors.InvalidArgumentError`` for
an input outside ``[0, E)``.
"""

import tensorflow as tf

from tfxc.arguments import positive_int
from tfxc.ids import fitting_int32
from tfxc.ops import library
from tfxc.ops.custom_gradient import kept_by_graph
from tfxc.ops.table_rows import mark_read_only
from tfxc.require import in_range

for _name in ("SparseHeadLogits", "SparseHeadReduce", "SparseHeadCandidates"):
    library.reads_tables(_name, f"{_name}Grad")

_BLOCK_CLASSES = 4096  # a block of the stock reduction


def sparse_head_logits(query, weights, indices, bias, start, stop, group_size=1):
    """Logits ``[N, stop - start]`` of the classes from ``start`` to before ``stop``, ints or int32 scalars.

    The gradient of weights and bias is dense.
    """
    query = _check(query, weights, indices, bias, group_size)
    start, stop = tf.convert_to_tensor(start, tf.int32), tf.convert_to_tensor(stop, tf.int32)
    if not library.use_compiled():
        return _block_logits(query, weights, indices, bias, start, stop, group_size)
    mark_read_only(weights, indices)
    given = query, weights.handle, indices.handle, bias, start, stop
    return library.load().tfxc_sparse_head_logits(*given, group_size=group_size)


def sparse_head_reduce(query, weights, indices, bias, labels, reduction, group_size=1):
    """A reduction ``[N]`` over all classes, and the logits ``[N, P]`` of labels int32, 0 on padding, -1.

    The reduction is ``LOGSUMEXP``, ``SOFTPLUS`` or ``SQUARED_HINGE`` of ``tfxc.losses``. The backward pass
    computes the logits again, class by class. It skips a class whose gradient is exactly 0 in the whole
    batch: with the squared hinge, most classes.
    """
    query = _check(query, weights, indices, bias, group_size)
    labels = _check_ids(query, labels)
    if not library.use_compiled():
        positives = _candidates(query, weights, indices, bias, labels, group_size)
        return _reduce(query, weights, indices, bias, reduction, group_size), positives
    mark_read_only(weights, indices)
    given = query, weights.handle, indices.handle, bias, labels
    options = {"reduction": reduction.kernel, "group_size": group_size}
    return library.load().tfxc_sparse_head_reduce(*given, **options)


def sparse_head_candidates(query, weights, indices, class_ids, group_size=1):
    """Logits ``[N, S]`` without biases of a few chosen classes a query, at a cost that does not depend on L.

    Class ids ``[N, S]`` are int32 in ``[0, L)``; -1 is an empty slot: score 0, no gradient. The gradient of
    the weights is ``tf.IndexedSlices``.
    """
    query = _check(query, weights, indices, tf.zeros([0]), group_size)
    class_ids = _check_ids(query, class_ids)
    if not library.use_compiled():
        return _candidates(query, weights, indices, tf.zeros([0]), class_ids, group_size)
    mark_read_only(weights, indices)
    given = query, weights.handle, indices.handle, class_ids
    return library.load().tfxc_sparse_head_candidates(*given, group_size=group_size)


def _check(query, weights, indices, bias, group_size):
    group_size = positive_int(group_size, "group_size")
    for name, variable, dtype in (("weights", weights, tf.float32), ("indices", indices, tf.int32)):
        if not isinstance(variable, tf.Variable) or variable.dtype != dtype or variable.shape.rank != 2:
            raise ValueError(f"{name} must be a tf.Variable {dtype.name} of rank 2, but is {variable!r}.")
    query = tf.cast(query, tf.float32)
    num_groups = -(-weights.shape[0] // group_size)
    fits = (
        query.shape.rank == 2
        and indices.shape == (num_groups, weights.shape[1])
        and bias.shape.rank == 1
        and bias.shape[0] in (0, None, weights.shape[0])
    )
    if not fits:
        raise ValueError(
            f"A sparse head needs query [N, E], weights [L, K], indices [{num_groups}, K] for groups of "
            f"{group_size}, and bias [L] or [0], but their shapes are {query.shape}, {weights.shape}, "
            f"{indices.shape} and {bias.shape}."
        )
    return query


def _check_ids(query, ids):
    ids = fitting_int32(ids, "Class ids")
    if ids.dtype != tf.int32 or ids.shape.rank != 2 or not ids.shape[:1].is_compatible_with(query.shape[:1]):
        raise ValueError(
            f"Class ids must be int32 [N, S] for query {query.shape}, but are {ids.dtype.name} {ids.shape}."
        )
    return ids


def _rows(weights, indices, bias, ids, num_inputs, group_size):
    """Weights [..., K], inputs [..., K] and biases [...] of classes; the inputs are checked."""
    inputs = tf.gather(indices, ids // group_size)
    with tf.control_dependencies(in_range(inputs, 0, num_inputs, "indices: the input")):
        inputs = tf.identity(inputs)
    own_bias = tf.gather(bias, ids) if bias.shape[0] != 0 else tf.zeros(tf.shape(ids))
    return tf.gather(weights, ids), inputs, own_bias


def _block_logits(query, weights, indices, bias, start, stop, group_size):
    num_classes = weights.shape[0]
    with tf.control_dependencies(in_range(tf.stack([start, stop]), 0, num_classes + 1, "Classes: the bound")):
        classes = tf.range(start, stop)
    own, inputs, own_bias = _rows(weights, indices, bias, classes, tf.shape(query)[1], group_size)
    by_input = tf.transpose(query)  # an input is a row to gather

    def add(k, logits):
        return k + 1, logits + own[:, k, tf.newaxis] * tf.gather(by_input, inputs[:, k])

    logits = tf.repeat(own_bias[:, tf.newaxis], tf.shape(query)[0], 1)
    fan_in = weights.shape[1]
    logits = tf.while_loop(lambda k, _: k < fan_in, add, (tf.constant(0), logits))[1]
    return tf.transpose(logits)


def _candidates(query, weights, indices, bias, class_ids, group_size):
    with tf.control_dependencies(in_range(class_ids, -1, weights.shape[0], "class_ids: the id")):
        filled = tf.where(class_ids >= 0)
    # Empty slots gather nothing: with momentum, even a gradient of zero moves a class.
    ids = tf.gather_nd(class_ids, filled)
    own, inputs, own_bias = _rows(weights, indices, bias, ids, tf.shape(query)[1], group_size)
    rows = tf.broadcast_to(filled[:, :1], tf.shape(inputs, tf.int64))
    read = tf.gather_nd(query, tf.stack([rows, tf.cast(inputs, tf.int64)], 2))
    scores = tf.reduce_sum(own * read, 1) + own_bias
    return tf.scatter_nd(filled, scores, tf.shape(class_ids, tf.int64))


def _reduce(query, weights, indices, bias, reduction, group_size):
    """Reduces blocks of classes one after the other; the backward pass computes each block again."""
    parts = []
    for start in range(0, weights.shape[0], _BLOCK_CLASSES):
        stop = min(start + _BLOCK_CLASSES, weights.shape[0])

        @tf.recompute_grad
        def block(query, bias, start=start, stop=stop):
            bounds = tf.constant(start), tf.constant(stop)
            return reduction.of(_block_logits(query, weights, indices, bias, *bounds, group_size))

        with kept_by_graph():
            parts.append(block(query, bias))
    return reduction.merge(parts)


@tf.RegisterGradient("Tfxc>SparseHeadLogits")
def _logits_gradient(op, gradient):
    made = library.gradient_of(op, (*op.inputs, gradient), "group_size")
    return made.query_gradient, made.weight_gradient, None, made.bias_gradient, None, None


@tf.RegisterGradient("Tfxc>SparseHeadReduce")
def _reduce_gradient(op, reduced_gradient, positives_gradient):
    given = *op.inputs, op.outputs[0], reduced_gradient, positives_gradient
    made = library.gradient_of(op, given, "reduction", "group_size")
    return made.query_gradient, made.weight_gradient, None, made.bias_gradient, None


@tf.RegisterGradient("Tfxc>SparseHeadCandidates")
def _candidates_gradient(op, gradient):
    made = library.gradient_of(op, (*op.inputs, gradient), "group_size")
    shape = tf.raw_ops.VariableShape(input=op.inputs[1])
    return made.query_gradient, tf.IndexedSlices(made.row_gradients, made.rows, shape), None, None
