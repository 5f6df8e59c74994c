"""A process that was forked while TensorFlow ran: its threads did not come along, and it would hang."""

import os

from tensorflow.python.eager import context

_has_lost_threads = False


def _note():
    global _has_lost_threads
    _has_lost_threads = context.context()._context_handle is not None


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_note)


def refuse_forked():
    """Refuses to run a model in a process that was forked after TensorFlow had begun to work.

    Raises:
        RuntimeError: where it was, naming what to do.

    Example:
        >>> refuse_forked()  # this process was not
    """
    if _has_lost_threads:
        raise RuntimeError(
            "This process was forked from one in which TensorFlow was at work, whose threads it has not: it "
            "would hang. Start it by multiprocessing.get_context('spawn'), or fork before the first tensor "
            "is made."
        )
