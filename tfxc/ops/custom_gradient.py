"""Custom gradients that go with the graph they were made in."""

import contextlib
import functools
import weakref

import tensorflow as tf
from tensorflow.python.framework import ops

_ASKS = "_gradient_op_type"  # of an op whose gradient is not that of its type


def custom_gradient(function):
    """``tf.custom_gradient``, of which nothing stays when its graph is gone.

    Args:
        function: of tensors; gives a tensor or several, and the function of their gradients to those of the
            tensors.

    Example:
        >>> @custom_gradient
        ... def clipped(x):
        ...     return x, lambda upstream: tf.clip_by_value(upstream, -1.0, 1.0)
        >>> x = tf.constant(3.0)
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(x)
        ...     y = 5 * clipped(x)
        >>> float(tape.gradient(y, x))
        1.0
    """
    made = tf.custom_gradient(function)

    @functools.wraps(function)
    def call(*given):
        with kept_by_graph():
            return made(*given)

    return call


@contextlib.contextmanager
def kept_by_graph():
    """Has custom gradients that are made inside stay as long as the graph they are made in, and no longer.

    TensorFlow keeps them for the life of the process, and with them the graph and all variables that it
    reads: each model that is trained and thrown away would stay in memory. Its own functions make such
    gradients, too: ``tf.recompute_grad``, and the sum over replicas, of which there may be one. A gradient
    goes with the graph whose ops ask for it: a function that is traced inside keeps its own, and what another
    thread makes meanwhile stays as TensorFlow keeps it.

    Example:
        >>> @tf.function
        ... def squared(x):
        ...     with kept_by_graph():
        ...         return tf.recompute_grad(tf.square)(x)
        >>> float(squared(tf.constant(3.0)))
        9.0
    """
    if tf.executing_eagerly():
        yield
        return
    graph, known = tf.compat.v1.get_default_graph(), set(ops.gradient_registry._registry)
    num_ops, functions = len(graph.get_operations()), set(graph._functions)
    try:
        yield
    finally:
        made = set(ops.gradient_registry._registry) - known
        _tie_all(graph, graph.get_operations()[num_ops:], made)
        # Those of loops and branches are among them, and what these call, too.
        for name in set(graph._functions) - functions:
            part = getattr(graph._functions[name], "_cached_graph", None)  # of a definition alone: none
            if part is not None:
                _tie_all(part, part.get_operations(), made)


def _tie_all(graph, operations, made):
    """Has a graph hold the gradients that its ops ask for, of those that were made."""
    for op in operations:
        if op.type == "IdentityN" and _ASKS in op.node_def.attr:
            name = op.get_attr(_ASKS).decode()
            if name in made:
                _tie(graph, name)


def _tie(graph, name):
    """Has the graph hold a gradient, and the registry forget it with the graph."""
    gradient, entries = ops.gradient_registry.lookup(name), ops.gradient_registry._registry
    if isinstance(gradient, _OfGraph):
        return
    del entries[name]
    ops.gradient_registry.register(_OfGraph(gradient), name)
    graph._tfxc_gradients = [*getattr(graph, "_tfxc_gradients", []), gradient]
    weakref.finalize(gradient, entries.pop, name, None)


class _OfGraph:
    """A gradient that its graph holds."""

    def __init__(self, gradient):
        self._gradient = weakref.ref(gradient)

    def __call__(self, *given):
        return self._gradient()(*given)
