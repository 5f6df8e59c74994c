"""Background work that does not delay training."""

import contextlib
import os
import threading


def lower_priority():
    """Gives the current thread the lowest priority on Linux, so that training steps go first.

    A thread of a high nice value would keep a core for its time slice while the many short tasks of a step
    wait. A thread of the idle class yields at once. If the system refuses, or has no such class, the thread
    keeps its priority.
    """
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))
