"""Timing of tasks in turns, and peak memory of a task in a process of its own, for all benchmarks."""

import multiprocessing
import os
import statistics
import time
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def in_turns(tasks, rounds=7, warmup=2):
    """Median seconds of each named task; the tasks take turns, so a slow moment of the machine hits all."""
    seconds = {name: [] for name in tasks}
    for turn in range(warmup + rounds):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            if turn >= warmup:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def peak_memory(task, *args):
    """Peak resident MB that ``task(*args)`` adds to a fresh process with TensorFlow and tfxc loaded.

    The task may call its first argument, a function, when its set-up is done; then only later memory
    counts.
    """
    return measured(task, *args)[0]


def measured(task, *args):
    """As ``peak_memory``, with the result of the task."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_measured, args=(send, task, *args))
    # With oneDNN, TensorFlow's pool keeps memory that the set-up freed, and a step would reuse it. Set here,
    # since the new process loads TensorFlow with the script's imports.
    with mock.patch.dict(os.environ, TF_ONEDNN_USE_SYSTEM_ALLOCATOR="1"):
        process.start()
    send.close()
    try:
        return receive.recv()
    except EOFError:
        raise RuntimeError(f"{task.__name__} ended without a figure (see its output above).") from None
    finally:
        process.join()


def _measured(send, task, *args):
    import tensorflow as tf

    import tfxc  # noqa: F401

    tf.constant(0)
    base = [reset_peak()]

    def set_up_done():
        base[0] = reset_peak()

    result = task(set_up_done, *args)
    send.send(((status("VmHWM") - base[0]) / 1024, result))


def reset_peak():
    """Resets the kernel's high-water mark; returns the present resident size in kB."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return status("VmRSS")


def status(field):
    """A figure of this process, in kB."""
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith(field)).split()[1])
