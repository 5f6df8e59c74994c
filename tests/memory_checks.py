from pathlib import Path


def all_shapes(concrete):
    """The static shape of every tensor of a function and of all functions it calls, loop bodies too."""
    graphs, found = [concrete.graph], []
    while graphs:
        graph = graphs.pop()
        found += [tensor.shape for op in graph.get_operations() for tensor in op.outputs]
        graphs += [function.graph for function in graph._functions.values() if function.graph is not None]
    return found


def with_peak(call):
    """What a call gives, and how far above what it held before the memory of this process rose, in bytes."""
    # The peak begins anew: that of the whole process never falls.
    Path("/proc/self/clear_refs").write_text("5")
    before = _held("VmRSS")
    answer = call()
    return answer, _held("VmHWM") - before


def _held(name):
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition(f"{name}:")[2].split()[0])
