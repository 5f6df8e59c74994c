"""What the tests of memory share: the tensors that a function makes."""


def all_shapes(concrete):
    """The static shape of every tensor of a function and of all functions it calls, loop bodies too."""
    graphs, found = [concrete.graph], []
    while graphs:
        graph = graphs.pop()
        found += [tensor.shape for op in graph.get_operations() for tensor in op.outputs]
        graphs += [function.graph for function in graph._functions.values() if function.graph is not None]
    return found
