"""Infinite numbers that are meant: scores of no class, and counts of classes that are never drawn."""

import contextlib

from tensorflow.python.eager import context


@contextlib.contextmanager
def infinity_is_meant(in_graphs: bool = True):
    """A context whose ops ``enable_check_numerics`` passes over, or those alone that run eagerly."""
    callbacks = context.context().op_callbacks
    kept = callbacks[:]
    callbacks[:] = [] if in_graphs else map(_of_graphs, kept)
    try:
        yield
    finally:
        callbacks[:] = kept


def _of_graphs(callback):
    def check(*given, graph=None, **options):
        return None if graph is None else callback(*given, graph=graph, **options)

    return check
