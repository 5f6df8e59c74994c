"""A function of rows, computed some rows at a time, with a gradient that computes these chunks again."""

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework.auto_control_deps_utils import get_read_write_resource_inputs
from tensorflow.python.ops.handle_data_util import get_resource_handle_data

from tfxc._keras.weights import layer_and_name
from tfxc.ops.custom_gradient import custom_gradient, kept_by_graph
from tfxc.ops.table_rows import mark_read_only


def in_chunks(function, inputs, variables, chunk_size):
    """``function(*inputs)``, and later its gradient, with the intermediate results of one chunk at a time.

    A variable whose gradient comes as rows gets each row once, with the sum of all that came for it. Random
    states, and other integers that the function changes, are in the second run as they were in the first,
    and afterwards as before it.

    The function takes tensors [n, ...], n = ``chunk_size`` or what is left for the last chunk, and returns a
    list of such, of which the first has a gradient. Inputs [N, ...] of floats get a gradient, and so do
    ``variables``, tensors or ``tf.Variable``; the function may read others. Raises ValueError
    for a function that changes a variable of floats, or draws what it cannot draw again.
    """
    mark_read_only(*(own for own in variables if isinstance(own, tf.Variable)))
    inputs = [tf.convert_to_tensor(part) for part in inputs]
    chunk = _traced(function, inputs)
    states = _changed_by(chunk.graph)

    def forward(*inputs):
        def step(number, found, befores):
            befores = _written(befores, number, [_read(*state) for state in states])
            return _written(found, number, chunk(*_rows(inputs, number, chunk_size))), befores

        num_chunks = _num_chunks(inputs, chunk_size)
        arrays = [_arrays(dtypes, num_chunks) for dtypes in (chunk.output_dtypes, [own for _, own in states])]
        found, befores = _over(num_chunks, step, arrays)
        return [array.concat() for array in found], [array.stack() for array in befores]

    with record.stop_recording():  # a tape would keep what each chunk computes
        found, befores = _alone(_traced(forward, inputs), inputs)
    for part, of_chunk in zip(found, chunk.structured_outputs, strict=True):
        part.set_shape(_with_rows(inputs[0].shape[0], of_chunk))

    @custom_gradient
    def answer(*given):
        def gradient(upstream):
            return _gradient(function, upstream, inputs, variables, chunk_size, states, befores)

        return tf.identity(found[0]), gradient

    return [answer(*inputs, *[getattr(own, "handle", own) for own in variables]), *found[1:]]


def _gradient(function, upstream, inputs, variables, chunk_size, states, befores):
    """The gradients of inputs and variables, None for those that have none."""

    def of_rows(upstream, *rows):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([*variables, *(part for part in rows if part.dtype.is_floating)])
            output = function(*rows)[0]
        gradients = tape.gradient(output, [*rows, *variables], output_gradients=upstream)
        # A gradient that comes as rows counts them from the start of the chunk, so inputs get dense ones.
        dense = [None if part is None else tf.convert_to_tensor(part) for part in gradients[: len(rows)]]
        return [*dense, *gradients[len(rows) :]]

    chunk = _traced(of_rows, [upstream, *inputs])
    sources = [*([None] * len(inputs)), *variables]

    def backward(*given):
        befores, given = given[: len(states)], given[len(states) :]
        afters = [_read(*state) for state in states]

        def step(number, totals):
            for (handle, _), before in zip(states, befores, strict=True):
                tf.raw_ops.AssignVariableOp(resource=handle, value=before[number])
            parts = chunk(*_rows(given, number, chunk_size))
            return [[_added(*pair, number) for pair in zip(totals, parts, strict=True)]]

        num_chunks = _num_chunks(given, chunk_size)
        start = [_nothing(*pair, num_chunks) for pair in zip(chunk.structured_outputs, sources, strict=True)]
        (totals,) = _over(num_chunks, step, [start])
        for (handle, _), after in zip(states, afters, strict=True):
            tf.raw_ops.AssignVariableOp(resource=handle, value=after)
        return [_total(*pair) for pair in zip(totals, sources, strict=True)]

    # A function: in its graph, unlike in others, states are read and set in the order of these lines.
    given = [*befores, upstream, *inputs]
    return _alone(_traced(backward, given), given)


def _alone(function, inputs):
    """``function(*inputs)``, which waits in a graph for those before: two would take the memory of both."""
    graph, replica = tf.compat.v1.get_default_graph(), tf.distribute.get_replica_context()
    # The replicas of one graph have devices of their own.
    last = f"_tfxc_in_chunks_{replica and tf.get_static_value(replica.replica_id_in_sync_group)}"
    with tf.control_dependencies(getattr(graph, last, [])):
        results = function(*inputs)
    if not tf.executing_eagerly():
        setattr(graph, last, list(filter(tf.is_tensor, tf.nest.flatten(results, expand_composites=True))))
    return results


def _nothing(part, variable, num_chunks):
    """The sum of no parts: a tensor, rows, or an array of what is to be joined."""
    if part is None:
        return []
    if variable is None:
        return _arrays([part.dtype], num_chunks)
    dtype = tf.float32 if part.dtype.size < 4 else part.dtype
    if not isinstance(part, tf.IndexedSlices):
        return tf.zeros(_shape(variable), dtype)
    # The number of rows, 0, is computed, so that the loop takes any.
    rows = tf.zeros([0 * num_chunks, *part.values.shape[1:]], dtype)
    return tf.IndexedSlices(rows, tf.zeros([0 * num_chunks], part.indices.dtype))


def _added(total, part, number):
    if isinstance(total, tf.IndexedSlices):
        # Each row is kept once: a large batch names most of them many times.
        ids, places = tf.unique(tf.concat([total.indices, part.indices], 0))
        rows = tf.concat([total.values, tf.cast(part.values, total.dtype)], 0)
        return tf.IndexedSlices(tf.math.unsorted_segment_sum(rows, places, tf.size(ids)), ids)
    if tf.is_tensor(total):
        return total + tf.ensure_shape(tf.cast(part, total.dtype), total.shape)
    return _written(total, number, [part][: len(total)])


def _total(total, variable):
    if isinstance(total, tf.IndexedSlices):
        return tf.IndexedSlices(tf.cast(total.values, variable.dtype), total.indices, _shape(variable))
    if tf.is_tensor(total):
        return tf.cast(total, variable.dtype)
    return total[0].concat() if total else None


def _shape(variable):
    """The shape of a variable, without a read of it, or of a tensor, of which a graph may not know it."""
    is_known = isinstance(variable, tf.Variable)
    return tf.constant(variable.shape.as_list(), tf.int32) if is_known else tf.shape(variable)


def _over(num_chunks, step, totals):
    """The totals after ``totals = step(number, *totals)`` for each chunk, one at a time."""
    is_left = lambda number, *_: number < num_chunks  # noqa: E731
    next_of = lambda number, *totals: (number + 1, *step(number, *totals))  # noqa: E731
    return tf.while_loop(is_left, next_of, (tf.constant(0), *totals), parallel_iterations=1)[1:]


def _num_chunks(inputs, chunk_size):
    """At least 1: of no rows a function computes the shape."""
    return tf.maximum(-(-tf.shape(inputs[0])[0] // chunk_size), 1)


def _rows(inputs, number, chunk_size):
    return [part[number * chunk_size : (number + 1) * chunk_size] for part in inputs]


def _arrays(dtypes, num_chunks):
    return [tf.TensorArray(dtype, num_chunks, infer_shape=False) for dtype in dtypes]


def _written(arrays, number, parts):
    return [array.write(number, part) for array, part in zip(arrays, parts, strict=True)]


def _read(handle, dtype):
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)


def _with_rows(number, part):
    """The static shape of a tensor, with another number of rows; of any rank."""
    return tf.TensorShape([number]).concatenate(part.shape[1:])


def _traced(function, inputs):
    """A concrete function of any number of rows of the inputs."""

    def traced(*rows):
        with kept_by_graph():  # swish has a custom gradient
            return function(*rows)

    specs = [tf.TensorSpec(_with_rows(None, part), part.dtype) for part in inputs]
    return tf.function(traced, autograph=False).get_concrete_function(*specs)


def _changed_by(graph):
    """Handle and dtype of each variable of integers that a graph changes; ValueError as of ``in_chunks``."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for own in definition.library.function for node in own.node_def)]
    for node in nodes:
        if "seed2" in node.attr and not node.op.startswith("Cudnn"):
            raise ValueError(
                f"{node.name} draws by {node.op}, which keeps no state, so the second pass over a chunk "
                "would draw other numbers: take keras.layers.Dropout, or draw by a "
                "keras.random.SeedGenerator or a tf.random.Generator."
            )
    changed = set()
    for op in graph.get_operations():
        if op.type not in ("Identity", "IdentityN"):  # these pass handles on
            changed |= {tensor.ref() for tensor in get_read_write_resource_inputs(op)[1]}
    states = []
    for handle, inner in graph.captures:
        kept = get_resource_handle_data(inner) if inner.ref() in changed else None
        if kept is None or not kept.is_set:  # of a table of names, for example
            continue
        dtype = tf.as_dtype(kept.shape_and_type[0].dtype)
        if not dtype.is_integer:
            names = [layer_and_name(own) for own in graph.variables if own.handle is handle]
            raise ValueError(
                f"A step changes {names[0] if names else 'a variable'} by what it sees of the batch, as "
                "BatchNormalization does, but it sees one chunk at a time, and twice: take "
                "LayerNormalization, or layers that change no weights of their own."
            )
        states.append((handle, dtype))
    return states
