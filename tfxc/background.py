"""Work behind training, which never waits for it."""

import contextlib
import os
import sys
import threading


def lower_priority():
    """Lets the steps of training go first, where a thread can have a priority of its own.

    A thread that is merely nice keeps a core for its time slice while the many short tasks of a step wait;
    one of the idle class gives way at once. A sandbox that refuses leaves the thread as it is: its work
    matters more than its manners.

    Example:
        >>> thread = threading.Thread(target=lower_priority)
        >>> thread.start()
        >>> thread.join()
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))
