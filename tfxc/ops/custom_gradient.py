"""Custom gradients that live as long as the graph they were made in."""

import contextlib
import functools
import weakref

import tensorflow as tf
from tensorflow.python.framework import ops

_ASKS = "_gradient_op_type"  # the attribute of an op that names a custom gradient


def custom_gradient(function):
    """``tf.custom_gradient`` that is freed with its graph.

    The function takes tensors. It returns one or more tensors, and a function from the gradients of these to
    the gradients of its arguments.
    """
    made = tf.custom_gradient(function)

    @functools.wraps(function)
    def call(*given):
        with kept_by_graph():
            return made(*given)

    return call


@contextlib.contextmanager
def kept_by_graph():
    """A context whose custom gradients live exactly as long as the graph they are made in.

    TensorFlow keeps custom gradients for the life of the process, and with them the graph and all variables
    that it reads: every model that is trained and discarded would stay in memory. Functions of TensorFlow
    make such gradients, too: ``tf.recompute_grad``, and the sum over replicas, even over a single one. A
    gradient belongs to the graph whose ops ask for it. A function that is traced inside keeps its own
    gradients, and gradients that another thread makes meanwhile stay as TensorFlow keeps them.
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
        # The graphs of loops and branches are among the functions, and so are the functions these call.
        for name in set(graph._functions) - functions:
            part = getattr(graph._functions[name], "_cached_graph", None)  # a mere definition has none
            if part is not None:
                _tie_all(part, part.get_operations(), made)


def _tie_all(graph, operations, made):
    """Makes a graph the owner of those new gradients that its ops ask for."""
    for op in operations:
        if op.type == "IdentityN" and _ASKS in op.node_def.attr:
            name = op.get_attr(_ASKS).decode()
            if name in made:
                _tie(graph, name)


def _tie(graph, name):
    """Makes the graph the owner of a gradient; the registry forgets it with the graph."""
    gradient, entries = ops.gradient_registry.lookup(name), ops.gradient_registry._registry
    if isinstance(gradient, _OfGraph):
        return
    del entries[name]
    ops.gradient_registry.register(_OfGraph(gradient), name)
    graph._tfxc_gradients = [*getattr(graph, "_tfxc_gradients", []), gradient]
    weakref.finalize(gradient, entries.pop, name, None)


class _OfGraph:
    """A weak reference to a gradient that its graph owns."""

    def __init__(self, gradient):
        self._gradient = weakref.ref(gradient)

    def __call__(self, *given):
        return self._gradient()(*given)
