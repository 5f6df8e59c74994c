"""Background work that does not delay training."""

import contextlib
import os
import threading


def lower_priority():
    """Gives the current thread Linux's idle class: it yields at once, where a nice value keeps a core."""
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))
